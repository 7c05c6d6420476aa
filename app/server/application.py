"""The application: its routes, and the errors that become answers."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hearth.app.server.endpoint import Handler
from hearth.app.server.errors import as_hearth_error, error_response, server_ended
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.security import Guard, Policy
from hearth.app.server.services import Services


def build(services: Services, policy: Policy) -> Starlette:
    """The ASGI application over `services`, for those whom `policy` lets in."""
    application = Starlette(
        routes=[
            Route(endpoint.path, _answering(endpoint.handler), methods=[endpoint.method])
            for endpoint in ENDPOINTS
        ],
        middleware=[Middleware(Guard, policy=policy)],
        exception_handlers={HTTPException: _no_such_route},
    )
    application.state.services = services
    application.state.endpoints = ENDPOINTS
    return application


def _answering(handler: Handler) -> Handler:
    """`handler`, answering with what it raises; it is cancelled only when the server ends."""

    async def answer(http: Request) -> Response:
        path = http.url.path
        try:
            return await handler(http)
        except asyncio.CancelledError:
            return error_response(server_ended(), path)
        except Exception as error:  # noqa: BLE001 - the last door of a request
            return error_response(as_hearth_error(error), path)

    return answer


async def _no_such_route(http: Request, error: Exception) -> Response:
    return error_response(as_hearth_error(error), http.url.path)
