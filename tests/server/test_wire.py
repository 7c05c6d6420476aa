"""Raw input: data that is not HTTP, requests that never end, and requests that hide in others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest

from async_tests import in_loop
from endpoints import HELLO
from hearth.app.server import limits
from hearth.app.server.protocol import SEND_BUFFER_BYTES
from live import GET, live, read_answer, statuses, until_closed, when

POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
)
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def run(app, *pieces):
    """The whole answer of a real server to `pieces`."""

    async def ask():
        async with live(app) as server:
            return await server.exchange(*pieces)

    return asyncio.run(ask())


SMUGGLERS = {
    "length and chunks": POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
    "chunks and length": POST + CHUNKED + b"Content-Length: 44\r\n\r\n0\r\n\r\n",
    "a folded encoding": POST
    + b"Content-Length: 5\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "a list of lengths": POST + b"Content-Length: 0, 44\r\n\r\n",
    "a length with a sign": POST + b"Content-Length: +0\r\n\r\n",
    "a negative length": POST + b"Content-Length: -1\r\n\r\n",
    "a hexadecimal length": POST + b"Content-Length: 0x0\r\n\r\n",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "a huge length": POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 0\r\n\r\n",
    "another encoding": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "an unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "encoded twice": POST + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n",
    "a tab in the encoding": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": POST.replace(b"1.1", b"1.0") + CHUNKED + b"\r\n0\r\n\r\n",
    "a chunk in C's notation": POST + CHUNKED + b"\r\n0x0\r\n\r\n",
    "a chunk with a sign": POST + CHUNKED + b"\r\n+0\r\n\r\n",
    "a negative chunk": POST + CHUNKED + b"\r\n-1\r\n\r\n",
    "a chunk that overflows": POST + CHUNKED + b"\r\n" + b"f" * 30 + b"\r\n\r\n",
    "a chunk that is longer than said": POST + CHUNKED + b"\r\n1\r\nxyz\r\n0\r\n\r\n",
    "an extension with a line feed": POST + CHUNKED + b"\r\n0;a\nb\r\n\r\n",
    "lines that end in a line feed": POST.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n",
    "a line that ends in a carriage return": POST + b"X: y\rContent-Length: 44\r\n\r\n",
    "a NUL": POST + b"X: \x00\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another server": b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a length of its own": b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx",
    "two requests at once": GET,
}


@pytest.mark.parametrize("vector", SMUGGLERS.values(), ids=SMUGGLERS.keys())
def test_no_request_hides_in_another(endpoint, vector) -> None:
    """However it is interpreted, it gets one answer, and the data after it gets none."""
    answered = run(endpoint().app, vector + HIDDEN)
    assert len(statuses(answered)) == 1, answered


AMBIGUOUS = [name for name in SMUGGLERS if "length and" in name or "and length" in name]


@pytest.mark.parametrize(
    "name", [*AMBIGUOUS, "two lengths", "a huge length", "another encoding", "no host", "TLS"]
)
def test_what_is_ambiguous_or_no_http_is_refused_as_any_request_is(endpoint, name) -> None:
    answered = run(endpoint().app, SMUGGLERS[name])
    head, _, body = answered.partition(b"\r\n\r\n")
    assert statuses(answered) == [400] and b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "malformed_request"


def test_a_web_socket_is_refused(endpoint) -> None:
    upgrade = b"Connection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    answered = run(endpoint().app, GET[:-2] + upgrade)
    assert statuses(answered) == [400] and b"WebSockets" in answered


@pytest.mark.parametrize(
    ("extra", "status"),
    [
        (b"A: b\r\n" * (limits.MOST_HEADERS - 2), 200),
        (b"A: b\r\n" * limits.MOST_HEADERS, 431),
        (b"A: " + b"b" * (limits.MOST_HEAD_BYTES - 2000) + b"\r\n", 200),
        (b"A: " + b"b" * limits.MOST_HEAD_BYTES + b"\r\n", 431),
        (b"A: " + b"b" * (1 << 20) + b"\r\n", 431),
    ],
)
def test_headers_are_bounded(endpoint, extra, status) -> None:
    answered = run(endpoint().app, GET[:-2] + extra + b"Connection: close\r\n\r\n")
    assert statuses(answered) == [status]
    if status == 431:
        assert b"headers_too_large" in answered


def test_a_head_without_end_is_refused_while_it_comes(endpoint) -> None:
    async def ask():
        async with live(endpoint().app) as server:
            reader, writer = await server.connect()
            writer.write(b"GET /" + b"a" * (limits.MOST_HEAD_BYTES + 1))
            return await until_closed(reader)

    assert statuses(asyncio.run(ask())) == [431]


@pytest.mark.parametrize("url", [b"/" + b"a" * 9000, b"/v1/models?" + b"a" * 9000])
def test_urls_are_bounded(endpoint, url) -> None:
    answered = run(endpoint().app, b"GET " + url + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert statuses(answered) == [414] and b"url_too_long" in answered


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", None),
        (b"GET /v1/mod", 408),
        (GET[:-2] + b"X-Slow: y\r\n", 408),
        (POST + b"Content-Length: 20\r\n\r\n{", 408),
        (POST + CHUNKED + b"\r\n1\r\n{\r\n", 408),
        (b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n", 200),
    ],
)
def test_what_never_ends_is_not_waited_for(endpoint, monkeypatch, sent, status) -> None:
    monkeypatch.setattr(limits, "HEAD_S", 0.05)
    monkeypatch.setattr(limits, "BODY_S", 0.05)
    made = endpoint()
    answered = run(made.app, sent)
    assert statuses(answered) == ([] if status is None else [status])
    if status == 408:
        assert b"request_timeout" in answered and made.host.requests == []


def test_bytes_that_trickle_in_do_not_buy_time(endpoint, monkeypatch) -> None:
    monkeypatch.setattr(limits, "BODY_S", 0.05)

    async def trickle():
        async with live(endpoint().app) as server:
            reader, writer = await server.connect()
            writer.write(POST + b"Content-Length: 1000000\r\n\r\n")
            answer = asyncio.create_task(until_closed(reader))
            while not answer.done():
                writer.write(b" ")
                await asyncio.sleep(0.001)
            return answer.result()

    assert statuses(asyncio.run(trickle())) == [408]


def test_time_counts_anew_for_each_request(endpoint, monkeypatch) -> None:
    """A kept connection is not limited by either time between requests."""
    monkeypatch.setattr(limits, "HEAD_S", 0.05)
    monkeypatch.setattr(limits, "BODY_S", 0.05)

    async def ask_slowly():
        async with live(endpoint().app) as server:
            reader, writer = await server.connect()
            found = []
            for _ in range(3):
                writer.write(GET)
                found.append((await read_answer(reader))[0])
                await asyncio.sleep(0.06)
            writer.write(GET[:10])
            return found, await until_closed(reader)

    found, last = asyncio.run(ask_slowly())
    assert found == [200] * 3 and statuses(last) == [408]


def test_a_body_in_crumbs_is_refused(endpoint) -> None:
    crumbs = b"1\r\n \r\n" * (limits.FREE_PIECES + 2000)
    answered = run(endpoint().app, POST + CHUNKED + b"\r\n" + crumbs)
    assert statuses(answered) == [400]


def test_a_body_in_chunks_is_read(endpoint) -> None:
    made = endpoint()
    body = json.dumps(HELLO).encode()
    pieces = [b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:20], body[20:])]
    sent = POST + CHUNKED + b"Connection: close\r\n\r\n"
    answered = run(made.app, sent, *pieces, b"0\r\n\r\n")
    assert statuses(answered) == [200] and len(made.host.requests) == 1


def test_connections_are_bounded(endpoint, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MOST_CONNECTIONS", 3)

    async def crowd():
        async with live(endpoint().app) as server:
            clients = [await server.connect() for _ in range(3)]
            for reader, writer in clients:
                writer.write(GET)
                assert (await read_answer(reader))[0] == 200
            late = await server.exchange()
            clients[0][1].close()
            await clients[0][1].wait_closed()
            await when(lambda: len(server.server.server_state.connections) == 2)
            reader, writer = await server.connect()
            writer.write(GET)
            return late, (await read_answer(reader))[0]

    late, again = asyncio.run(crowd())
    assert statuses(late) == [503] and b"retry-after: 1" in late.lower()
    assert b"too_many_connections" in late and again == 200


def test_a_client_that_sends_more_and_leaves_is_noticed(endpoint) -> None:
    """Data after the request is not read, but the end of the connection is noticed."""
    made = endpoint([{"prompt_tokens": 1}, {"wait": True}])
    body = json.dumps(HELLO).encode()

    async def leave():
        async with live(made.app) as server:
            waits = asyncio.Event()
            made.host.on_wait = waits.set
            _, writer = await server.connect()
            writer.write(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + GET * 100)
            await waits.wait()
            writer.write(GET * 100)
            writer.close()
            await when(lambda: made.host.cancelled == 1)

    asyncio.run(leave())
    assert made.host.cancelled == 1


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has all of them")
@in_loop
async def test_a_client_that_vanished_is_noticed_within_a_minute(endpoint) -> None:
    async with live(endpoint().app) as server:
        reader, writer = await server.connect()
        writer.write(GET)
        await read_answer(reader)
        [ours] = server.sockets()
        tcp = socket.IPPROTO_TCP
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        first = ours.getsockopt(tcp, socket.TCP_KEEPIDLE)
        every = ours.getsockopt(tcp, socket.TCP_KEEPINTVL)
        assert first + every * ours.getsockopt(tcp, socket.TCP_KEEPCNT) <= 60
        assert ours.getsockopt(tcp, socket.TCP_USER_TIMEOUT) <= 60_000


def test_what_a_client_does_not_read_does_not_pile_up(endpoint, monkeypatch) -> None:
    """The stream stops when the buffers are full, and is cancelled if nothing is read for long."""
    monkeypatch.setattr(limits, "STALL_S", 0.1)
    text = "x" * 1000
    made = endpoint([{"text": text}] * 20_000)
    body = json.dumps({**HELLO, "stream": True}).encode()

    async def read_nothing():
        async with live(made.app) as server:
            small = socket.create_connection(("127.0.0.1", server.port))
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            with small:
                small.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                await when(lambda: made.host.cancelled == 1)
                return await asyncio.to_thread(drained, small)

    assert 0 < asyncio.run(read_nothing()) < 16 * SEND_BUFFER_BYTES


def drained(client) -> int:
    """The number of bytes that `client` can still read."""
    found = 0
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(1 << 16):
            found += len(piece)
    return found
