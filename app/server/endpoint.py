"""One URL of the endpoint: who answers it, what may be sent there, and what comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from hearth.app.server.parameters import Parameter, Table
from hearth.app.server.schema import Json

EVENT_STREAM: Final = "text/event-stream"
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Routes and `/openapi.json` are made of these.

    Attributes:
        path: as Starlette has it; `{name:path}` takes slashes too.
        summary: one line for the documentation.
        answer: JSON schema of what comes back with 200.
        table: the fields of the body; None: there is none.
        query: the parameters of the query.
        media: another type of text that may come back with 200.
        unready: JSON schema of what comes back with 503, besides errors.
        event: with `stream`, the answer comes piece by piece, as `stream_media`; the JSON schema of
            a line, or of the data of an event. None: it never does.
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
