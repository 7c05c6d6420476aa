"""The ASGI application: its routes, and the conversion of exceptions to error responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hearth.app.server.endpoint import PREFIX, UNPREFIXED, Endpoint, base_urls
from hearth.app.server.errors import as_hearth_error, error_response, server_ended, unknown_url
from hearth.app.server.pages import PAGES, root_of
from hearth.app.server.requests import renamed
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.security import Guard, Policy
from hearth.app.server.services import Services, services_of


def build(services: Services, policy: Policy) -> Starlette:
    """The ASGI application over `services`, behind the access control of `policy`."""
    application = Starlette(
        routes=list(_routes()),
        middleware=[Middleware(Guard, policy=policy)],
        exception_handlers={HTTPException: _no_such_route},
    )
    application.state.services = services
    application.state.endpoints = ENDPOINTS
    application.state.key = bool(policy.key)
    return application


def _routes() -> Iterator[Route]:
    for endpoint in (*PAGES, *ENDPOINTS):
        answering = partial(_answer, endpoint)
        yield Route(endpoint.path, answering, methods=[endpoint.method])
        if endpoint.path in UNPREFIXED:
            short = endpoint.path.removeprefix(PREFIX)
            yield Route(short, answering, methods=[endpoint.method])


async def _answer(endpoint: Endpoint, http: Request) -> Response:
    """The response of `endpoint`, or an error response for the exception that its handler raises.

    The handler is cancelled only when the server ends. Requests without a recorder of their own are
    counted here: failed ones, and successful ones of endpoints that take a body. Errors about a
    parameter of the contract name the client's parameter.
    """
    http.state.route = endpoint.path
    try:
        response = await endpoint.handler(http)
        is_counted = endpoint.table is not None
    except asyncio.CancelledError:
        return error_response(server_ended(), endpoint.path)
    except Exception as error:  # noqa: BLE001 - every error becomes a response
        typed = renamed(as_hearth_error(error), getattr(http.state, "names", {}))
        response = error_response(typed, endpoint.path)
        is_counted = True
    if is_counted and not hasattr(http.state, "recorder"):
        services_of(http).metrics.answered(endpoint.path, response.status_code)
    return response


async def _no_such_route(http: Request, error: Exception) -> Response:
    path = http.scope["path"]
    if isinstance(error, HTTPException) and error.status_code == 404:
        known = (endpoint.path.partition("{")[0] for endpoint in (*PAGES, *ENDPOINTS))
        return error_response(unknown_url(path, known, base_urls(root_of(http))), path)
    return error_response(as_hearth_error(error), path)
