"""Server-sent events, framed so that clients cannot mistake a failed stream for a complete one.

A stream ends with `data: [DONE]` and the last chunk of the body. A failed stream ends with an error
event and without that chunk, because OpenAI's clients take a complete body for a complete answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from hearth.app.server.errors import ClientGone, as_hearth_error, error_body, server_ended
from hearth.app.server.leaving import cancel, until_gone
from hearth.app.server.services import Services, services_of
from hearth.backends.errors import HearthError

DONE: Final = b"data: [DONE]\n\n"
_MOST_HELD_BYTES: Final = 64 << 10
"""Bytes that are buffered for a client that reads more slowly than the model generates."""
_FAREWELL_S: Final = 0.5
"""Time limit for sending the last event when the server stops: some clients do not read."""

Parts = AsyncGenerator[bytes, None]


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + one_line(value) + b"\n\n"


def one_line(value: Any) -> bytes:
    """`value` as JSON, with characters escaped that some clients take for line ends."""
    data = msgspec.json.encode(value)
    if b"\xe2\x80" in data or b"\xc2\x85" in data:
        for character in "\u2028\u2029\u0085":
            data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    return data


class Repeated:
    """A template for an event that is sent many times with different texts; the rest is encoded
    once.

    Args:
        template: the event, with `Repeated.HOLE` in each place for the text.
    """

    HOLE: Final = "\N{OBJECT REPLACEMENT CHARACTER} the text goes here"

    def __init__(self, template: bytes) -> None:
        self._parts = template.split(one_line(self.HOLE))

    def event(self, text: str) -> bytes:
        """The event with `text` in it."""
        return one_line(text).join(self._parts)


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
        failure: the last bytes of a stream that failed with that error.
        ping: sent while the stream is silent; clients ignore it.
    """

    failure: Callable[[HearthError], bytes]
    ping: bytes = comment("waiting")
    media_type: str = "text/event-stream"


OPENAI: Final = Dialect(lambda error: event(error_body(error)))


async def respond(request: Request, parts: Parts, dialect: Dialect = OPENAI) -> Response:
    """The response that streams `parts`.

    An error before the first part and within the services' `patience_s` is raised, and so gets its
    own HTTP status; after that time, pings are sent while the stream is silent.

    Raises:
        ClientGone: the client disconnected.
        HearthError: the error of the first part.
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
        parts: the other parts; closed at the end, and as soon as the client disconnects or has
            read nothing for the services' `stall_s`.
        services: the stream is checked for silence every `ping_s`, so that a silence is shorter
            than twice that time.
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
        try:
            try:
                with contextlib.suppress(ClientGone):
                    await until_gone(receive, self._write(send))
            finally:
                await _end(self._first, self._parts)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL_S):
                    await _Line(send, _FAREWELL_S).send(self._dialect.failure(server_ended()))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        line = _Line(send, self._services.stall_s)
        begun = self._first.done() and self._first.exception() is None
        if begun:
            await line.send(self._first.result())  # At once, in one packet with the head.
        writing = asyncio.create_task(line.write())
        watching = asyncio.create_task(line.watch(self._services.ping_s, self._dialect.ping))
        producing = asyncio.create_task(self._produce(line, begun))
        tasks = (writing, watching, producing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if producing.done():
                producing.result()
                await asyncio.wait((writing, watching), return_when=asyncio.FIRST_COMPLETED)
            for sending in (writing, watching):
                if sending.done():
                    sending.result()
        finally:
            await cancel(*tasks)

    async def _produce(self, line: _Line, begun: bool) -> None:
        """Put every part on the line, except the first if the stream has `begun`, and close it; a
        failed stream ends with an error.
        """
        is_whole = True
        try:
            if not begun:
                await line.put(await self._first)
            async for part in self._parts:
                await line.put(part)
        except Exception as error:  # noqa: BLE001 - sent to the client as an event
            await line.put(self._dialect.failure(as_hearth_error(error)))
            is_whole = False
        line.close(whole=is_whole)


class _Line:
    """Sends the body; parts that are put while others are being sent go out together."""

    def __init__(self, send: Send, stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        self._waiting: list[bytes] = []
        self._held_bytes = 0
        self._came = asyncio.Event()
        self._room = asyncio.Event()
        self._closed = self._whole = False
        self._sends = 0
        self._sending_since: float | None = None

    async def put(self, part: bytes) -> None:
        """Queue `part` for sending; waits if the client reads too slowly."""
        self._waiting.append(part)
        self._held_bytes += len(part)
        self._came.set()
        if self._held_bytes > _MOST_HELD_BYTES:
            self._room.clear()
            await self._room.wait()

    def close(self, *, whole: bool) -> None:
        """Let `write` return when everything is sent; only a `whole` body gets its last chunk."""
        self._closed = True
        self._whole = whole
        self._came.set()

    async def write(self) -> None:
        """Send queued parts until `close`."""
        ended = False
        while not ended:
            await self._came.wait()
            self._came.clear()
            ended = self._closed
            data = b"".join(self._waiting)
            self._waiting.clear()
            self._held_bytes = 0
            if data or (ended and self._whole):
                await self.send(data, last=ended and self._whole)
                self._room.set()

    async def send(self, data: bytes, *, last: bool = False) -> None:
        """Send `data` at once; `last` ends the body."""
        self._sending_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self._sending_since = None
        self._sends += 1

    async def watch(self, ping_s: float, ping: bytes) -> None:
        """Queue `ping` whenever nothing was sent for `ping_s`. One timer checks for silence and for
        stalled clients: a timer for each part would cost as much as sending it.

        Raises:
            ClientGone: the client has read nothing for `stall_s` or up to twice as long.
        """
        while True:
            sends = self._sends
            await asyncio.sleep(min(ping_s, self._stall_s))
            since = self._sending_since
            if since is not None and time.monotonic() - since >= self._stall_s:
                raise ClientGone("The client has stopped reading.")
            if since is None and sends == self._sends and not self._waiting:
                await self.put(ping)
