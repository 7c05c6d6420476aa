"""Loading, serving, draining: the state in `/health`, which requests are still answered, and
shutdown.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from endpoints import HELLO
from hearth.app.server import running
from live import GET, Live, live, read_answer, statuses, until_closed, when

WAITS = [{"prompt_tokens": 1}, {"text": "Hi"}, {"wait": True}]
HEALTH = GET.replace(b"/v1/models", b"/health")


def asking(stream: bool = True, path: bytes = b"/v1/chat/completions") -> bytes:
    body = json.dumps({**HELLO, "stream": stream}).encode()
    return (
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (path, len(body), body)
    )


def state_of(made):
    return made.app.state.services.state


def test_health_says_when_it_is_not_the_time(endpoint) -> None:
    made = endpoint()
    ready = made.get("/health")
    assert ready.status == 200 and ready.json["status"] == "ok" and ready.json["version"]
    with state_of(made).loading():
        loading = made.get("/health")
    assert (loading.status, loading.json["status"]) == (503, "loading")
    assert int(loading.headers["retry-after"]) > 0
    assert made.get("/health").status == 200
    state_of(made).draining = True
    draining = made.get("/health")
    assert (draining.status, draining.json["status"]) == (503, "draining")
    assert draining.headers["connection"] == "close"


def test_health_names_the_libraries_of_what_is_loaded(endpoint) -> None:
    worker = {"name": "tiny", "path": "/tiny", "info": {"backend_version": "1.2"}}
    made = endpoint(workers=[worker])
    assert made.get("/health").json["backends"] == {"llamacpp": "1.2"}


def test_requests_are_answered_while_the_model_is_loaded(endpoint) -> None:
    made = endpoint()
    with state_of(made).loading():
        assert made.chat().status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/nothing"])
def test_while_it_drains_new_requests_are_told_to_come_again(endpoint, path) -> None:
    made = endpoint()
    state_of(made).draining = True
    reply = made.post(path, HELLO)
    assert reply.status == 503 and reply.headers["connection"] == "close"
    assert int(reply.headers["retry-after"]) > 0 and "x-should-retry" not in reply.headers
    if path == "/v1/messages":
        assert reply.json["type"] == "error"
    else:
        assert reply.error["code"] == "draining"
    assert made.host.requests == []


def test_who_may_not_ask_learns_nothing_of_it(endpoint) -> None:
    made = endpoint()
    state_of(made).draining = True
    assert made.get("/v1/models", (("host", "evil.example"),)).status == 403


def test_running_requests_finish_while_new_ones_are_refused(endpoint) -> None:
    """On existing connections, on new ones, and until the last is done; then the server stops."""
    made = endpoint([*WAITS, {"finish": "stop"}])

    async def drain():
        made.host.resume = asyncio.Event()
        async with live(made.app) as server:
            kept, idle, busy = [await server.connect() for _ in range(3)]
            for reader, writer in (kept, idle):
                writer.write(GET)
                assert (await read_answer(reader))[0] == 200
            busy[1].write(asking())
            await busy[0].readuntil(b'"Hi"')
            server.server.end()
            kept[1].write(GET)
            found = [await read_answer(kept[0]), await ask(server, GET)]
            sick = await ask(server, HEALTH)
            assert not server.serving.done()
            made.host.resume.set()
            rest = await until_closed(busy[0])
            await server.serving
            return found, sick, rest, await until_closed(kept[0]), await until_closed(idle[0])

    found, sick, rest, *closed = asyncio.run(drain())
    assert [status for status, _, _ in found] == [503, 503]
    assert all(headers["connection"] == "close" for _, headers, _ in found)
    assert sick[0] == 503 and json.loads(sick[2])["status"] == "draining"
    assert b"data: [DONE]" in rest and rest.endswith(b"0\r\n\r\n")
    assert closed == [b"", b""]


async def ask(server: Live, request: bytes):
    """The answer to `request` on a new connection."""
    reader, writer = await server.connect()
    writer.write(request)
    return await read_answer(reader)


def test_told_again_it_ends_at_once_and_no_stream_looks_finished(endpoint) -> None:
    made = endpoint(WAITS, WAITS)

    async def abort():
        async with live(made.app) as server:
            stream, whole = [await server.connect() for _ in range(2)]
            stream[1].write(asking())
            await stream[0].readuntil(b'"Hi"')
            whole[1].write(asking(stream=False))
            await when(lambda: len(made.host.requests) == 2)
            server.server.end()
            assert (await ask(server, GET))[0] == 503
            server.server.end()
            await server.serving
            return await until_closed(stream[0]), await until_closed(whole[0])

    stream, whole = asyncio.run(abort())
    assert b'"code":"interrupted"' in stream and b"[DONE]" not in stream
    assert not stream.endswith(b"0\r\n\r\n")
    assert statuses(whole) == [503] and b"interrupted" in whole
    assert b"x-should-retry: false" in whole
    assert made.host.cancelled == 2


def test_what_does_not_finish_in_time_is_ended(endpoint, monkeypatch) -> None:
    monkeypatch.setattr(running, "DRAIN_S", 0.05)
    made = endpoint(WAITS)

    async def drain():
        async with live(made.app) as server:
            reader, writer = await server.connect()
            writer.write(asking())
            await reader.readuntil(b'"Hi"')
            server.server.end()
            await server.serving
            return await until_closed(reader)

    rest = asyncio.run(drain())
    assert b'"code":"interrupted"' in rest and not rest.endswith(b"0\r\n\r\n")


def test_an_idle_server_ends_as_soon_as_it_is_told(endpoint) -> None:
    async def end():
        async with live(endpoint().app) as server:
            reader, writer = await server.connect()
            writer.write(GET)
            await read_answer(reader)
            server.server.end()
            await server.serving
            return await until_closed(reader)

    assert asyncio.run(end()) == b""


def test_a_client_that_reads_nothing_does_not_keep_it_from_ending(endpoint, monkeypatch) -> None:
    monkeypatch.setattr(running, "_FLUSH_S", 0.05)
    made = endpoint([{"text": "x" * 1000}] * 20_000)

    async def end():
        async with live(made.app) as server:
            reader, writer = await server.connect(limit=1000)
            writer.write(asking())
            await reader.readuntil(b"\r\n")
            server.server.end()
            server.server.end()
            await server.serving
            writer.close()

    asyncio.run(end())
    assert made.host.cancelled == 1


def test_what_fails_beside_it_ends_it(endpoint) -> None:
    async def fail():
        raise OSError("no model")

    async def serve():
        server = running.Server(endpoint().app, state_of(endpoint()))
        await server.serve_on([], startup=fail())

    with pytest.raises(OSError, match="no model"):
        asyncio.run(serve())


def test_requests_are_counted_to_their_end(endpoint) -> None:
    made = endpoint(WAITS)

    async def leave():
        async with live(made.app) as server:
            reader, writer = await server.connect()
            writer.write(asking())
            await reader.readuntil(b'"Hi"')
            assert state_of(made).busy == 1
            writer.close()
            await when(lambda: state_of(made).busy == 0)

    asyncio.run(leave())
    assert made.host.cancelled == 1
