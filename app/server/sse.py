"""Server-sent events, framed here so that a stream that failed can never look finished.

A stream ends with `data: [DONE]` and the last chunk of the body. One that fails sends an error
event and is cut off without that chunk: OpenAI's clients take a body that ends well for a whole
answer.
"""

from __future__ import annotations

import asyncio
import contextlib
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
_FAREWELL_S: Final = 0.5
"""How long the last event of a server that ends is waited for: some clients do not read."""

Parts = AsyncGenerator[bytes, None]


def event(value: dict[str, Any]) -> bytes:
    """One event. The characters that some clients end lines at are escaped."""
    data = msgspec.json.encode(value)
    if b"\xe2\x80" in data or b"\xc2\x85" in data:
        for character in "\u2028\u2029\u0085":
            data = data.replace(character.encode(), b"\\u%04x" % ord(character))
    return b"data: " + data + b"\n\n"


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
            with contextlib.suppress(ClientGone):
                await until_gone(receive, self._write(send))
        except asyncio.CancelledError:
            with contextlib.suppress(ClientGone):
                await _Line(send, _FAREWELL_S).put(self._dialect.failure(server_ended()))

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        line = _Line(send, self._services.stall_s)
        pinging = asyncio.create_task(line.ping(self._services.ping_s, self._dialect.ping))
        try:
            await line.put(await self._first)
            async for part in self._parts:
                await line.put(part)
            await send({"type": "http.response.body", "body": b""})
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the client gets it as an event
            await line.put(self._dialect.failure(as_hearth_error(error)))
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
            await _end(self._first, self._parts)


class _Line:
    """The body as it is sent, and whether it was silent lately."""

    def __init__(self, send: Send, stall_s: float) -> None:
        self._send = send
        self._stall_s = stall_s
        self._silent = True

    async def put(self, part: bytes) -> None:
        self._silent = False
        try:
            async with asyncio.timeout(self._stall_s):
                await self._send({"type": "http.response.body", "body": part, "more_body": True})
        except TimeoutError as error:
            raise ClientGone("The client has stopped reading.") from error

    async def ping(self, every_s: float, ping: bytes) -> None:
        while True:
            self._silent = True
            await asyncio.sleep(every_s)
            if self._silent:
                await self.put(ping)
