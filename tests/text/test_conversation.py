"""Messages and tools in the shape that templates read."""

from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Tool
from hearth.backends.text.conversation import (
    OPENAI_CALLS,
    CallStyle,
    message_values,
    tool_values,
)

CALL = ToolCall("c1", "look", '{"b": 1, "a": [2.5, null]}')


def test_fields_that_say_nothing_are_left_out():
    assert message_values([Message("user", "hi")], OPENAI_CALLS) == [
        {"role": "user", "content": "hi"}
    ]


def test_all_that_a_message_says():
    called = Message("assistant", "so", "hm", (CALL,), name="me")
    [value] = message_values([called], OPENAI_CALLS)
    arguments = {"b": 1, "a": [2.5, None]}
    assert value == {
        "role": "assistant",
        "content": "so",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look", "arguments": arguments},
            }
        ],
        "name": "me",
    }
    assert list(value["tool_calls"][0]["function"]["arguments"]) == ["b", "a"]


def test_arguments_as_text_are_not_touched():
    [value] = message_values([Message("assistant", tool_calls=(CALL,))], CallStyle("text", "none"))
    assert value["tool_calls"][0]["function"]["arguments"] == CALL.arguments
    assert value["content"] is None


def test_no_arguments_are_an_empty_object():
    bare = Message("assistant", tool_calls=(ToolCall("c1", "look", " "),))
    for style, expected in ((OPENAI_CALLS, {}), (CallStyle("text"), "{}")):
        [value] = message_values([bare], style)
        assert value["tool_calls"][0]["function"]["arguments"] == expected


def test_results_know_their_call_by_id_or_by_order():
    calls = (CALL, ToolCall("c2", "find", "{}"))
    chat = [
        Message("assistant", tool_calls=calls),
        Message("tool", "two", tool_call_id="c2"),
        Message("tool", "one"),
        Message("tool", "more"),
    ]
    told = [
        (value.get("tool_call_id"), value.get("name"))
        for value in message_values(chat, OPENAI_CALLS)[1:]
    ]
    assert told == [("c2", "find"), ("c1", "look"), (None, None)]


def test_tools_are_functions_and_always_have_parameters():
    assert tool_values([Tool("look", "Looks.", {"type": "object"}), Tool("find")]) == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Looks.",
                "parameters": {"type": "object"},
            },
        },
        {
            "type": "function",
            "function": {
                "name": "find",
                "description": "",
                "parameters": {"type": "object", "properties": {}},
            },
        },
    ]
