"""Streams that fail, stall, or whose client disconnects."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

from asgi import JSON, exchange
from endpoints import HELLO, ONCE

START = {"prompt_tokens": 7}
DEAD = {"error": {"code": "worker_died", "message": "The model's process died."}}
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def asking(app, path, body, **more):
    return exchange(app, "POST", path, json.dumps(body).encode(), JSON, **more)


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (COMPLETIONS, ONCE)])
def test_a_broken_stream_never_looks_finished(endpoint, path, body) -> None:
    made = endpoint([START, {"text": "Hi"}, DEAD])
    reply = made.post(path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    assert reply.status == 200 and not reply.complete
    *events, last = reply.events
    assert last["error"]["code"] == "worker_died"
    assert all(choice["finish_reason"] is None for e in events for choice in e["choices"])
    assert "[DONE]" not in reply.events


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_that_somebody_ended_is_no_answer(endpoint, stream) -> None:
    made = endpoint([START, {"text": "Hi"}, {"finish": "cancelled"}])
    reply = made.chat(stream=stream)
    if stream:
        assert not reply.complete and reply.events[-1]["error"]["code"] == "interrupted"
    else:
        assert (reply.status, reply.error["code"]) == (503, "interrupted")


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (COMPLETIONS, ONCE)])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_leaves_cancels_its_request(endpoint, path, body, stream, begun) -> None:
    steps = [START, {"text": "Hi"}] if begun else []
    made = endpoint([*steps, {"wait": True}])

    async def leave_in_the_middle():
        leave = asyncio.Event()
        made.host.on_wait = leave.set
        return await asking(made.app, path, {**body, "stream": stream}, leave=leave)

    reply = asyncio.run(leave_in_the_middle())
    assert made.host.cancelled == 1
    assert not (reply.complete and reply.status == 200)


def test_leaving_several_prompts_cancels_all_of_them(endpoint) -> None:
    made = endpoint(*[[START, {"wait": True}]] * 3)

    async def leave_when_all_wait():
        leave = asyncio.Event()
        waiting = itertools.count(1)
        made.host.on_wait = lambda: leave.set() if next(waiting) == 3 else None
        await asking(made.app, COMPLETIONS, {**ONCE, "prompt": ["a", "b", "c"]}, leave=leave)

    asyncio.run(leave_when_all_wait())
    assert made.host.cancelled == 3


def test_a_parameter_that_is_refused_late_has_the_name_that_was_sent(endpoint) -> None:
    """The vocabulary is known when the model is loaded, and the stream may have begun before."""
    data = {"param": "token_ids"}
    refused = {"code": "invalid_parameter", "message": "token_ids has the id 999.", "data": data}
    made = endpoint([{"progress": [1, 2]}, {"error": refused}])
    reply = made.complete(prompt=[999], stream=True)
    assert reply.status == 200 and not reply.complete
    assert reply.events[-1]["error"]["param"] == "prompt"


def test_silence_is_broken_by_comments(endpoint) -> None:
    made = endpoint([START, {"wait": True}], times={"ping_s": 0.001})

    async def until_a_comment():
        leave = asyncio.Event()

        def look(part):
            if part == b": waiting\n\n":
                leave.set()

        body = {**HELLO, "stream": True}
        return await asking(made.app, CHAT, body, leave=leave, on_part=look)

    reply = asyncio.run(until_a_comment())
    assert ": waiting" in reply.lines
    assert made.host.cancelled == 1


def test_a_stream_that_waits_long_begins_before_its_first_event(endpoint) -> None:
    made = endpoint([{"wait": True}], times={"ping_s": 0.001, "patience_s": 0.001})

    async def until_it_begins():
        leave = asyncio.Event()
        body = {**HELLO, "stream": True}
        return await asking(made.app, CHAT, body, leave=leave, on_part=lambda part: leave.set())

    reply = asyncio.run(until_it_begins())
    assert reply.status == 200 and reply.events == [] and not reply.complete


def test_one_attachment_serves_many(endpoint) -> None:
    made = endpoint()

    async def both():
        return await asyncio.gather(*(asking(made.app, CHAT, HELLO) for _ in range(4)))

    assert {reply.status for reply in asyncio.run(both())} == {200}
    assert made.host.attached == 1
    assert len({str(spec) for spec in made.host.specs}) == 1


def test_a_defect_is_500_and_says_nothing_of_the_inside(endpoint, caplog) -> None:
    reply = endpoint([{"progress": "secret"}]).chat()
    assert reply.status == 500 and "secret" not in reply.body.decode()
    assert reply.headers["x-should-retry"] == "false"
    assert "Traceback" in caplog.text


def test_a_stream_that_is_cancelled_before_it_begins_ends_its_request(endpoint) -> None:
    """Earlier data may still wait to be read by the client."""
    made = endpoint([START, {"text": "Hi"}, {"wait": True}])

    async def end_before_the_head():
        begun = asyncio.Event()

        async def stuck(message):
            begun.set()
            await asyncio.Event().wait()

        async def behind(scope, receive, send):
            await made.app(scope, receive, stuck)

        task = asyncio.create_task(asking(behind, CHAT, {**HELLO, "stream": True}))
        await begun.wait()
        task.cancel()
        await asyncio.wait({task})
        return made.host.cancelled

    assert asyncio.run(end_before_the_head()) == 1
