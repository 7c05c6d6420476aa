"""A scripted server that answers like OpenAI's, or breaks off in any way; and helpers that call it
through a `RemoteBackend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from hearth.backends.contract.events import Event, Failed
from hearth.backends.contract.models import ModelSpec
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError, from_info
from hearth.backends.remote.backend import RemoteBackend, RemoteBackends
from hearth.backends.remote.server import RemoteServer

VLLM = {"id": "big", "object": "model", "owned_by": "vllm", "max_model_len": 32768}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Reply:
    """How one request is answered.

    Attributes:
        body: sent in these pieces.
        how: "whole" ends the body properly, "cut" closes the connection in its middle, "hold" sends
            no more and waits for the client to disconnect, "none" does so without a first byte.
        piece_bytes: send this many bytes at a time; 0: each piece at once.
    """

    body: tuple[bytes, ...] = ()
    status: int = 200
    kind: str = "text/event-stream"
    headers: tuple[tuple[str, str], ...] = ()
    how: str = "whole"
    piece_bytes: int = 0


def data(value: Any) -> bytes:
    """One event."""
    return f"data: {json.dumps(value)}\n\n".encode()


def delta(index: int = 0, reason: str | None = None, **fields: Any) -> bytes:
    """A chunk of a chat."""
    choice = {"index": index, "delta": fields, "finish_reason": reason}
    return data({"choices": [choice]})


def usage(prompt: int = 7, completion: int = 2, **more: Any) -> bytes:
    """The chunk with the usage."""
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, **more}
    return data({"choices": [], "usage": counted})


def answer(value: Any, status: int = 200, **more: Any) -> Reply:
    """A JSON answer."""
    return Reply((json.dumps(value).encode(),), status, "application/json", **more)


HELLO = Reply((delta(content="Hi"), delta(content=" you"), delta(reason="stop"), usage(), DONE))


@dataclass
class FakeRemote:
    """The scripted answers, and the requests that came.

    Attributes:
        models: the objects of its list of models; None: it has no list.
        replies: by path; of several replies to one path the last is repeated.
        requests: (path, headers, body) of each request except those for the list.
    """

    replies: dict[str, list[Reply]]
    models: tuple[dict[str, Any], ...] | None = (VLLM,)
    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    listings: int = 0
    connections: int = 0
    holding: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    """Set while an answer is held, and when the client has left one."""

    @property
    def asked(self) -> Any:
        """The body of the last request."""
        return self.requests[-1][2]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._exchange(reader, writer):
                pass
        writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        _, path, _ = first.split(" ")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        if path == "/v1/models" and path not in self.replies:
            self.listings += 1
            missing = answer({"detail": "Not Found"}, 404)
            listed = {"object": "list", "data": list(self.models or ())}
            return await self._send(
                reader, writer, missing if self.models is None else answer(listed)
            )
        self.requests.append((path, headers, json.loads(body) if body else None))
        replies = self.replies.get(path) or [answer({"detail": "Not Found"}, 404)]
        return await self._send(reader, writer, replies.pop(0) if len(replies) > 1 else replies[0])

    async def _send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reply: Reply
    ) -> bool:
        if reply.how == "none":
            return await self._hold(reader)
        head = [f"HTTP/1.1 {reply.status} X", f"Content-Type: {reply.kind}"]
        head += ["Transfer-Encoding: chunked", *(f"{k}: {v}" for k, v in reply.headers)]
        writer.write("\r\n".join((*head, "", "")).encode())
        for piece in reply.body:
            size = reply.piece_bytes or len(piece)
            for start in range(0, len(piece), size):
                part = piece[start : start + size]
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
        if reply.how == "hold":
            return await self._hold(reader)
        if reply.how == "whole":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        return False

    async def _hold(self, reader: asyncio.StreamReader) -> bool:
        self.holding.set()
        await reader.read()
        self.left.set()
        return False


@contextmanager
def listening(handle: Callable[..., Any]) -> Iterator[str]:
    """Serve connections to a loopback port with `handle`, in a thread, until the block ends; yields
    host:port.
    """
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="fake remote")
    thread.start()
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def serving(
    replies: dict[str, list[Reply] | Reply] | Reply = HELLO, **more: Any
) -> Iterator[FakeRemote]:
    """A `FakeRemote` that listens until the block ends; a single reply answers every chat."""
    if isinstance(replies, Reply):
        replies = {CHAT: replies, COMPLETIONS: replies}
    scripted = {
        path: [reply] if isinstance(reply, Reply) else reply for path, reply in replies.items()
    }
    fake = FakeRemote(scripted, **more)
    with listening(fake.handle) as address:
        fake.url = f"http://{address}/v1"
        yield fake


def remote(url: str, **more: Any) -> RemoteServer:
    """The server at `url`, as declared in settings."""
    return RemoteServer("cluster", url, **{"timeout_s": 20.0, **more})


def using(
    server: RemoteServer, work: Callable[[RemoteBackend], Any], spec: ModelSpec | None = None
) -> Any:
    """The result of `work` for the backend of `server`, in its own event loop."""
    spec = spec or ModelSpec(server.url, server.name, "remote")

    async def run() -> Any:
        backends = RemoteBackends({server.name: server})
        try:
            return await work(backends.backend(spec))
        finally:
            await backends.close()

    return asyncio.run(run())


def events_of(server: RemoteServer, request: Request) -> list[Event]:
    """All events of one request."""

    async def work(backend: RemoteBackend) -> list[Event]:
        async with aclosing(backend.generate(request)) as events:
            return [event async for event in events]

    found: list[Event] = using(server, work)
    return found


def error_of(server: RemoteServer, request: Request) -> HearthError:
    """The error that a request fails with."""
    *_, last = events_of(server, request)
    assert isinstance(last, Failed), last
    return from_info(last.error)
