"""`/v1/responses`: the request that reaches the model, and the answer for OpenAI's client."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from endpoints import HI, START, THINKS_AND_CALLS

HELLO = {"model": "tiny", "input": "hello"}
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TIME = {"type": "function", "name": "time"}
EVENT = TypeAdapter(ResponseStreamEvent)


def ask(made, **more):
    return made.post("/v1/responses", {**HELLO, **more})


def events(reply):
    numbered = reply.named_events
    assert [event["sequence_number"] for event in numbered] == list(range(len(numbered)))
    return numbered


def test_a_whole_answer_is_what_the_client_expects(endpoint) -> None:
    answer = Response.model_validate(ask(endpoint(HI)).json, strict=True)
    assert (answer.output_text, answer.status) == ("Hi there", "completed")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (7, 2)
    assert answer.previous_response_id is None


def test_thoughts_text_and_calls_are_items(endpoint) -> None:
    reply = ask(endpoint(THINKS_AND_CALLS), tools=[WEATHER])
    answer = Response.model_validate(reply.json, strict=True)
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert answer.output[2].arguments == '{"city":"Bern"}'
    assert answer.tools[0].name == "weather"


def test_a_stream_says_the_same_as_the_whole(endpoint) -> None:
    made = endpoint(THINKS_AND_CALLS, THINKS_AND_CALLS)
    whole = ask(made, tools=[WEATHER]).json
    found = events(ask(made, tools=[WEATHER], stream=True))
    for event in found:
        EVENT.validate_python(event, strict=True)
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == 3
    assert kinds.count("response.output_item.done") == 3

    def bare(output):
        return [{key: value for key, value in item.items() if key != "id"} for item in output]

    assert bare(found[-1]["response"]["output"]) == bare(whole["output"])
    said = [event["delta"] for event in found if event["type"].endswith(".delta")]
    assert said == ["Hm.", "Let me see.", '{"city":"Bern"}']


def test_an_answer_that_was_cut_is_incomplete(endpoint) -> None:
    steps = [START, {"text": "Hi"}, {"finish": "length"}]
    made = endpoint(steps, steps)
    answer = Response.model_validate(ask(made).json, strict=True)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert events(ask(made, stream=True))[-1]["type"] == "response.incomplete"


def test_a_stream_that_fails_says_so_and_is_cut(endpoint) -> None:
    failed = [START, {"text": "Hi"}, {"error": {"code": "worker_died", "message": "dead"}}]
    reply = ask(endpoint(failed), stream=True)
    found = events(reply)
    assert [event["type"] for event in found[-2:]] == ["response.failed", "error"]
    EVENT.validate_python(found[-1], strict=True)
    assert not reply.complete


@pytest.mark.parametrize(
    ("code", "given"),
    [
        ("prompt_too_long", "context_length_exceeded"),
        ("busy", "rate_limit_exceeded"),
        ("worker_died", "server_error"),
    ],
)
def test_a_failure_before_the_first_event_has_its_code(endpoint, code, given) -> None:
    """OpenAI's client needs `response.created` first; Codex takes the code from the response."""
    made = endpoint([{"progress": [1, 2]}, {"error": {"code": code, "message": "why"}}])
    reply = ask(made, stream=True)
    found = events(reply)
    kinds = [event["type"] for event in found]
    assert kinds.index("response.created") == 0 and kinds.count("response.created") == 1
    assert kinds[-2:] == ["response.failed", "error"]
    assert found[0]["response"]["status"] == "in_progress"
    assert found[0]["response"]["error"] is None
    error = found[-2]["response"]["error"]
    assert error["code"] == given and "why" in error["message"]
    assert reply.status == 200 and not reply.complete


def test_a_conversation_reaches_the_model(endpoint) -> None:
    made = endpoint(HI)
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "?"}]},
        {
            "type": "reasoning",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "Hm."}],
        },
        {"type": "message", "role": "assistant", "content": "Let me see."},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": "rain"},
    ]
    reply = ask(made, input=items, instructions="Be brief.", tools=[WEATHER])
    assert reply.status == 200, reply.body
    found = made.asked["messages"]
    assert [one["role"] for one in found] == ["system", "user", "assistant", "tool", "tool"]
    assert found[2]["reasoning"] == "Hm." and found[2]["content"] == "Let me see."
    assert [call["id"] for call in found[2]["tool_calls"]] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"reasoning": {"effort": "low"}}, {"template_values": {"reasoning_effort": "low"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
            {"constraint": {"kind": "json_schema", "source": "{}"}},
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather"}},
            {"tool_choice": "required", "forced_tool": "weather"},
        ),
        (
            {
                "tools": [WEATHER, {**WEATHER, "name": "time"}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "required",
                    "tools": [TIME],
                },
            },
            {"tool_choice": "required"},
        ),
    ],
    ids=str,
)
def test_fields_reach_the_model(endpoint, given, reached) -> None:
    made = endpoint(HI)
    reply = ask(made, **given)
    assert reply.status == 200, reply.body
    assert {name: made.asked[name] for name in reached} == reached


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [WEATHER], "tool_choice": TIME}, "tool_choice.name"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TIME]},
            },
            "tool_choice.tools",
        ),
    ],
    ids=str,
)
def test_refusals_name_the_field(endpoint, given, param) -> None:
    made = endpoint()
    reply = ask(made, **given)
    assert reply.status == 400 and made.host.requests == []
    assert param in (None, reply.error["param"])
    if param in ("tool_choice.name", "tool_choice.tools"):
        assert reply.error["message"].startswith(f'{param} is "time"')


def test_functions_of_namespaces_are_ordinary_and_keep_their_names(endpoint) -> None:
    def function(name: str) -> dict[str, Any]:
        return {"type": "function", "name": name, "parameters": {"type": "object"}}

    def space(name: str, *functions: str) -> dict[str, Any]:
        tools = [function(one) for one in functions]
        return {"type": "namespace", "name": name, "description": "x", "tools": tools}

    call = {"position": 0, "id": "call_1", "name": "b__run", "arguments": "{}"}
    made = endpoint([{"prompt_tokens": 7}, {"call": call}, {"finish": "tool_calls"}])
    tools = [function("open"), space("a", "run", "stop"), space("b", "run"), {"type": "web_search"}]
    history = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "1", "name": "run", "namespace": "a", "arguments": ""},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]
    reply = ask(made, tools=tools, input=history, client_metadata={"x": 1})
    assert [tool["name"] for tool in made.asked["tools"]] == ["open", "a__run", "stop", "b__run"]
    assert made.asked["messages"][1]["tool_calls"][0]["name"] == "a__run"
    [item] = reply.json["output"]
    assert (item["namespace"], item["name"]) == ("b", "run")
    assert reply.json["notices"] == [
        "tools[] (web_search) has no effect.",
        "client_metadata has no effect.",
    ]


def test_empty_instructions_are_none(endpoint) -> None:
    made = endpoint(HI, flags={"system": "Be brief."})
    ask(made, instructions="")
    assert [message["role"] for message in made.asked["messages"]] == ["user"]
