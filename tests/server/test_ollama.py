"""`/api/...`: what reaches the model, and what Ollama's clients read in the answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from hearth.app.server.requests import with_keep_alive
from hearth.backends.errors import UnsupportedParameter

HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
ONCE = {"model": "tiny", "prompt": "Once"}
START = {"prompt_tokens": 7}
HI = [START, {"text": "Hi"}, {"text": " there"}, {"finish": "stop"}]
CALL = {"call": {"position": 0, "id": "call_1", "name": "weather", "arguments": '{"city":'}}
MORE = {"call": {"position": 0, "arguments": '"Bern"}'}}
THINKS_AND_CALLS = [START, {"reasoning": "Hm."}, {"text": "See:"}, CALL, MORE]
THINKS_AND_CALLS += [{"finish": "tool_calls"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {}}}


def chat(made, **more):
    return made.post("/api/chat", {**HELLO, **more})


def generate(made, **more):
    return made.post("/api/generate", {**ONCE, **more})


def lines(reply):
    return [json.loads(line) for line in reply.body.decode().splitlines()]


def test_a_chat_is_streamed_unless_it_says_otherwise(endpoint) -> None:
    made = endpoint(HI, HI)
    reply = chat(made)
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    *pieces, last = lines(reply)
    assert "".join(piece["message"]["content"] for piece in pieces) == "Hi there"
    assert not any(piece["done"] for piece in pieces)
    assert last["done"] and last["done_reason"] == "stop"
    assert (last["prompt_eval_count"], last["eval_count"]) == (7, 2)
    whole = chat(made, stream=False).json
    assert whole["message"] == {"role": "assistant", "content": "Hi there"} and whole["done"]


def test_thoughts_and_calls(endpoint) -> None:
    made = endpoint(THINKS_AND_CALLS, THINKS_AND_CALLS)
    whole = chat(made, stream=False, tools=[WEATHER]).json["message"]
    assert (whole["thinking"], whole["content"]) == ("Hm.", "See:")
    assert whole["tool_calls"][0]["function"] == {
        "name": "weather",
        "arguments": {"city": "Bern"},
    }
    *pieces, _ = lines(chat(made, tools=[WEATHER]))
    assert pieces[0]["message"]["thinking"] == "Hm."
    assert pieces[-1]["message"]["tool_calls"] == whole["tool_calls"]


def test_a_prompt_is_a_message_of_the_user_or_stands_as_it_is(endpoint) -> None:
    made = endpoint(HI, HI)
    assert generate(made, stream=False, system="Be brief.").json["response"] == "Hi there"
    assert [one["role"] for one in made.asked["messages"]] == ["system", "user"]
    assert lines(generate(made, raw=True))[-1]["done"]
    assert made.asked["text"] == "Once" and made.asked["messages"] is None


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"format": "json"}, {"constraint": {"kind": "json", "source": ""}}),
        ({"format": {"a": 1}}, {"constraint": {"kind": "json_schema", "source": '{"a": 1}'}}),
        ({"think": False}, {"template_values": {"enable_thinking": False}}),
        ({"think": "low"}, {"template_values": {"reasoning_effort": "low"}}),
        ({"options": {"num_predict": 5}}, {"max_tokens": 5}),
        ({"options": {"num_predict": -1}}, {"max_tokens": None}),
        ({"options": {"stop": ["x"]}}, {"stop": ("x",)}),
    ],
    ids=str,
)
def test_fields_reach_the_model(endpoint, given, reached) -> None:
    made = endpoint(HI)
    reply = chat(made, **given)
    assert reply.status == 200, reply.body
    assert {name: made.asked[name] for name in reached} == reached


def test_options_have_ollamas_names(endpoint) -> None:
    made = endpoint(HI)
    chat(made, options={"repeat_penalty": 1.2, "repeat_last_n": 9, "temperature": 0, "num_ctx": 9})
    sampling = made.asked["sampling"]
    assert (sampling["repetition_penalty"], sampling["repetition_window"]) == (1.2, 9)
    assert sampling["temperature"] == 0


def test_answers_of_tools_are_tied_to_calls_by_their_order(endpoint) -> None:
    made = endpoint(HI)
    call = {"function": {"name": "weather", "arguments": {}}}
    messages = [
        *HELLO["messages"],
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "sun", "tool_name": "weather"},
        {"role": "tool", "content": "rain", "tool_name": "weather"},
    ]
    assert chat(made, messages=messages, tools=[WEATHER]).status == 200
    found = made.asked["messages"]
    ids = [one["id"] for one in found[1]["tool_calls"]]
    assert [one["tool_call_id"] for one in found[2:]] == ids


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"options": {"num_gpu": 1}}, "options.num_gpu"),
        ({"options": {"num_ctx": 100_000}}, "num_ctx"),
        ({"options": {"repeat_penalty": 99}}, "options.repeat_penalty"),
        ({"messages": [{"role": "user", "content": "x", "images": ["a"]}]}, "images"),
        ({"template": "x"}, "template"),
    ],
    ids=str,
)
def test_refusals_name_the_field(endpoint, given, name) -> None:
    reply = chat(endpoint(), **given)
    assert reply.status == 400 and name in reply.json["error"]


def test_a_stream_that_fails_says_so_and_is_cut(endpoint) -> None:
    failed = [START, {"text": "Hi"}, {"error": {"code": "worker_died", "message": "dead"}}]
    reply = chat(endpoint(failed))
    assert "dead" in lines(reply)[-1]["error"] and not reply.complete


def test_nothing_asked_loads_and_no_time_unloads(endpoint) -> None:
    made = endpoint()
    reply = made.post("/api/generate", {"model": "tiny:latest"})
    assert reply.json["done_reason"] == "load"
    reply = made.post("/api/chat", {"model": "tiny", "keep_alive": 0})
    assert reply.json["done_reason"] == "unload" and len(made.host.unloaded) == 1


def test_vectors(endpoint) -> None:
    made = endpoint()
    reply = made.post("/api/embed", {"model": "tiny", "input": ["a", "bb"]})
    assert len(reply.json["embeddings"]) == 2


def test_models_are_listed_and_shown(endpoint) -> None:
    worker = {"name": "tiny", "path": "", "pid": 1, "running": 0, "waiting": 0, "restarts": 0}
    made = endpoint(workers=[])
    names = [one["name"] for one in made.get("/api/tags").json["models"]]
    assert names[0] == "tiny" and "guide" in names
    shown = made.post("/api/show", {"model": "tiny"}).json
    assert shown["details"]["family"] == "llama" and shown["capabilities"] == ["completion"]
    assert made.post("/api/show", {"model": "none"}).status == 404
    assert made.get("/api/ps").json == {"models": []}
    path = str(made.catalog.default.path)
    info = {"name": "tiny", "path": path}
    made = endpoint(
        workers=[{**worker, "path": path, "idle_s": 1.0, "keep_alive_s": -1, "info": info}]
    )
    [loaded] = made.get("/api/ps").json["models"]
    assert loaded["expires_at"].startswith("9999") and loaded["context_length"] == 512
    assert made.get("/api/version").json["version"]


def test_no_character_of_a_text_ends_a_line(endpoint) -> None:
    """Ollama's client reads lines as Python's splitlines does."""
    text = "a\u2028b\u2029c\x85d"
    reply = chat(endpoint([START, {"text": text}, {"finish": "stop"}]))
    found = [json.loads(line) for line in reply.body.decode().splitlines()]
    assert found[0]["message"]["content"] == text


def test_a_schema_that_allows_everything_is_a_schema(endpoint) -> None:
    made = endpoint(HI)
    chat(made, format={})
    assert made.asked["constraint"] == {"kind": "json_schema", "source": "{}"}


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_are_what_was_asked(endpoint, stream) -> None:
    made = endpoint()
    reply = chat(made, options={"num_predict": 0}, stream=stream)
    [whole] = lines(reply)
    assert whole["done"] and whole["done_reason"] == "length" and whole["message"]["content"] == ""
    assert whole["eval_count"] == 0 and whole["prompt_eval_count"] > 0
    assert not made.host.requests


def test_a_model_that_others_use_is_not_unloaded_under_them(endpoint) -> None:
    """The host unloads it when they are done."""
    made = endpoint()
    path = str(made.catalog.default.path)
    worker = {"name": "tiny", "path": path, "pid": 1, "running": 1, "waiting": 0, "restarts": 0}
    info = {"name": "tiny", "path": path}
    made = endpoint(workers=[{**worker, "idle_s": 0.0, "info": info}])
    reply = made.post("/api/chat", {"model": "tiny", "keep_alive": 0})
    assert reply.json["done_reason"] == "unload" and not made.host.unloaded
    assert made.host.specs[-1]["settings"]["keep_alive_s"] == 0


def test_a_model_of_another_machine_is_not_ours_to_keep(endpoint) -> None:
    chosen = asyncio.run(endpoint().catalog.find("tiny"))
    remote = replace(chosen, spec=replace(chosen.spec, backend="remote"))
    with pytest.raises(UnsupportedParameter, match="keep_alive"):
        with_keep_alive(remote, {"keep_alive": "5m"})
    assert with_keep_alive(remote, {}) == remote


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"a": 1e999, "b": NaN}', {"a": "1e999", "b": "NaN"}),
        (r'{"a": ["\ud800"]}', {"a": ["\ufffd"]}),
        ('{"a": ' * 900 + "1" + "}" * 900, {}),
        ('{"a": "cu', {}),
    ],
    ids=["no numbers", "no text", "too deep", "cut"],
)
def test_arguments_that_json_lacks_break_no_answer(endpoint, written, read) -> None:
    call = {"call": {"position": 0, "id": "call_1", "name": "weather", "arguments": written}}
    reply = chat(endpoint([START, call, {"finish": "tool_calls"}]), stream=False, tools=[WEATHER])
    assert reply.json["message"]["tool_calls"][0]["function"]["arguments"] == read
