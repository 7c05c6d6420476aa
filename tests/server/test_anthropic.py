"""`/v1/messages`: the request that reaches the model, and the answer as Anthropic's client reads
it.
"""

from __future__ import annotations

import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from endpoints import CALL, HI, MORE, START, THINKS_AND_CALLS

HELLO = {
    "model": "tiny",
    "max_tokens": 64,
    "messages": [{"role": "user", "content": "hello"}],
}
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
EVENT = TypeAdapter(RawMessageStreamEvent)

FORMAT = {"type": "json_schema", "schema": {}}


def ask(made, **more):
    return made.post("/v1/messages", {**HELLO, **more})


def test_a_whole_answer_is_what_the_client_expects(endpoint) -> None:
    message = Message.model_validate(ask(endpoint(HI)).json, strict=True)
    assert [block.text for block in message.content] == ["Hi there"]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (7, 2)


def test_thoughts_and_calls_are_blocks(endpoint) -> None:
    reply = ask(endpoint(THINKS_AND_CALLS), tools=[WEATHER])
    message = Message.model_validate(reply.json, strict=True)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].input == {"city": "Bern"} and message.stop_reason == "tool_use"


def test_a_stream_opens_and_closes_every_block(endpoint) -> None:
    reply = ask(endpoint(THINKS_AND_CALLS), stream=True, tools=[WEATHER])
    found = reply.named_events
    for event in found:
        EVENT.validate_python(event, strict=True)
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == [
        "thinking_delta",
        "text_delta",
        "input_json_delta",
    ]
    assert [event["index"] for event in found if "index" in event] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert found[-2]["delta"]["stop_reason"] == "tool_use" and reply.complete


def test_cached_and_kept_tokens_are_counted_apart(endpoint) -> None:
    steps = [START, {"text": "Hi"}, {"finish": "stop", "cached_tokens": 3, "kept_tokens": 2}]
    usage = ask(endpoint(steps)).json["usage"]
    assert usage["cache_read_input_tokens"] == 3 and usage["cache_creation_input_tokens"] == 2
    assert usage["input_tokens"] == 2


def test_a_conversation_with_tools_reaches_the_model(endpoint) -> None:
    made = endpoint(HI)
    messages = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "no", "is_error": True},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    marked = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    reply = ask(made, messages=messages, system=marked, tools=[WEATHER])
    assert reply.status == 200, reply.body
    found = made.asked["messages"]
    assert [one["role"] for one in found] == ["system", "user", "assistant", "tool", "user"]
    assert found[0]["keep_s"] == 300 and found[2]["reasoning"] == "Hm."
    assert found[2]["tool_calls"][0]["arguments"] == '{"city": "Bern"}'
    assert (found[3]["tool_call_id"], found[3]["content"]) == ("c1", "Error: no")


@pytest.mark.parametrize(
    ("given", "reached"),
    [
        ({"stop_sequences": ["a", ""]}, {"stop": ("a",)}),
        ({"thinking": {"type": "disabled"}}, {"template_values": {"enable_thinking": False}}),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "weather"}},
            {"tool_choice": "required", "forced_tool": "weather"},
        ),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            },
            {"parallel_tool_calls": False},
        ),
        ({"metadata": {"user_id": "ana"}}, {"session": "http user ana"}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            {"constraint": {"kind": "json_schema", "source": "{}"}},
        ),
        (
            {"output_format": FORMAT, "output_config": {"effort": "low", "format": FORMAT}},
            {"constraint": {"kind": "json_schema", "source": "{}"}},
        ),
        ({"output_format": FORMAT}, {"constraint": {"kind": "json_schema", "source": "{}"}}),
    ],
    ids=str,
)
def test_fields_reach_the_model(endpoint, given, reached) -> None:
    made = endpoint(HI)
    reply = ask(made, **given)
    assert reply.status == 200, reply.body
    assert {name: made.asked[name] for name in reached} == reached


def test_an_answer_that_was_begun_goes_on(endpoint) -> None:
    made = endpoint(HI)
    begun = [*HELLO["messages"], {"role": "assistant", "content": "I"}]
    assert ask(made, messages=begun).status == 200
    assert made.asked["continue_last"] is True


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0].type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequence": ["x"]}, "stop_sequence"),
        ({"output_format": {**FORMAT, "schema": {"$ref": "x"}}}, "output_format.schema"),
        (
            {
                "output_format": FORMAT,
                "output_config": {"format": {**FORMAT, "schema": {"type": "object"}}},
            },
            "output_format",
        ),
    ],
    ids=str,
)
def test_refusals_have_anthropics_shape(endpoint, given, name) -> None:
    made = endpoint()
    reply = ask(made, **given)
    assert reply.status == 400 and made.host.requests == []
    assert reply.json["type"] == "error" and set(reply.json["error"]) == {
        *("type", "message", "param", "code")
    }
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert name in reply.json["error"]["message"]


def test_a_thread_is_refused_so_that_the_client_sends_the_whole_conversation(endpoint) -> None:
    error = ask(endpoint(), thread={"type": "create"}).json["error"]
    assert error["param"] == "thread"
    assert error["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


def test_tools_of_a_server_and_hints_are_left_out_with_a_notice(endpoint) -> None:
    made = endpoint(HI)
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"name": "N" * 128, "description": "x" * 20_000, "input_schema": {"type": "object"}},
    ]
    hints = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "output_config": {"effort": "medium"},
    }
    reply = ask(made, tools=tools, **hints)
    assert reply.status == 200
    assert [tool["name"] for tool in made.asked["tools"]] == ["N" * 128]
    assert reply.json["notices"] == [
        f"{name} has no effect."
        for name in (
            "tools[] (web_search_20250305)",
            "context_management",
            "thinking.budget_tokens",
        )
    ]


def test_a_stream_that_fails_says_so_and_is_cut(endpoint) -> None:
    reply = ask(
        endpoint([START, {"text": "Hi"}, {"error": {"code": "worker_died", "message": "dead"}}]),
        stream=True,
    )
    found = reply.named_events
    assert found[-1]["type"] == "error" and found[-1]["error"]["type"] == "overloaded_error"
    assert not reply.complete


def test_an_unknown_model_is_not_found(endpoint) -> None:
    reply = ask(endpoint(), model="claude")
    assert reply.status == 404 and reply.json["error"]["type"] == "not_found_error"


def test_tokens_are_counted(endpoint) -> None:
    body = {key: value for key, value in HELLO.items() if key != "max_tokens"}
    reply = endpoint().post("/v1/messages/count_tokens", body)
    assert reply.status == 200 and reply.json["input_tokens"] > 0


TEXT_AFTER_A_CALL = [START, {"text": "See:"}, CALL, MORE, {"text": "Done."}]
TEXT_AFTER_A_CALL += [{"finish": "tool_calls"}]


@pytest.mark.parametrize(
    "steps", [THINKS_AND_CALLS, TEXT_AFTER_A_CALL, [START, {"finish": "stop"}]], ids=str
)
def test_a_stream_says_the_same_as_the_whole(endpoint, steps) -> None:
    made = endpoint(steps, steps)
    whole = ask(made, tools=[WEATHER]).json
    message = None
    bufs = {}
    for event in ask(made, stream=True, tools=[WEATHER]).named_events:
        message = accumulate_event(
            event=EVENT.validate_python(event), current_snapshot=message, json_bufs=bufs
        )
    streamed = message.to_dict(exclude_none=True)
    assert streamed["content"] == whole["content"] and whole["content"]
    assert [streamed[key] for key in ("stop_reason", "usage")] == [
        whole[key] for key in ("stop_reason", "usage")
    ]


def test_the_settings_system_prompt_is_added_if_there_is_none(endpoint) -> None:
    made = endpoint(HI, flags={"system": "Be brief."})

    def sent(**more) -> list[str]:
        ask(made, **more)
        return [message["content"] for message in made.asked["messages"]]

    hello = HELLO["messages"]
    assert sent() == ["Be brief.", "hello"]
    assert sent(system="") == ["hello"]
    own = [{"role": "system", "content": "Be long."}, *hello]
    assert sent(messages=own) == ["Be long.", "hello"]
