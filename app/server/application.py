"""The application: which URL is answered by whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hearth.app.server.chat import create_chat_completion
from hearth.app.server.completions import create_completion
from hearth.app.server.errors import as_hearth_error, error_response, server_ended
from hearth.app.server.health import health
from hearth.app.server.models import list_models, retrieve_model
from hearth.app.server.security import Guard, Policy
from hearth.app.server.services import Services

Endpoint = Callable[[Request], Awaitable[Response]]

ENDPOINTS: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("POST", "/v1/chat/completions", create_chat_completion),
    ("POST", "/v1/completions", create_completion),
    ("GET", "/v1/models", list_models),
    ("GET", "/v1/models/{name:path}", retrieve_model),
    ("GET", "/health", health),
)


def build(services: Services, policy: Policy) -> Starlette:
    """The ASGI application over `services`, for those whom `policy` lets in."""
    application = Starlette(
        routes=[
            Route(path, _answering(endpoint), methods=[method])
            for method, path, endpoint in ENDPOINTS
        ],
        middleware=[Middleware(Guard, policy=policy)],
        exception_handlers={HTTPException: _no_such_route},
    )
    application.state.services = services
    return application


def _answering(endpoint: Endpoint) -> Endpoint:
    """`endpoint`, answering with what it raises; it is cancelled only when the server ends."""

    async def answer(http: Request) -> Response:
        try:
            return await endpoint(http)
        except asyncio.CancelledError:
            return error_response(server_ended())
        except Exception as error:  # noqa: BLE001 - the last door of a request
            return error_response(as_hearth_error(error))

    return answer


async def _no_such_route(http: Request, error: Exception) -> Response:
    return error_response(as_hearth_error(error))
