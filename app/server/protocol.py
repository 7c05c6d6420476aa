"""The connection of one client: uvicorn's, with limits on times, connections and read-ahead."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final, Literal, cast

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from hearth.app.server import limits
from hearth.app.server.errors import ClientGone, error_response
from hearth.app.server.limits import (
    MalformedRequest,
    RequestTimeout,
    TooManyConnections,
    headers_too_large,
)
from hearth.backends.errors import HearthError

SEND_BUFFER_BYTES: Final = 256 << 10
"""Size of a connection's send buffer.

The system's default grows to megabytes, so that a client that has stopped reading would be noticed
late.
"""
_GONE_AFTER_MS: Final = 60_000
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPALIVE", 30),  # macOS's name of TCP_KEEPIDLE
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", _GONE_AFTER_MS),
)
"""A client that vanished without closing its connection is noticed within a minute."""
_CLOSE: Final = (b"connection", b"close")

_MOST_HELD_BYTES: Final = 64 << 10
"""Maximum amount of data that is held back to be sent in one packet with the data after it."""
STREAMED_BODY: Final = "hearth.streamed_body"
"""The ASGI extension with the `StreamedBody` of a request's response."""

Awaited = Literal["head", "body"]


class Outgoing:
    """A client's transport that can hold back what is written.

    This sends the head and the body of a response as one packet. All other methods are those of
    `transport`.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.holding = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def hold(self) -> None:
        """Hold back what is written until `release`, or until it exceeds `_MOST_HELD_BYTES`."""
        self.holding = True

    def release(self) -> None:
        """Write what was held back as one piece, and stop holding back."""
        self.holding = False
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            if not self._transport.is_closing():
                self._transport.write(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write `data`, at once or at the next `release`."""
        if self.holding:
            self._held.append(bytes(data))
            self._held_bytes += len(data)
            if self._held_bytes > _MOST_HELD_BYTES:
                self.release()
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close after everything has been sent."""
        self.release()
        self._transport.close()


class Releases:
    """Releases all transports of a server that hold data back.

    One callback in the next iteration of the event loop releases them all: one callback for each
    would cost as much as writing a token.
    """

    def __init__(self) -> None:
        self._holding: list[Outgoing] = []

    def soon(self, outgoing: Outgoing, loop: asyncio.AbstractEventLoop) -> None:
        """Hold back what is written to `outgoing` until the next iteration of the event loop."""
        outgoing.holding = True
        if not self._holding:
            loop.call_soon(self._release)
        self._holding.append(outgoing)

    def _release(self) -> None:
        holding, self._holding = self._holding, []
        for outgoing in holding:
            outgoing.release()


class StreamedBody:
    """The body of a response whose parts are written as they are generated.

    It replaces ASGI's `send` for the parts, because `send` takes a coroutine in each layer of the
    application and a copy in h11, which costs more than generating a token. The head and the end
    of a response are sent with `send`. Parts written in one iteration of the event loop are sent
    as one packet.

    Args:
        cycle: the request and its response.
        in_chunks: whether the body has the chunked transfer coding (RFC 9112, 7.1), as h11 sends it
            to clients of HTTP/1.1; otherwise the body ends when the connection is closed.

    Attributes:
        writes: number of calls of `write`.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        cycle: RequestResponseCycle,
        loop: asyncio.AbstractEventLoop,
        releases: Releases,
        *,
        in_chunks: bool,
    ) -> None:
        self._outgoing = outgoing
        self._releases = releases
        self._cycle = cycle
        self._flow = cycle.flow
        self._loop = loop
        self._in_chunks = in_chunks
        self.writes = 0

    def write(self, part: bytes) -> None:
        """Send `part`; does nothing before the head, after the end, or if the client is gone."""
        self.writes += 1
        cycle, outgoing = self._cycle, self._outgoing
        if not part or cycle.disconnected or cycle.response_complete or not cycle.response_started:
            return
        if not outgoing.holding:
            self._releases.soon(outgoing, self._loop)
        outgoing.write(b"%x\r\n%b\r\n" % (len(part), part) if self._in_chunks else part)

    @property
    def is_full(self) -> bool:
        """Whether the client reads more slowly than parts are written; `drained` then waits."""
        return self._flow.write_paused

    async def drained(self) -> None:
        """Wait until the client has read most of what was written.

        Raises:
            ClientGone: the client has disconnected.
        """
        await self._flow.drain()
        if self._cycle.disconnected:
            raise ClientGone("The client disconnected.")


class Reader(h11.Connection):
    """An h11 connection that refuses bodies with too many small chunks."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, limits.MOST_HEAD_BYTES)
        self._pieces = 0
        self._body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """The next event; see `h11.Connection`.

        Raises:
            RemoteProtocolError: as `h11.Connection`, or the body has too many chunks.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._body_bytes += len(event.data)
            wanted = (self._pieces - limits.FREE_PIECES) * limits.LEAST_PIECE_BYTES
            if self._body_bytes < wanted:
                raise h11.RemoteProtocolError("the body has too many small chunks")
        return event


class Connection(H11Protocol):
    """The connection of one client.

    - Head and body of a request must arrive in time.
    - One request at a time: data after a request is not read before its response, and the
      connection is closed after the response, which prevents request smuggling.
    - A request that is not HTTP gets an error response like any other.
    - Head and body of a response are sent together, unless the body is available later.
    - A client that reads nothing of its response for `limits.STALL_S` is disconnected.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        releases: Releases,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._releases = releases
        self.conn = Reader()
        self._application = self.app
        self.app = self._answer
        self._outgoing: Outgoing
        self._awaited: Awaited | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._read_ahead = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outgoing = Outgoing(transport)
        super().connection_made(cast(asyncio.Transport, self._outgoing))
        _tune(transport.get_extra_info("socket"))
        most = limits.most_connections()
        if len(self.connections) > most:
            self._refuse(
                TooManyConnections(
                    f"The server has {most} connections, which is its limit.",
                    "Try again soon, or close idle connections.",
                    retry_after_s=1,
                )
            )
            return
        self._watch()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application for one request, with as few writes as possible."""
        outgoing = self._outgoing
        in_chunks = scope["http_version"] == "1.1"
        body = StreamedBody(outgoing, self.cycle, self.loop, self._releases, in_chunks=in_chunks)
        scope["extensions"] = {STREAMED_BODY: body}

        async def joined(message: Message) -> None:
            outgoing.hold()
            try:
                await send(message)
            finally:
                if message["type"] == "http.response.start":
                    # A body that is available now is sent in this iteration of the event loop,
                    # together with the head; otherwise the head is sent alone.
                    self.loop.call_soon(outgoing.release)
                else:
                    outgoing.release()

        await self._application(scope, receive, joined)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._check_stalled(sys.maxsize)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_stall_timer()

    def _check_stalled(self, unread_bytes: int) -> None:
        """Disconnect the client if it has read nothing since `unread_bytes` were left to read.

        Otherwise check again later.
        """
        before, unread_bytes = unread_bytes, self.transport.get_write_buffer_size()
        if unread_bytes >= before:
            self.transport.abort()
            return
        later = self.loop.call_later(limits.STALL_S, self._check_stalled, unread_bytes)
        self._stall_timer = later

    def _end_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_stall_timer()
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._read_ahead or self.transport.is_closing():
            return
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        arrived = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if answering and arrived and self.conn.trailing_data[0]:
            self._read_ahead = True
            self.cycle.keep_alive = False
            self.flow.resume_reading()  # Otherwise a disconnect would not be noticed.
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Respond to a request that is not HTTP; called while h11's error is handled."""
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431
        self._refuse(
            headers_too_large()
            if too_large
            else MalformedRequest(
                f"The request is not valid HTTP: {str(error)[:200]}.",
                "Send plain HTTP, without TLS, as in RFC 9112.",
            )
        )

    def _watch(self) -> None:
        """Set the time limit for what the client has begun to send."""
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            self._await("body")
        elif state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            self._await("head")
        else:
            self._await(None)

    def _await(self, awaited: Awaited | None) -> None:
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if awaited is not None:
            after_s = limits.HEAD_S if awaited == "head" else limits.BODY_S
            self._timer = self.loop.call_later(after_s, self._too_late, awaited)

    def _too_late(self, awaited: Awaited) -> None:
        if awaited == "head" and not self.conn.trailing_data[0]:
            self.transport.close()  # Nothing was sent.
            return
        self._refuse(
            RequestTimeout(
                f"The {awaited} of the request did not arrive in time.", "Send the request again."
            )
        )

    def _refuse(self, error: HearthError) -> None:
        """Respond with `error` if no response was sent yet, and close the connection."""
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_response(error, self.scope["path"] if answering else "")
            events: list[h11.Event] = [
                h11.Response(
                    status_code=response.status_code, headers=[*response.raw_headers, _CLOSE]
                )
            ]
            if not (answering and self.scope["method"] == "HEAD"):
                events.append(h11.Data(data=bytes(response.body)))
            events.append(h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()


def _tune(client: socket.socket) -> None:
    """Disable Nagle's algorithm, limit the send buffer and enable keep-alive probes."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if client.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # asyncio sets TCP_NODELAY only for sockets with an explicit protocol, which accepted ones lack:
    # the body of a response would wait 40 ms for the acknowledgement of its head.
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
