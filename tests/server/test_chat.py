"""`/v1/chat/completions`: the request that reaches the model, and the response."""

from __future__ import annotations

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

START = {"prompt_tokens": 7}
HI = [START, {"text": "Hi"}, {"text": " there"}, {"finish": "stop", "cached_tokens": 3}]
TWO = [
    START,
    {"text": "a", "index": 0},
    {"text": "x", "index": 1},
    {"text": "b", "index": 0},
    {"index": 0, "finish": "stop"},
    {"text": "y", "index": 1},
    {"index": 1, "finish": "length"},
    {"finish": "stop"},
]


def strict(model, value):
    """`value` as the client's own type; Hearth's extra fields are allowed, missing ones are not."""
    return model.model_validate(value, strict=True)


def deltas(events):
    """Text, role chunks and finish reason by choice."""
    texts, roles, reasons = {}, {}, {}
    for event in events:
        for choice in event["choices"]:
            index, delta = choice["index"], choice["delta"]
            assert index not in reasons
            texts[index] = texts.get(index, "") + delta.get("content", "")
            roles[index] = roles.get(index, 0) + ("role" in delta)
            if choice["finish_reason"]:
                reasons[index] = choice["finish_reason"]
    return texts, roles, reasons


def test_a_whole_answer_is_what_the_client_expects(endpoint) -> None:
    reply = endpoint(HI).chat()
    assert reply.status == 200 and reply.complete
    answer = strict(ChatCompletion, reply.json)
    assert answer.choices[0].message.content == "Hi there"
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.model, answer.object) == ("tiny", "chat.completion")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 2, 9)
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert reply.json["timings"]["ttft_s"] == 0.25


def test_a_stream_says_the_role_first_then_text_then_the_reason(endpoint) -> None:
    reply = endpoint(HI).chat(stream=True)
    assert reply.status == 200 and reply.complete
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done = reply.events
    assert done == "[DONE]"
    for event in events:
        strict(ChatCompletionChunk, event)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert deltas(events) == ({0: "Hi there"}, {0: 1}, {0: "stop"})
    assert len({(event["id"], event["created"]) for event in events}) == 1
    assert all("usage" not in event for event in events)


def test_the_usage_comes_last_if_it_is_asked_for(endpoint) -> None:
    reply = endpoint(HI).chat(stream=True, stream_options={"include_usage": True})
    *events, usage, _ = reply.events
    assert all(event["usage"] is None for event in events)
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 9
    strict(ChatCompletionChunk, usage)


def test_several_choices(endpoint) -> None:
    made = endpoint(TWO, TWO)
    whole = strict(ChatCompletion, made.chat(n=2).json)
    found = [
        (choice.index, choice.message.content, choice.finish_reason) for choice in whole.choices
    ]
    assert found == [(0, "ab", "stop"), (1, "xy", "length")]
    assert made.asked["n"] == 2
    streamed = made.chat(n=2, stream=True).events[:-1]
    assert deltas(streamed) == (
        {0: "ab", 1: "xy"},
        {0: 1, 1: 1},
        {0: "stop", 1: "length"},
    )


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"temperature": 0}, {"temperature": 0}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"min_p": 0.1}, {"min_p": 0.1}),
        ({"typical_p": 0.9}, {"typical_p": 0.9}),
        ({"seed": 5}, {"seed": 5}),
        ({"top_p": 0}, {"top_p": 1e-9}),
        ({"seed": -1}, {"seed": None}),
        ({"seed": -2}, {"seed": 2**64 - 2}),
        ({"presence_penalty": -1, "frequency_penalty": 2}, {"presence_penalty": -1}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"logit_bias": {"7": -100}}, {"logit_bias": {7: -100}}),
        ({"dry_sequence_breakers": ["."]}, {"dry_sequence_breakers": (".",)}),
        ({"xtc_probability": 0.5}, {"xtc_probability": 0.5}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"temperature": None}, {"temperature": 0.7}),
    ],
    ids=str,
)
def test_sampling_parameters_reach_the_model(endpoint, given, reached) -> None:
    made = endpoint(HI)
    assert made.chat(**given).status == 200
    sampling = made.asked["sampling"]
    assert {name: sampling[name] for name in reached} == reached


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 6}, {"max_tokens": 6}),
        ({}, {"max_tokens": None, "stop": (), "session": "http 127.0.0.1", "n": 1}),
        ({"stop": "\n"}, {"stop": ("\n",)}),
        ({"stop": ["a", "", "b"]}, {"stop": ("a", "b")}),
        ({"stop": [""]}, {"stop": ()}),
        ({"user": "ana"}, {"session": "http user ana"}),
        ({"min_tokens": 2, "ignore_eos": True}, {"min_tokens": 2, "ignore_eos": True}),
        ({"priority": 3}, {"priority": 3}),
    ],
    ids=str,
)
def test_limits_reach_the_model(endpoint, given, reached) -> None:
    made = endpoint(HI)
    assert made.chat(**given).status == 200
    assert {name: made.asked[name] for name in reached} == reached


def test_what_a_request_does_not_say_is_as_the_settings_have_it(endpoint) -> None:
    flags = {"temperature": 0.2, "max_tokens": 9, "stop": ("END",), "system": "Be brief."}
    made = endpoint(HI, HI, flags=flags)
    made.chat()
    assert made.asked["sampling"]["temperature"] == 0.2
    assert (made.asked["max_tokens"], made.asked["stop"]) == (9, ("END",))
    assert [m["role"] for m in made.asked["messages"]] == ["system", "user"]
    made.chat(messages=[{"role": "system", "content": "Sing."}, {"role": "user", "content": "?"}])
    assert [m["content"] for m in made.asked["messages"]] == ["Sing.", "?"]


def test_text_parts_are_one_text_and_developers_are_the_system(endpoint) -> None:
    made = endpoint(HI)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    answer = {"role": "assistant", "content": "?", "refusal": None, "tool_calls": []}
    messages = [{"role": "developer", "content": "d"}, answer, {"role": "user", "content": parts}]
    assert made.chat(messages=messages).status == 200
    found = [(message["role"], message["content"]) for message in made.asked["messages"]]
    assert found == [("system", "d"), ("assistant", "?"), ("user", "a\nb")]


USER = {"role": "user", "content": "hello"}
CALLS = [{"id": "c", "function": {"name": "f", "arguments": "{}"}}] * 1024


@pytest.mark.parametrize(
    "given",
    [
        {"messages": [USER] * 4096},
        {"messages": [{"role": "assistant", "tool_calls": CALLS}, USER]},
        {"tools": [{"function": {"name": f"f{number}"}} for number in range(1024)]},
    ],
    ids=["messages", "calls", "tools"],
)
def test_arrays_of_the_documented_length_are_accepted(endpoint, given) -> None:
    reply = endpoint(HI, flags={"system": "Be brief."}).chat(**given)
    assert reply.status == 200, reply.body


def test_log_probabilities_of_tokens(endpoint) -> None:
    made = endpoint(HI, HI)
    whole = strict(ChatCompletion, made.chat(logprobs=True, top_logprobs=1).json)
    tokens = whole.choices[0].logprobs.content
    assert [(token.token, token.bytes) for token in tokens] == [
        ("Hi", [72, 105]),
        (" there", list(b" there")),
    ]
    assert tokens[0].top_logprobs[0].logprob == -0.5
    streamed = made.chat(logprobs=True, stream=True).events[:-1]
    found = [event["choices"][0]["logprobs"] for event in streamed]
    assert [item["content"][0]["token"] for item in found if item] == ["Hi", " there"]


@pytest.mark.parametrize("schema", [{"type": "object"}, '{"type": "object"}'])
def test_a_schema_may_be_in_a_string(endpoint, schema) -> None:
    made = endpoint(HI, HI)
    for fields in ({"guided_json": schema}, {"structured_outputs": {"json": schema}}):
        assert made.chat(**fields).status == 200
        assert made.asked["constraint"] == {"kind": "json_schema", "source": '{"type": "object"}'}


def test_notices_are_said(endpoint) -> None:
    noticed = [{**START, "notices": ["The template drops the system prompt."]}, *HI[1:]]
    made = endpoint(noticed, noticed)
    assert made.chat().json["notices"] == ["The template drops the system prompt."]
    assert made.chat(stream=True).events[0]["notices"] == ["The template drops the system prompt."]


def test_prefill_keeps_the_connection_alive(endpoint) -> None:
    reply = endpoint([START, {"progress": [512, 1024]}, *HI[1:]]).chat(stream=True)
    assert ": prefill 512/1024" in reply.lines
    assert reply.events[-1] == "[DONE]"


def test_what_the_end_notices_is_said_in_a_stream(endpoint) -> None:
    steps = [START, {"text": "Hi", "index": 0}, {"finish": "stop", "index": 1}]
    steps += [{"finish": "stop", "index": 0}, {"finish": "stop", "notices": ["A call was cut."]}]
    events = endpoint(steps).chat(stream=True, n=2).events[:-1]
    ends = [event for event in events if event["choices"][0]["finish_reason"]]
    assert [event["choices"][0]["index"] for event in ends] == [1, 0]
    assert "notices" not in ends[0] and ends[1]["notices"] == ["A call was cut."]
