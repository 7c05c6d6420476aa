"""Half of many requests end early, at any moment and in any way: the others are whole, the next one
is answered, and the engine, the host and the server hold exactly what they held before.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from hearth.backends.contract.loaded import EngineStats
from hosts import wait_until
from served import Served, served

AT_ONCE = 8
TOKENS = 40
STATIC = {"HEARTH_KV_POOL": "static", "HEARTH_MAX_SESSIONS": "6", "HEARTH_MAX_WAITING": "64"}
WORDS = "the model reads tokens and a fox tells stories about stars rivers bread and old clocks"
DONE = b"0\r\n\r\n"
"""The end of a stream; one that failed has none."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close without waiting, so that the other end sees a reset."""

Open = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def story(moments: random.Random, words: int) -> str:
    """A prompt that nobody has asked before."""
    return " ".join(moments.choices(WORDS.split(), k=words))


def chat(text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": stream,
    }


def several(text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    path, body = chat(text, stream=stream)
    return path, {**body, "n": 3}


def completion(text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {
        "prompt": [text, text[::-1]],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": stream,
    }


def message(text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
    return "/v1/messages", {
        "messages": [{"role": "user", "content": [block]}],
        "max_tokens": TOKENS,
        "stream": stream,
    }


def response(text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {"input": text, "max_output_tokens": TOKENS, "stream": stream}


def ollama(text: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    return "/api/generate", {
        "prompt": text,
        "options": {"num_predict": TOKENS},
        "stream": stream,
    }


FAMILIES = (chat, several, completion, message, response, ollama)


@dataclass
class Storm:
    """Clients of one server, each over a connection of its own."""

    server: Served
    moments: random.Random
    deaf: list[asyncio.StreamWriter] = field(default_factory=list)
    """Connections that nobody reads; they stay open."""

    def asked(self, words: int, *, stream: bool) -> bytes:
        """A request to one of the families."""
        family = self.moments.choice(FAMILIES)
        path, body = family(story(self.moments, words), stream=stream)
        data = json.dumps({**body, "model": "guide", "keep_alive": -1}).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.server.port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def connect(self) -> Open:
        return await asyncio.open_connection("127.0.0.1", self.server.port, limit=1 << 20)

    async def begun(self, *, words: int = 12, stream: bool = True) -> Open:
        """A connection over which a request was sent."""
        reader, writer = await self.connect()
        writer.write(self.asked(words, stream=stream))
        return reader, writer

    async def whole(self) -> None:
        """Wait for the end of an answer; fails if there is none."""
        stream = self.moments.random() < 0.7
        reader, writer = await self.begun(stream=stream)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        if stream:
            await reader.readuntil(DONE)
        else:
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            assert json.loads(await reader.readexactly(length))
        writer.close()

    async def in_the_head(self) -> None:
        await self._sent_in_part(60)

    async def in_the_body(self) -> None:
        await self._sent_in_part(-20)

    async def _sent_in_part(self, size: int) -> None:
        _, writer = await self.connect()
        writer.write(self.asked(20, stream=True)[:size])
        await writer.drain()
        writer.close()

    async def before_the_answer(self) -> None:
        _, writer = await self.begun(stream=self.moments.random() < 0.5)
        for _ in range(self.moments.randrange(200)):
            await asyncio.sleep(0)
        writer.close()

    async def in_the_prefill(self) -> None:
        reader, writer = await self.begun(words=700)
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1)
        writer.close()

    async def in_the_stream(self) -> None:
        _, writer = await self._into_the_stream()
        writer.close()

    async def by_a_reset(self) -> None:
        _, writer = await self._into_the_stream()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    async def half_open(self) -> None:
        """Says that it sends no more; then it is as good as gone."""
        reader, writer = await self._into_the_stream()
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def _into_the_stream(self) -> Open:
        reader, writer = await self.begun()
        for _ in range(self.moments.randint(1, 25)):
            if await reader.readuntil(b"\n") == b"0\r\n":
                break  # It was a short answer.
        return reader, writer

    async def without_reading(self) -> None:
        _, writer = await self.begun(stream=self.moments.random() < 0.8)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        self.deaf.append(writer)

    async def rage(self, count: int) -> None:
        """`count` requests, `AT_ONCE` of them at the same time; every second one ends early."""
        ways: tuple[Callable[[], Awaitable[None]], ...] = (
            self.in_the_head,
            self.in_the_body,
            self.before_the_answer,
            self.in_the_prefill,
            self.in_the_stream,
            self.by_a_reset,
            self.half_open,
            self.without_reading,
        )
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with turn:
                await (self.whole if number % 2 else ways[number // 2 % len(ways)])()

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(one(number))

    def hang_up(self) -> None:
        for writer in self.deaf:
            writer.transport.abort()


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(STATIC) as one:
        yield one


def answered_s(server: Served) -> float:
    """Seconds until the right answer to a question."""
    began = time.monotonic()
    answer = server.openai.chat.completions.create(
        model="guide", messages=[{"role": "user", "content": "What is a token?"}], temperature=0
    )
    assert "token" in (answer.choices[0].message.content or "")
    return time.monotonic() - began


async def forgetful(server: Served) -> EngineStats:
    """The figures of the quiet engine after it has forgotten every kept prefix."""
    await server.quiet_engine("guide")
    server.http.delete("/v1/cache").raise_for_status()
    return await server.quiet_engine("guide")


def memory_of(engine: EngineStats) -> tuple[int, ...]:
    """Everything that is held, and room."""
    return (
        engine.running,
        engine.waiting,
        engine.live_tokens,
        engine.kept_tokens,
        engine.kept_prefixes,
        engine.pinned_tokens,
        engine.allocated_tokens,
        engine.pool_tokens,
    )


def open_files(server: Served) -> list[int]:
    """How many each of the server's processes has open."""
    processes = [psutil.Process(server.process.pid), *server.family]
    return [process.num_fds() for process in processes]


def endure(server: Served, count: int, seed: int) -> float:
    """Run a storm of `count` requests; seconds until the next one is answered."""
    answered_s(server)
    before = asyncio.run(forgetful(server))
    files = open_files(server)
    storm = Storm(server, random.Random(seed))

    async def main() -> float:
        await storm.rage(count)
        try:
            return await asyncio.to_thread(answered_s, server)
        finally:
            storm.hang_up()

    next_s = asyncio.run(main())
    after = asyncio.run(forgetful(server))
    assert memory_of(after) == memory_of(before)
    assert memory_of(after)[:6] == (0, 0, 0, 0, 0, 0)
    assert after.allocated_tokens == after.pool_tokens
    worker = asyncio.run(server.worker("guide"))
    assert (worker.running, worker.waiting, worker.restarts) == (0, 0, 0)
    metrics = server.http.get("/metrics", headers={"accept": "application/json"}).json()
    assert metrics["requests_running"] == 0 < metrics["requests_cancelled"]
    assert metrics["requests_failed"] == metrics["requests_refused"] == 0
    # Connections of this test itself may still be closing, now as well as before.
    wait_until(
        lambda: all(now <= then for now, then in zip(open_files(server), files, strict=True))
    )
    return next_s


def test_requests_that_end_early_leave_nothing_behind(server) -> None:
    endure(server, 60, seed=6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_requests_half_of_them_cancelled(server) -> None:
    assert endure(server, 1000, seed=7) < 1.0
