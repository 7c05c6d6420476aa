"""One URL of the server: its handler, its parameters, and the schema of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from hearth.app.server.parameters import Parameter, Table
from hearth.app.server.schema import Json

EVENT_STREAM: Final = "text/event-stream"
HTML: Final = "text/html"
PREFIX: Final = "/v1"
UNPREFIXED: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/{name:path}",
    "/v1/rerank",
)
"""Paths that are also served without `PREFIX`, for clients whose base URL lacks it."""
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The source of one route and of its entry in `/openapi.json`.

    Attributes:
        path: in Starlette's syntax; `{name:path}` matches slashes too.
        summary: one line for the documentation.
        answer: JSON schema of the body of a 200 response.
        table: the fields of the request body; None if it has no body.
        query: the query parameters.
        media: another content type of a 200 response.
        unready: JSON schema that the body of a 503 response may have instead of an error's.
        event: JSON schema of one line, or of the data of one event, of an answer that is streamed
            as `stream_media` if the request sets `stream`. None if the answer is never streamed.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Json
    table: Table | None = None
    query: tuple[Parameter, ...] = ()
    media: str = "application/json"
    unready: Json | None = None
    event: Json | None = None
    stream_media: str = EVENT_STREAM


class BaseUrls(NamedTuple):
    """The base URL that clients of each API are configured with."""

    openai: str
    anthropic: str
    ollama: str


def base_urls(root: str) -> BaseUrls:
    """The base URLs of the server at `root`, such as `http://127.0.0.1:4242`."""
    return BaseUrls(openai=f"{root}{PREFIX}", anthropic=root, ollama=root)
