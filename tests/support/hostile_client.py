"""Sends mutated requests to a running server over a few connections, and checks every answer."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from mutated import Asked, request

HEADERS_S = 10.0
"""Maximum time from the last byte of a request to the headers of its answer."""
PATIENCE_S = 120.0
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(frozen=True)
class Answered:
    """One answer.

    Attributes:
        headers_s: from the last byte of the request to the end of the headers.
        wrong: the fault, such as a status of 500; empty: none.
    """

    index: int
    asked: Asked
    status: int
    headers_s: float
    wrong: str
    beginning: str

    @property
    def is_late(self) -> bool:
        """Did its headers take more than `HEADERS_S`?"""
        return self.headers_s > HEADERS_S


@dataclass
class Outcome:
    """The outcome of all requests."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By route family and status."""
    slowest: list[Answered] = field(default_factory=list)
    violations: list[Answered] = field(default_factory=list)
    late: list[Answered] = field(default_factory=list)
    left: int = 0
    """Streams that the client closed before their end."""

    def note(self, answered: Answered) -> None:
        self.statuses[family(answered.asked.target), answered.status] += 1
        self.slowest.append(answered)
        if len(self.slowest) > 100:
            self._cut()
        if answered.wrong:
            self.violations.append(answered)
        if answered.is_late:
            self.late.append(answered)

    def _cut(self) -> None:
        self.slowest = sorted(self.slowest, key=lambda one: -one.headers_s)[:10]

    def end(self) -> Outcome:
        self._cut()
        return self


def family(target: str) -> str:
    """The path up to the name of a model or a file."""
    path = re.sub(r"[?%].*", "", target)
    return re.sub(r"^((?:/v1)?/models|/api/blobs)/.*", r"\1/...", path)[:40]


async def bombard(
    port: int,
    seed: int,
    indices: range,
    connections: int = 4,
    progress: Callable[[Answered, Outcome], None] | None = None,
) -> Outcome:
    """Send the requests with these `indices`, and check the answers.

    Args:
        progress: called after each answer.

    Raises:
        TimeoutError: no complete answer in `PATIENCE_S`.
    """
    outcome = Outcome()
    pending = iter(indices)

    async def loop() -> None:
        client = _Client(port)
        for index in pending:
            asked = request(seed, index)
            answered = await client.ask(index, asked)
            outcome.left += answered.asked.leaves
            outcome.note(answered)
            if progress is not None:
                progress(answered, outcome)
        client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(loop())
    return outcome.end()


class _Client:
    """One connection, reopened when the server or the client closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
        self._open = None

    async def ask(self, index: int, asked: Asked) -> Answered:
        status, headers_s, wrong, content = 0, 0.0, "", b""
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._open is None:
                    self._open = await asyncio.open_connection(
                        "127.0.0.1", self._port, limit=1 << 26
                    )
                reader, writer = self._open
                writer.write(asked.head(self._port) + asked.body)
                await writer.drain()
                sent = time.perf_counter()
                head = await reader.readuntil(b"\r\n\r\n")
                headers_s = time.perf_counter() - sent
                status, headers = _parsed(head)
                if asked.leaves:
                    self.close()
                else:
                    content = await _content(reader, asked.method, status, headers)
                    wrong = _judged(asked, status, headers, content)
                wrong = _bad_status(status, headers) or wrong
                if headers.get("connection") == "close":
                    self.close()
        except TimeoutError:
            wrong = f"no complete answer within {PATIENCE_S:.0f} s"
            self.close()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            wrong = f"the connection ended: {error}"
            self.close()
        beginning = content[:500].decode(errors="replace")
        return Answered(index, asked, status, headers_s, wrong, beginning)


def _parsed(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    pairs = (line.split(":", 1) for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, value in pairs}


async def _content(
    reader: asyncio.StreamReader, method: str, status: int, headers: dict[str, str]
) -> bytes:
    if method == "HEAD" or status in (204, 304):
        return b""
    if headers.get("transfer-encoding") == "chunked":
        found = bytearray()
        while size := int(await reader.readuntil(b"\r\n"), 16):
            found += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
        return bytes(found)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read()


def _bad_status(status: int, headers: dict[str, str]) -> str:
    if status in (500, 502, 504):
        return f"status {status}"
    if status == 503 and "retry-after" not in headers:
        return "status 503 without Retry-After"
    return ""


def _judged(asked: Asked, status: int, headers: dict[str, str], content: bytes) -> str:
    """The fault of the answer as a whole."""
    if asked.method == "HEAD" or not content:
        return ""
    kind = headers.get("content-type", "").partition(";")[0]
    try:
        text = content.decode()
        if kind == "application/json":
            json.loads(text)
        elif kind == "application/x-ndjson":
            last = json.loads(text.strip().rpartition("\n")[2])
            if not (last.get("done") or "error" in last or last.get("status") == "success"):
                return "the stream has no last line"
        elif kind == "text/event-stream" and not _is_ended(text):
            return "the stream has no last event"
    except ValueError as error:
        return f"the answer is not {kind}: {error}"
    return ""


def _is_ended(text: str) -> bool:
    events = [event for event in text.split("\n\n") if event.strip()]
    last = events[-1] if events else ""
    data = last.partition("data: ")[2]
    if data.strip() == "[DONE]":
        return True
    found = json.loads(data or "null")
    if not isinstance(found, dict):
        return False
    kind = found.get("type", "")
    return kind in ("message_stop", "error", *_LAST_EVENTS) or "error" in found
