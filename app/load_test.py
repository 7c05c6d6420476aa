"""Streaming clients for an OpenAI-style server, which measure latency and throughput.

Time to first token runs from sending a request to its first piece of text; inter-token latency is
the time between consecutive pieces of the same stream.
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from hearth.app.answer import Answer
from hearth.backends.contract.events import Token, Usage
from hearth.backends.contract.requests import Request
from hearth.backends.errors import HearthError
from hearth.backends.remote.chunks import ChunkReader
from hearth.backends.remote.connection import Connection
from hearth.backends.remote.errors import RemoteUnreachable
from hearth.backends.remote.models import list_models
from hearth.backends.remote.server import RemoteServer
from hearth.backends.remote.server import is_loopback as is_loopback_host

Api = Literal["chat", "completions"]

_PATHS: dict[Api, str] = {"chat": "/chat/completions", "completions": "/completions"}
_WORDS = (
    "river stone window garden letter morning engine paper harbour silver forest bridge lamp winter"
    " orange ticket market shadow copper island"
).split()


class NetworkTrouble(HearthError):
    """A server cannot be reached, or does not answer as an OpenAI-style server does."""

    code = "network"
    exit_code = 5


@dataclass(frozen=True, slots=True)
class Target:
    """A server and its API; `base` is e.g. "http://127.0.0.1:4242/v1"."""

    base: str
    api: Api
    model: str
    api_key: str = ""

    @property
    def url(self) -> str:
        """The URL of requests."""
        return self.base + _PATHS[self.api]


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of the clients.

    Attributes:
        prompt_words: length of each prompt in words, which is about as many tokens.
        shared_words: number of words at the beginning that all prompts share.
        ignore_eos: ask for exactly `gen_tokens` tokens, an extension that many servers support and
            OpenAI's do not.
    """

    requests: int
    prompt_words: int
    gen_tokens: int
    shared_words: int = 0
    ignore_eos: bool = False


@dataclass(slots=True)
class Call:
    """One request and its answer; times are those of `answer.clock`.

    Attributes:
        gaps_s: seconds between consecutive pieces of text.
    """

    answer: Answer = field(default_factory=lambda: Answer(clock=time.perf_counter))
    ended_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        """Seconds from sending the request to the first piece of text."""
        first_s = self.answer.first_s
        return None if first_s is None else first_s - self.answer.began_s

    @property
    def counted(self) -> Usage | None:
        """The server's token counts; None if it sent none."""
        finished = self.answer.finished
        return finished.usage if finished and finished.usage.prompt_tokens else None

    @property
    def tokens(self) -> int:
        """Number of generated tokens: the server's count, else one per piece."""
        pieces = 0 if self.answer.first_s is None else len(self.gaps_s) + 1
        return self.counted.completion_tokens if self.counted else pieces


@dataclass(frozen=True, slots=True)
class Served:
    """The results of `concurrency` clients. Times in seconds; None if no text arrived.

    Attributes:
        errors: each error and how often it occurred.
        tok_per_s: generated tokens of all clients, divided by the seconds from the first request to
            the end of the last answer.
        prompt_tokens: median of the server's counts.
    """

    concurrency: int
    requests: int
    failed: int
    errors: dict[str, int]
    generated_tokens: int
    tok_per_s: float
    counted_by: Literal["server", "pieces"]
    prompt_tokens: float | None
    cached_tokens: int | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    itl_p99_s: float | None


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value that `percent` % of `values` do not exceed, interpolated; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = ordered[math.floor(place)]
    return below + (ordered[math.ceil(place)] - below) * (place % 1)


def parse_url(url: str) -> tuple[str, Api]:
    """(base, API) of a typed URL: a host, a base such as ".../v1", or a complete endpoint.

    Raises:
        NetworkTrouble: it is not an http URL.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NetworkTrouble(f"{url} is not an http address.", "Such as http://127.0.0.1:4242/v1.")
    path = parts.path.rstrip("/")
    api: Api = "completions"
    if path.endswith(_PATHS["chat"]) or not path.endswith(_PATHS["completions"]):
        api = "chat"
    path = path.removesuffix(_PATHS[api]) or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}", api


def is_loopback(url: str) -> bool:
    """Whether requests to `url` stay on this machine."""
    return is_loopback_host(urlsplit(url).hostname or "")


async def first_model(base: str, api_key: str) -> str:
    """The name of the first model that the server lists. Raises `NetworkTrouble`."""
    try:
        async with _connected(Target(base, "chat", "", api_key)) as connection:
            entries = await list_models(connection)
    except RemoteUnreachable as error:
        raise NetworkTrouble(error.message, error.hint) from error
    except HearthError as error:
        hint = "Name the model before --url, and check the key."
        raise NetworkTrouble(error.message, hint) from error
    if not entries:
        raise NetworkTrouble(f"{base}/models lists no model.", "Name the model before --url.")
    return str(entries[0]["id"])


async def drive(target: Target, load: Load, concurrency: int, salt: int | None = None) -> Served:
    """Run `concurrency` clients that send `load.requests` requests in all. Each client sends its
    next request as soon as its previous one has ended.

    Args:
        salt: makes the prompts unique; None: the number of clients.
    """
    waiting = iter(prompts(load, concurrency if salt is None else salt))
    calls: list[Call] = []

    async def work(connection: Connection) -> None:
        for prompt in waiting:
            await _ask(connection, target, load, prompt, calls)

    async with _connected(target) as connection, asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work(connection))
    return summarise(calls, concurrency)


async def arrive(target: Target, load: Load, per_second: float, salt: int) -> Served:
    """Send `load.requests` requests at random times, `per_second` on average (a Poisson process),
    regardless of how many are running.

    Args:
        salt: makes the prompts and the times unique.
    """
    times = random.Random(salt)
    calls: list[Call] = []

    async with _connected(target) as connection, asyncio.TaskGroup() as group:
        for prompt in prompts(load, salt):
            group.create_task(_ask(connection, target, load, prompt, calls))
            await asyncio.sleep(times.expovariate(per_second))
    return summarise(calls, load.requests)


def prompts(load: Load, salt: int) -> list[str]:
    """One prompt per request. The prompts share their first `load.shared_words` words and nothing
    else; those of another `salt` share nothing with them.
    """
    stream = random.Random(salt)
    shared = [stream.choice(_WORDS) for _ in range(load.shared_words)]
    texts = []
    for number in range(load.requests):
        own = [stream.choice(_WORDS) for _ in range(load.prompt_words - load.shared_words)]
        if own:
            own[0] = f"{salt}-{number}"
        texts.append(" ".join((f"{salt}", *shared[1:], *own) if shared else own))
    return texts


def summarise(calls: Sequence[Call], concurrency: int) -> Served:
    """The results of finished `calls`. Failed calls are counted, and so are their tokens."""
    errors = Counter(call.error for call in calls if call.error)
    ttfts = [call.ttft_s for call in calls if call.ttft_s is not None]
    gaps = [gap for call in calls for gap in call.gaps_s]
    tokens = sum(call.tokens for call in calls)
    wall_s = max(call.ended_s for call in calls) - min(call.answer.began_s for call in calls)
    counted = [call.counted for call in calls if call.counted]
    good = [call for call in calls if not call.error]
    return Served(
        concurrency=concurrency,
        requests=len(calls),
        failed=sum(errors.values()),
        errors=dict(errors),
        generated_tokens=tokens,
        tok_per_s=tokens / wall_s if wall_s > 0 else 0.0,
        counted_by="server" if good and all(call.counted for call in good) else "pieces",
        prompt_tokens=statistics.median(u.prompt_tokens for u in counted) if counted else None,
        cached_tokens=sum(usage.cached_tokens for usage in counted) if counted else None,
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p95_s=percentile(ttfts, 95),
        itl_p50_s=percentile(gaps, 50),
        itl_p95_s=percentile(gaps, 95),
        itl_p99_s=percentile(gaps, 99),
    )


@asynccontextmanager
async def _connected(target: Target) -> AsyncIterator[Connection]:
    server = RemoteServer(target.model or "The server", target.base)
    connection = Connection(server, target.api_key)
    try:
        yield connection
    finally:
        await connection.close()


def _body(target: Target, load: Load, prompt: str) -> dict[str, Any]:
    chat = {"messages": [{"role": "user", "content": prompt}]}
    return {
        "model": target.model,
        "max_tokens": load.gen_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **(chat if target.api == "chat" else {"prompt": prompt}),
        **({"ignore_eos": True} if load.ignore_eos else {}),
    }


async def _ask(
    connection: Connection, target: Target, load: Load, prompt: str, calls: list[Call]
) -> None:
    """Send one request, and record its result in a new item of `calls`."""
    call = Call()
    calls.append(call)
    try:
        async with connection.stream(target.url, _body(target, load, prompt)) as pieces:
            await _listen(pieces, connection.server, target, call)
    except HearthError as error:
        call.error = error.message
    call.ended_s = time.perf_counter()


async def _listen(
    pieces: AsyncIterator[bytes], server: RemoteServer, target: Target, call: Call
) -> None:
    """Add the events of a stream to the answer. Raises HearthError if the answer is incomplete."""
    request = Request(messages=()) if target.api == "chat" else Request(text="")
    answer = call.answer
    async for event in ChunkReader(server, request).events(pieces):
        answer.add(event)
        gap_s = answer.choices[0].gap_s
        if isinstance(event, Token) and gap_s is not None:
            call.gaps_s.append(gap_s)
