"""The ASGI application: its routes, and the conversion of exceptions to error responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hearth.app.server.endpoint import PREFIX, UNPREFIXED, Endpoint, base_urls
from hearth.app.server.errors import as_hearth_error, error_response, server_ended, unknown_url
from hearth.app.server.pages import PAGES, root_of
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
        answering = _Answering(endpoint)
        yield Route(endpoint.path, answering, methods=[endpoint.method])
        if endpoint.path in UNPREFIXED:
            short = endpoint.path.removeprefix(PREFIX)
            yield Route(short, _Prefixed(answering), methods=[endpoint.method])


class _Prefixed:
    """ASGI application that passes a request on to `app` with `PREFIX` before its path, so that it
    is measured and answered like one with the full path.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app({**scope, "path": PREFIX + scope["path"]}, receive, send)


class _Answering:
    """ASGI application of one endpoint. It turns what the handler raises into an error response;
    a handler is cancelled only when the server ends. It counts failed requests, and successful ones
    with a body, that have no recorder of their own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = await self._answer(Request(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, http: Request) -> Response:
        endpoint, path = self._endpoint, http.scope["path"]
        try:
            response = await endpoint.handler(http)
        except asyncio.CancelledError:
            return error_response(server_ended(), path)
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            typed = as_hearth_error(error)
            if not _is_measured(http):
                services_of(http).metrics.answered(endpoint.path, typed.http_status)
            return error_response(typed, path)
        if endpoint.table is not None and not _is_measured(http):
            services_of(http).metrics.answered(endpoint.path, response.status_code)
        return response


def _is_measured(http: Request) -> bool:
    return hasattr(http.state, "recorder")


async def _no_such_route(http: Request, error: Exception) -> Response:
    path = http.scope["path"]
    if isinstance(error, HTTPException) and error.status_code == 404:
        known = (endpoint.path.partition("{")[0] for endpoint in (*PAGES, *ENDPOINTS))
        return error_response(unknown_url(path, known, base_urls(root_of(http))), path)
    return error_response(as_hearth_error(error), path)
