"""The application: its routes, and the errors that become answers."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hearth.app.server.endpoint import Endpoint
from hearth.app.server.errors import as_hearth_error, error_response, server_ended
from hearth.app.server.routes import ENDPOINTS
from hearth.app.server.security import Guard, Policy
from hearth.app.server.services import Services, services_of


def build(services: Services, policy: Policy) -> Starlette:
    """The ASGI application over `services`, for those whom `policy` lets in."""
    application = Starlette(
        routes=[
            Route(endpoint.path, _Answering(endpoint), methods=[endpoint.method])
            for endpoint in ENDPOINTS
        ],
        middleware=[Middleware(Guard, policy=policy)],
        exception_handlers={HTTPException: _no_such_route},
    )
    application.state.services = services
    application.state.endpoints = ENDPOINTS
    application.state.key = bool(policy.key)
    return application


class _Answering:
    """ASGI application of `endpoint`, answering with what its handler raises; that is cancelled
    only when the server ends. What fails before anything of it is measured is counted here, and so
    is what goes well of what models are asked, and has nothing to be measured.
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
        except Exception as error:  # noqa: BLE001 - the last door of a request
            found = as_hearth_error(error)
            if not _is_measured(http):
                services_of(http).metrics.answered(endpoint.path, found.http_status)
            return error_response(found, path)
        if endpoint.table is not None and not _is_measured(http):
            services_of(http).metrics.answered(endpoint.path, response.status_code)
        return response


def _is_measured(http: Request) -> bool:
    return hasattr(http.state, "recorder")


async def _no_such_route(http: Request, error: Exception) -> Response:
    return error_response(as_hearth_error(error), http.scope["path"])
