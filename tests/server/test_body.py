"""A request's JSON: bounded before it is parsed, strict, and never slow."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import HTTPConnection

import asgi
from hearth.app.server.body import DEEPEST, MOST_BYTES, MOST_VALUES, client_of
from hearth.app.server.body import parse as parse_into
from hearth.app.server.limits import HeldBodies, TooManyBodies
from hearth.app.server.schema import Reading
from hearth.backends.errors import InvalidParameter
from hearth.backends.machine.fair_pool import FairPool, T

HOSTILE = {
    "numbers": lambda size: b"[" + b"0," * (size // 2) + b"0]",
    "decimals": lambda size: b"[" + b"1.5," * (size // 4) + b"0]",
    "objects": lambda size: b"[" + b"{}," * (size // 3) + b"0]",
    "texts": lambda size: b"[" + b'"a",' * (size // 4) + b"0]",
    "names": lambda size: b"{" + b",".join(b'"%d":0' % i for i in range(size // 12)) + b"}",
    "brackets": lambda size: b"[" * size,
    "braces": lambda size: b'{"a":' * (size // 5),
    "a long integer": lambda size: b"[" + b"1" * size + b"]",
    "open quotes": lambda size: b'",\\"' * (size // 4),
    "quotes": lambda size: b',"' * (size // 2),
    "backslashes": lambda size: b"," * MOST_VALUES + b'"' + b"\\" * (size - MOST_VALUES - 1),
    "escaped quotes": lambda size: b"," * MOST_VALUES + b'\\"' * ((size - MOST_VALUES) // 2),
}


def parse(body: bytes) -> Any:
    return parse_into(body, Reading())


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_the_largest_hostile_body_is_refused(make) -> None:
    """In a fraction of a second: quadratic time would take hours."""
    with pytest.raises(InvalidParameter):
        parse(make(MOST_BYTES))


@pytest.mark.parametrize(
    "value",
    [
        ["a," * MOST_VALUES],
        ['","' * MOST_VALUES],
        ["\\" * MOST_VALUES, "," * MOST_VALUES],
        ['\\",' * MOST_VALUES, {"a": "\\"}],
        {'",' * MOST_VALUES: '\\\\",' * 9},
        [0] * MOST_VALUES,
        [{"a,": "b,"}] * (MOST_VALUES // 2),
        ["a,"] * MOST_VALUES,
    ],
)
def test_commas_in_texts_are_no_values(value) -> None:
    assert parse(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "value",
    [
        [0] * (MOST_VALUES + 1),
        ["a"] * (MOST_VALUES + 1),
        [[0, 0]] * (MOST_VALUES // 2),
        {str(number): 0 for number in range(MOST_VALUES + 1)},
    ],
)
def test_values_are_counted(value) -> None:
    with pytest.raises(InvalidParameter, match=f"{MOST_VALUES:,} values"):
        parse(json.dumps(value).encode())


def test_levels_are_counted() -> None:
    most = b"[" * (DEEPEST - 1) + b"]" * (DEEPEST - 1)
    assert parse(most) is not None
    with pytest.raises(InvalidParameter, match=f"{DEEPEST} levels"):
        parse(b"[[" + most + b"]]")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"{}{}", b"nul", b"[NaN]", b"[Infinity]", b"[-Infinity]", b"[1e400]"),
        *(b'{"a":1,"a":2}', b'{"\\udfff":1}', b"\xff\xfe{}", b"\xef\xbb\xbf{}"),
        *(b"[1,]", b"[01]", b"['a']", b'["\n"]', b"// a\n{}", b'["\xff"]'),
        *("{}".encode("utf-16"), "{}".encode("utf-32"), b"\x00", b"[" + b"9" * 5000 + b"]"),
    ],
)
def test_what_is_no_json_is_named_as_such(body) -> None:
    with pytest.raises(InvalidParameter):
        parse(body)


def test_lone_surrogates_in_values_are_replaced_and_reported() -> None:
    reading = Reading()
    assert parse_into(b'["\\ud83d\\ude00"]', reading) == ["\U0001f600"]
    assert reading.notices == ()
    body = b'{"a": [1, "cut \\ud83d, \\ude00\\ud83d\\ude00"], "b": "\\udfff"}'
    value = {"a": [1, "cut \ufffd, \ufffd\U0001f600"], "b": "\ufffd"}
    assert parse_into(body, reading) == value
    assert len(reading.notices) == 1 and "U+FFFD" in reading.notices[0]


def _connection(*headers: tuple[bytes, bytes], address: str = "127.0.0.1") -> HTTPConnection:
    return HTTPConnection({"type": "http", "headers": list(headers), "client": (address, 5)})


def test_clients_are_told_apart_by_key_or_by_address_and_program() -> None:
    curl, other = (b"user-agent", b"curl/8"), (b"user-agent", b"openai/1")
    key = (b"authorization", b"Bearer secret")
    named = [
        client_of(connection)
        for connection in (
            _connection(curl),
            _connection(other),
            _connection(curl, address="10.0.0.2"),
            _connection(curl, key),
            _connection(curl, (b"authorization", b"Bearer another")),
            _connection(),
        )
    ]
    assert len(set(named)) == len(named)
    assert client_of(_connection(other, (b"x-api-key", b"secret"))) == named[3]
    assert not any("secret" in name for name in named)
    long = client_of(_connection((b"user-agent", b"x" * 10_000)))
    assert len(long.encode()) <= 200


def test_large_bodies_are_read_and_refused_as_small_ones(endpoint) -> None:
    made = endpoint()
    text = "long " * 100_000
    assert made.chat(messages=[{"role": "user", "content": text}]).status == 200
    refused = made.chat(messages=[{"role": "user", "content": text}], temperature=3000)
    assert refused.status == 400 and refused.error["param"] == "temperature"
    assert (
        made.post("/v1/completions", b'{"model": "tiny", "prompt": "' + b"x" * 400_000).status
        == 400
    )


def test_a_client_has_half_of_the_memory_for_large_bodies() -> None:
    held = HeldBodies(100)
    held.add("a", 50)
    with pytest.raises(TooManyBodies):
        held.add("a", 1)
    held.add("b", 30)
    held.add("c", 20)
    with pytest.raises(TooManyBodies):
        held.add("d", 1)
    held.remove("a", 50)
    held.add("d", 50)


def test_large_bodies_beyond_the_memory_for_them_are_refused_and_small_ones_are_not(
    endpoint,
) -> None:
    made = endpoint()
    services = made.app.state.services
    made.app.state.services = replace(services, held=HeldBodies(1 << 20))
    large = {"messages": [{"role": "user", "content": "long " * 110_000}]}
    refused = made.chat(**large)
    assert refused.status == 503 and refused.error["code"] == "too_many_bodies"
    assert refused.headers["retry-after"] == "1"
    assert made.chat(messages=[{"role": "user", "content": "short"}]).status == 200
    large["messages"][0]["content"] = "long " * 60_000
    assert [made.chat(**large).status for _ in range(2)] == [200, 200]


def test_the_body_of_a_client_that_left_is_not_parsed(endpoint) -> None:
    made = endpoint()
    pool, free = Recorded(2, "body"), threading.Event()
    made.app.state.services = replace(made.app.state.services, bodies=pool)
    for name in ("one", "two"):
        pool.submit(name, lambda: free.wait(30))
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 400_000}]}).encode()

    async def work() -> None:
        leave = asyncio.Event()
        chat = asgi.exchange(made.app, "POST", "/v1/chat/completions", body, asgi.JSON, leave=leave)
        asking = asyncio.create_task(chat)
        while len(pool.jobs) < 3:  # noqa: ASYNC110 - the pool is one of threads
            await asyncio.sleep(0)
        leave.set()
        await asking

    asyncio.run(work())
    free.set()
    assert pool.jobs[2].cancelled() and not made.host.requests


class Recorded(FairPool):
    """Records its jobs."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self.jobs: list[Future[Any]] = []

    def submit(self, identity: str, do: Callable[[], T]) -> Future[T]:
        self.jobs.append(super().submit(identity, do))
        return self.jobs[-1]
