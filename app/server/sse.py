"""Server-sent events, framed here so that a stream that failed can never look finished.

A stream ends with `data: [DONE]` and the last chunk of the body. One that fails sends an error
event and is cut off without that chunk: OpenAI's clients take a body that ends well for a whole
answer.
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
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hearth.app.server.errors import ClientGone, as_hearth_error, error_body, server_ended
from hearth.app.server.leaving import until_gone
from hearth.app.server.services import Services
from hearth.backends.errors import HearthError

DONE: Final = b"data: [DONE]\n\n"
_MOST_HELD_BYTES: Final = 64 << 10
"""What is held for a client that reads more slowly than the model writes."""
_FAREWELL_S: Final = 0.5
"""How long the last event of a server that ends is waited for: some clients do not read."""

Parts = AsyncGenerator[bytes, None]


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + one_line(value) + b"\n\n"


def one_line(value: Any) -> bytes:
    """`value` as JSON; the characters that some clients end lines at are escaped."""
    data = msgspec.json.encode(value)
    if b"\xe2\x80" in data or b"\xc2\x85" in data:
        for character in "\u2028\u2029\u0085":
            data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    return data


class Repeated:
    """An event that is sent many times and differs in one text: the rest is written once.

    Args:
        value: the event, with `Repeated.HOLE` where the text goes, in one place or several.
    """

    HOLE: Final = "\N{OBJECT REPLACEMENT CHARACTER} the text goes here"

    def __init__(self, value: dict[str, Any]) -> None:
        self._parts = event(value).split(one_line(self.HOLE))

    def event(self, text: str) -> bytes:
        """The event with `text` in it."""
        return one_line(text).join(self._parts)


def comment(text: str) -> bytes:
    """A line that clients ignore; it keeps the connection alive."""
    return f": {text}\n\n".encode()


def named(name: str, value: dict[str, Any]) -> bytes:
    """An event with a name, as Anthropic's streams and those of `/v1/responses` have it."""
    return f"event: {name}\n".encode() + event(value)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs between the families of streams.

    Attributes:
        failure: the last bytes of a stream that failed.
        ping: what breaks a silence, and means nothing.
    """

    failure: Callable[[HearthError], bytes]
    ping: bytes = comment("waiting")
    media_type: str = "text/event-stream"


OPENAI: Final = Dialect(lambda error: event(error_body(error)))


async def respond(
    request: Request, parts: Parts, services: Services, dialect: Dialect = OPENAI
) -> Response:
    """The response that streams `parts`.

    What goes wrong before the first part is raised, and so gets a status of its own, if it does so
    within the services' `patience_s`; from then on comments break silences.

    Raises:
        ClientGone: the client left while it waited.
        HearthError: what the first part raised.
    """
    first = asyncio.create_task(_next(parts))
    try:
        await until_gone(request.receive, _settle(first, services.patience_s))
    except BaseException:
        await _end(first, parts)
        raise
    return EventStream(first, parts, services, dialect)


async def _next(parts: Parts) -> bytes:
    return await anext(parts)


async def _settle(first: asyncio.Task[bytes], patience_s: float) -> None:
    await asyncio.wait({first}, timeout=patience_s)
    if first.done():
        first.result()


async def _end(first: asyncio.Task[bytes], parts: Parts) -> None:
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await parts.aclose()


class EventStream(Response):
    """Sends parts as they come, and comments while none come.

    Args:
        first: the task that waits for the first of them.
        parts: the others; closed at the end, and as soon as the client leaves, or has read nothing
            for the services' `stall_s`.
        services: `ping_s` says how often it is looked whether the stream is silent; no silence is
            twice as long.
        dialect: how failures and pings are written.
    """

    def __init__(
        self,
        first: asyncio.Task[bytes],
        parts: Parts,
        services: Services,
        dialect: Dialect = OPENAI,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.media_type = dialect.media_type
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._first = first
        self._parts = parts
        self._services = services
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream; it is only cancelled when the server ends."""
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
            await line.send(self._first.result())  # Now, so that it goes out with the head.
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
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _produce(self, line: _Line, begun: bool) -> None:
        """Put every part on the line, but for the first if that was sent when the stream was
        `begun`, and close it; where the stream fails, the last one says so.
        """
        try:
            if not begun:
                await line.put(await self._first)
            async for part in self._parts:
                await line.put(part)
        except Exception as error:  # noqa: BLE001 - the client gets it as an event
            await line.put(self._dialect.failure(as_hearth_error(error)))
            line.close(whole=False)
        else:
            line.close(whole=True)


class _Line:
    """The body as it is sent: parts that come while others are on their way go out together."""

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
        """Let `part` be sent; waits where the client is far behind."""
        self._waiting.append(part)
        self._held_bytes += len(part)
        self._came.set()
        if self._held_bytes > _MOST_HELD_BYTES:
            self._room.clear()
            await self._room.wait()

    def close(self, *, whole: bool) -> None:
        """`write` returns when all is sent; only a body that is `whole` gets its end."""
        self._closed = True
        self._whole = whole
        self._came.set()

    async def write(self) -> None:
        """Send what is put, until `close`."""
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
        """Send `data` at once; with the `last`, the body is over."""
        self._sending_since = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})
        self._sending_since = None
        self._sends += 1

    async def watch(self, ping_s: float, ping: bytes) -> None:
        """Put `ping` on the line where nothing was sent for so long. One timer looks for both: a
        timer for every part would cost as much as sending it.

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
