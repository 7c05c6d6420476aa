"""A server that streams like OpenAI's, from a script, on its own loopback port."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeOpenAI:
    """The scripted answers, and the requests that came.

    Attributes:
        pieces: pieces of text of each answer.
        usage: number to report as `completion_tokens` in a last chunk; None: no such chunk.
        status: of each answer; any status but 200 comes with an error object.
        fault: "cut" closes the connection after the text, "error" sends an error object there,
            "silent end" sends [DONE] without a finish_reason, "noise" sends a chunk that is not
            JSON.
        requests: (path, headers, body) of each POST.
        most: highest number of streams that were open at the same time.
    """

    pieces: int = 3
    usage: int | None = None
    status: int = 200
    fault: str = ""
    models: tuple[str, ...] = ("fake-model",)
    url: str = ""
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    most: int = 0
    _open: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, which has one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if method == "GET":
                data = {"data": [{"id": name} for name in self.models]}
                self._send(writer, 200, "application/json", json.dumps(data))
            else:
                self.requests.append((path, headers, json.loads(body)))
                await self._stream(writer, path)
            await writer.drain()
        finally:
            writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, path: str) -> None:
        if self.status != 200:
            error = {"error": {"message": "no such thing", "code": "nope"}}
            self._send(writer, self.status, "application/json", json.dumps(error))
            return
        self._open += 1
        self.most = max(self.most, self._open)
        self._send(writer, 200, "text/event-stream", ": hello\n\n")
        chat = path.endswith("/chat/completions")
        if chat:
            self._event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for _ in range(self.pieces):
            choice = {"delta": {"content": "word "}} if chat else {"text": "word "}
            self._event(writer, {"choices": [choice]})
            await writer.drain()
            await asyncio.sleep(0)
        self._end(writer)
        self._open -= 1

    def _end(self, writer: asyncio.StreamWriter) -> None:
        if self.fault == "cut":
            return
        if self.fault == "error":
            self._event(writer, {"error": {"message": "it fell over"}})
            return
        if self.fault == "noise":
            writer.write(b"data: {nonsense\n\n")
            return
        if self.fault != "silent end":
            self._event(writer, {"choices": [{"delta": {}, "finish_reason": "length"}]})
        if self.usage is not None:
            usage = {
                "prompt_tokens": 40,
                "completion_tokens": self.usage,
                "prompt_tokens_details": {"cached_tokens": 16},
            }
            self._event(writer, {"choices": [], "usage": usage})
        writer.write(b"data: [DONE]\n\n")

    @staticmethod
    def _send(writer: asyncio.StreamWriter, status: int, kind: str, body: str) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())

    @staticmethod
    def _event(writer: asyncio.StreamWriter, value: dict[str, Any]) -> None:
        writer.write(f"data: {json.dumps(value)}\n\n".encode())


@contextmanager
def serving(**script: Any) -> Iterator[FakeOpenAI]:
    """A `FakeOpenAI` that listens in a thread until the block ends; `url` is its base URL."""
    fake = FakeOpenAI(**script)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(fake.handle, "127.0.0.1", 0))
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    thread = threading.Thread(target=loop.run_forever, name="fake-openai")
    thread.start()
    try:
        yield fake
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
