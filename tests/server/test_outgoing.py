"""Data that is sent together: every write is a packet, and wakes the client."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import contextmanager

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from endpoints import HELLO
from hearth.app.server.protocol import STREAMED_BODY, Connection, Outgoing, Releases

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = GET.replace(b"GET", b"HEAD")
START = {"type": "http.response.start", "status": 200, "headers": [(b"x-a", b"b")]}
SIZED = {**START, "headers": [(b"content-length", b"5")]}
BODY = {"type": "http.response.body", "body": b"hello"}
END = b"0\r\n\r\n"


class Client(asyncio.Transport):
    """Records the writes to it."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__({"socket": end})
        self.writes: list[bytes] = []
        self.closed = False
        self.wrote = asyncio.Event()

    def write(self, data) -> None:
        assert not self.closed
        if data:
            self.writes.append(bytes(data))
            self.wrote.set()

    def close(self) -> None:
        self.closed = True
        self.wrote.set()

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@contextmanager
def connected(app):
    """A client of `app`, and its connection; within a running event loop."""
    one, other = socket.socketpair()
    with one, other:
        config = Config(app, lifespan="off", log_config=None)
        connection = Connection(config, ServerState(), {}, releases=Releases())
        client = Client(one)
        connection.connection_made(client)
        yield client, connection
        connection.connection_lost(None)


def written(app, question=GET) -> list[bytes]:
    """The writes of `app`'s answer."""

    async def ask():
        with connected(app) as (client, connection):
            connection.data_received(question)
            await asyncio.gather(*connection.tasks)
            await asyncio.sleep(0)
            return client.writes

    return asyncio.run(ask())


def answering(*messages):
    async def app(scope, receive, send) -> None:
        for message in messages:
            await send(message)

    return app


def test_head_and_body_leave_together() -> None:
    [data] = written(answering(SIZED, BODY))
    assert data.startswith(b"HTTP/1.1 200 OK\r\n") and data.endswith(b"\r\n\r\nhello")


def test_so_does_a_body_in_chunks_with_its_end() -> None:
    [data] = written(answering(START, BODY))
    assert data.endswith(b"5\r\nhello\r\n" + END)


def test_of_a_longer_stream_the_first_chunk_leaves_with_the_head() -> None:
    more = {**BODY, "more_body": True}
    first, *others = written(answering(START, more, more, {**BODY, "body": b""}))
    assert first.startswith(b"HTTP/1.1 200 OK\r\n") and first.endswith(b"5\r\nhello\r\n")
    assert others == [b"5\r\nhello\r\n", END]


def test_a_head_alone_is_one_write() -> None:
    [data] = written(answering(SIZED, BODY), HEAD)
    assert data.endswith(b"content-length: 5\r\n\r\n")


def test_a_head_waits_for_no_body_that_comes_later() -> None:
    async def ask():
        goes_on = asyncio.Event()

        async def app(scope, receive, send) -> None:
            await send(START)
            await goes_on.wait()
            await send(BODY)

        with connected(app) as (client, connection):
            connection.data_received(GET)
            await client.wrote.wait()
            [head] = client.writes
            goes_on.set()
            await asyncio.gather(*connection.tasks)
            return head, client.writes[1:]

    head, body = asyncio.run(ask())
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n")
    assert body == [b"5\r\nhello\r\n" + END]


def test_what_fails_behind_its_head_is_cut_behind_it() -> None:
    async def app(scope, receive, send) -> None:
        await send(START)
        raise ValueError

    [head] = written(app)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("question", [GET, HEAD])
def test_requests_of_one_connection_get_their_own_answers(question) -> None:
    async def ask():
        with connected(answering(SIZED, BODY)) as (client, connection):
            for _ in range(2):
                connection.data_received(question)
                await asyncio.gather(*connection.tasks)
            return client.writes

    one, other = asyncio.run(ask())
    assert one == other


def test_the_events_of_a_stream_that_are_there_leave_with_its_head(endpoint) -> None:
    made = endpoint([{"prompt_tokens": 7}, {"text": "Hi"}, {"finish": "stop"}])
    body = json.dumps({**HELLO, "stream": True}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )
    [whole] = written(made.app, head + body)
    assert whole.startswith(b"HTTP/1.1 200 OK\r\n") and b"data: " in whole
    assert b"[DONE]" in whole and whole.endswith(END)


def streaming(body):
    """An application whose response has the parts that `body(streamed)` writes."""

    async def app(scope, receive, send) -> None:
        await send(START)
        await body(scope["extensions"][STREAMED_BODY])
        await send({**BODY, "body": b""})

    return app


async def twice(body) -> None:
    body.write(b"hello")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    body.write(b"world")
    body.write(b"!")


def test_parts_that_are_written_together_leave_together() -> None:
    first, last = written(streaming(twice))
    assert first.startswith(b"HTTP/1.1 200 OK\r\n") and first.endswith(b"\r\n\r\n5\r\nhello\r\n")
    assert last == b"5\r\nworld\r\n1\r\n!\r\n" + END


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    first, last = written(streaming(twice), GET.replace(b"1.1", b"1.0"))
    assert first.endswith(b"\r\n\r\nhello") and b"transfer-encoding" not in first.lower()
    assert last == b"world!"


def test_much_of_a_stream_is_not_held_back() -> None:
    async def much(body) -> None:
        for _ in range(10):
            body.write(b"x" * 20_000)

    assert len(written(streaming(much))) > 2


def test_an_empty_part_does_not_end_the_body_and_nothing_follows_its_end() -> None:
    async def app(scope, receive, send) -> None:
        body = scope["extensions"][STREAMED_BODY]
        await send(START)
        for part in (b"", b"hello"):
            body.write(part)
        await send({**BODY, "body": b""})
        body.write(b"more")

    assert b"".join(written(app)).endswith(b"\r\n\r\n5\r\nhello\r\n" + END)


def test_nothing_is_written_before_the_head() -> None:
    async def app(scope, receive, send) -> None:
        scope["extensions"][STREAMED_BODY].write(b"hello")

    assert b"".join(written(app)).startswith(b"HTTP/1.1 500")


def test_what_is_held_back_goes_out_before_the_end() -> None:
    async def close():
        one, other = socket.socketpair()
        with one, other:
            client = Client(one)
            outgoing = Outgoing(client)
            outgoing.hold()
            outgoing.write(b"a")
            outgoing.write(bytearray(b"b"))
            held = list(client.writes)
            outgoing.close()
            outgoing.release()
            return held, client.writes, client.closed

    assert asyncio.run(close()) == ([], [b"ab"], True)
