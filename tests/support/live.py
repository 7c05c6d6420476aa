"""An application behind the real server, in the event loop of the test, and clients that send it
raw bytes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hearth.app.server.listening import listen
from hearth.app.server.running import Server

GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
PATIENCE_S = 20


@dataclass
class Live:
    """A running server."""

    server: Server
    port: int
    serving: asyncio.Task[None]

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, **options)

    async def exchange(self, *pieces: bytes) -> bytes:
        """Send `pieces`, and return everything that comes back until the server closes."""
        reader, writer = await self.connect()
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await until_closed(reader)
        finally:
            writer.close()

    def sockets(self) -> list[Any]:
        """The server's ends of its connections."""
        found = self.server.server_state.connections
        return [connection.transport.get_extra_info("socket") for connection in found]


@asynccontextmanager
async def live(app: Any, more: Sequence[socket.socket] = ()) -> AsyncIterator[Live]:
    """Serve `app` on a free port and on the listeners `more`; stop at once when the block ends."""
    ready = asyncio.Event()

    async def beside() -> None:
        ready.set()

    with listen("127.0.0.1", 0) as listener:
        server = Server(app, app.state.services.state)
        port = listener.getsockname()[1]
        serving = asyncio.create_task(server.serve_on([listener, *more], beside()))
        await ready.wait()
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield Live(server, port, serving)
        finally:
            server.end(at_once=True)
            await serving


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """The remaining bytes, also when the connection is reset."""
    found = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            while piece := await reader.read(1 << 16):
                found += piece
    except ConnectionResetError:
        pass
    return bytes(found)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one answer of known length, the connection left open."""
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(first.split()[1]), headers, body


async def when(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.001)


def statuses(answered: bytes) -> list[int]:
    """The status of each answer in `answered`."""
    return [int(part[:3]) for part in answered.split(b"HTTP/1.1 ")[1:]]
