"""One client's connection: uvicorn's, with limits on time, numbers and what is read ahead."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any, Final, Literal

import h11
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from hearth.app.server import limits
from hearth.app.server.errors import error_response
from hearth.app.server.limits import (
    MalformedRequest,
    RequestTimeout,
    TooManyConnections,
    headers_too_large,
)
from hearth.app.server.outgoing import Outgoing
from hearth.backends.errors import HearthError

SEND_BUFFER_BYTES: Final = 256 << 10
"""What the system keeps for a client that does not read; by itself it would grow to megabytes, and
a client that stopped reading would be noticed late.
"""
_GONE_AFTER_MS: Final = 60_000
_KEEPALIVE: Final = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPALIVE", 30),  # macOS's name of the same
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", _GONE_AFTER_MS),
)
"""A client that vanished without a word is noticed within a minute, whether or not we write."""
_CLOSE: Final = (b"connection", b"close")

Awaited = Literal["head", "body"]


class Reader(h11.Connection):
    """h11's, without bodies in crumbs."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, limits.MOST_HEAD_BYTES)
        self._pieces = 0
        self._body_bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11 has it.

        Raises:
            RemoteProtocolError: as h11's, or the body comes in too many pieces.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = self._body_bytes = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            self._body_bytes += len(event.data)
            wanted = (self._pieces - limits.FREE_PIECES) * limits.LEAST_PIECE_BYTES
            if self._body_bytes < wanted:
                raise h11.RemoteProtocolError("the body comes in too many pieces")
        return event


class Connection(H11Protocol):
    """One client.

    - Head and body must arrive in time, whatever else is sent meanwhile.
    - One request at a time: what follows a request before its answer is not read, and the
      connection is closed after the answer. So no request hides in another.
    - What cannot be read as HTTP is answered with an error such as any other.
    - Head and body of an answer go out together, unless the body comes later.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = Reader()
        self._application = self.app
        self.app = self._answer
        self._outgoing: Outgoing
        self._awaited: Awaited | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._read_ahead = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        self._outgoing = Outgoing(transport)
        super().connection_made(self._outgoing)
        _tune(transport.get_extra_info("socket"))
        most = limits.most_connections()
        if len(self.connections) > most:
            self._refuse(
                TooManyConnections(
                    f"There are {most} connections already.", "Ask again soon.", retry_after_s=1
                )
            )
            return
        self._watch()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application's answer to one request, in as few writes as it can be."""
        outgoing = self._outgoing

        async def joined(message: Message) -> None:
            outgoing.hold()
            try:
                await send(message)
            finally:
                if message["type"] == "http.response.start":
                    # A body that is there already is sent in this turn of the loop, and joins the
                    # head; no client waits for the head of one that is not.
                    self.loop.call_soon(outgoing.release)
                else:
                    outgoing.release()

        await self._application(scope, receive, joined)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        if self._read_ahead or self.transport.is_closing():
            return
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        arrived = self.conn.their_state not in (h11.IDLE, h11.SEND_BODY)
        if answering and arrived and self.conn.trailing_data[0]:
            self._read_ahead = True
            self.cycle.keep_alive = False
            self.flow.resume_reading()  # else it would not be noticed that the client leaves
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP; called while h11's error is handled."""
        error = sys.exception()
        too_large = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431
        self._refuse(
            headers_too_large()
            if too_large
            else MalformedRequest("This is not HTTP as it is read here.", "Check what is sent.")
        )

    def _watch(self) -> None:
        """See to it that what the client has begun to send comes to its end."""
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
            self.transport.close()  # It never said anything.
            return
        self._refuse(
            RequestTimeout(f"The {awaited} of the request did not arrive in time.", "Send it anew.")
        )

    def _refuse(self, error: HearthError) -> None:
        """Answer with `error` if nothing was answered yet, and close the connection."""
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
    """Send at once what is written, and notice soon when the client is away or reads nothing."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if client.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # asyncio does so only for sockets that name their protocol, which accepted ones do not: the
    # body of an answer would wait 40 ms for the client to acknowledge its head.
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            client.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
