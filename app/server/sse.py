"""Server-sent events, framed so that clients cannot mistake a failed stream for a complete one.

A stream ends with `data: [DONE]` and the last chunk of the body. A failed stream ends with an error
event and without that chunk, because OpenAI's clients treat a complete body as a complete answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hearth.app.server.errors import ClientGone, as_hearth_error, error_body, server_ended
from hearth.app.server.leaving import until_gone
from hearth.app.server.protocol import STREAMED_BODY, StreamedBody
from hearth.app.server.services import Services, services_of
from hearth.app.tasks import cancel
from hearth.backends.errors import HearthError

DONE: Final = b"data: [DONE]\n\n"

_JSON: Final = msgspec.json.Encoder()

Parts = AsyncGenerator[bytes, None]


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + one_line(value) + b"\n\n"


def one_line(value: Any) -> bytes:
    """`value` as JSON; characters that some clients treat as line ends are escaped."""
    data = _JSON.encode(value)
    if not data.isascii():
        for character in "\u2028\u2029\u0085":
            data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    return data


class Repeated:
    """A template for an event that is sent many times with different texts.

    Everything except the text is encoded only once.

    Args:
        template: the event, with `Repeated.HOLE` in each place for the text.
    """

    HOLE: Final = "\N{OBJECT REPLACEMENT CHARACTER} the text goes here"

    def __init__(self, template: bytes) -> None:
        self._parts = template.split(one_line(self.HOLE))

    def event(self, text: str) -> bytes:
        """The event with `text` in it."""
        data = _JSON.encode(text)
        return (data if data.isascii() else one_line(text)).join(self._parts)


def comment(text: str) -> bytes:
    """A line that clients ignore; it keeps the connection alive."""
    return f": {text}\n\n".encode()


def named(name: str, value: dict[str, Any]) -> bytes:
    """A named event, as in Anthropic's streams and those of `/v1/responses`."""
    return f"event: {name}\n".encode() + event(value)


@dataclass(frozen=True, slots=True)
class Dialect:
    """The differences between the streams of the APIs.

    Attributes:
        failure: returns the last bytes of a stream that failed with an error.
        ping: sent while the stream is silent; clients ignore it.
    """

    failure: Callable[[HearthError], bytes]
    ping: bytes = comment("waiting")
    media_type: str = "text/event-stream"


OPENAI: Final = Dialect(lambda error: event(error_body(error)))


async def respond(request: Request, parts: Parts, dialect: Dialect = OPENAI) -> Response:
    """The response that streams `parts`.

    An error before the first part and within the services' `patience_s` is raised, so that the
    response has its HTTP status. After that time, pings are sent while the stream is silent.

    Raises:
        ClientGone: the client disconnected.
        HearthError: the first part failed.
    """
    services = services_of(request)
    first = asyncio.ensure_future(anext(parts))
    try:
        await until_gone(request.receive, asyncio.wait({first}, timeout=services.patience_s))
        if first.done():
            first.result()
    except BaseException:
        await _end(first, parts)
        raise
    return EventStream(first, parts, services, dialect)


async def _end(first: asyncio.Task[bytes], parts: Parts) -> None:
    await cancel(first)
    await parts.aclose()


class EventStream(StreamingResponse):
    """Sends parts as they are generated, and pings while there are none.

    Args:
        first: the task that waits for the first part.
        parts: the other parts; closed at the end, and as soon as the client disconnects.
        services: their `ping_s` is the time of silence after which a ping is sent.
        dialect: the format of errors and pings.
    """

    def __init__(
        self,
        first: asyncio.Task[bytes],
        parts: Parts,
        services: Services,
        dialect: Dialect,
    ) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(parts, headers=headers, media_type=dialect.media_type)
        self._first = first
        self._parts = parts
        self._services = services
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream; it is cancelled only when the server stops."""
        body: StreamedBody = scope["extensions"][STREAMED_BODY]
        try:
            try:
                with contextlib.suppress(ClientGone):
                    await until_gone(receive, self._send(send, body))
            finally:
                await _end(self._first, self._parts)
        except asyncio.CancelledError:
            body.write(self._dialect.failure(server_ended()))

    async def _send(self, send: Send, body: StreamedBody) -> None:
        """Send all parts; a failed stream ends with an error, and its body is not terminated."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        pinging = asyncio.create_task(self._ping(body))
        try:
            body.write(await self._first)  # In one packet with the head if it is ready.
            async for part in self._parts:
                if body.is_full:
                    await body.drained()
                body.write(part)
        except Exception as error:  # noqa: BLE001 - sent to the client as an event
            body.write(self._dialect.failure(as_hearth_error(error)))
        else:
            await send({"type": "http.response.body", "body": b""})
        finally:
            pinging.cancel()

    async def _ping(self, body: StreamedBody) -> None:
        """Send a ping when nothing was written for `ping_s` to twice that time.

        The time is not exact because a timer for each part would cost as much as writing it.
        """
        while True:
            writes = body.writes
            await asyncio.sleep(self._services.ping_s)
            if writes == body.writes and not body.is_full:
                body.write(self._dialect.ping)
