"""Fields of chats only: each refuses, with its name, values that it cannot honour."""

import math
from dataclasses import replace
from functools import reduce

import pytest

from hearth.backends.contract.checks import typed
from hearth.backends.contract.messages import Message, ToolCall
from hearth.backends.contract.requests import Request, Tool
from hearth.backends.engine.validate import validate
from hearth.backends.engine.validate_chat import (
    LONGEST_NAME_BYTES,
    LONGEST_TOOL_NAME,
    MOST_CALLS,
    MOST_MESSAGES,
    MOST_TOOLS,
    TEMPLATE_VALUES,
)
from hearth.backends.errors import InvalidParameter

USER = Message("user", "Hi")
CALL = ToolCall("1", "look", '{"what": ["sea", 1.5, null]}')
CALLED = Message("assistant", tool_calls=(CALL,))
CHAT = Request(messages=(USER,))
LOOK = Tool("look", "Looks.", {"type": "object"})
DEEP_SCHEMA = reduce(lambda inner, _: {"not": inner}, range(31), {})


def refused(request):
    with pytest.raises(InvalidParameter) as caught:
        validate(typed(request), 100)
    assert caught.value.message and caught.value.hint
    return caught.value.param


def test_a_whole_conversation_passes():
    messages = (
        Message("system", "Rule.", keep_s=86_400),
        USER,
        replace(CALLED, reasoning="hm", content="Wait."),
        Message("tool", "blue", tool_call_id="1", name="look"),
        Message("tool", "no id"),
        Message.of_parts("user", ["a", "b"]),
        Message("assistant", "Blue"),
    )
    validate(Request(messages=messages, tools=(LOOK,), continue_last=True), 100)
    validate(Request(messages=(USER,) * MOST_MESSAGES), 100)


def with_call(**changes):
    return replace(CALLED, tool_calls=(replace(CALL, **changes),))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (Message("user", "a", reasoning="b"), "reasoning"),
        (Message("assistant", "a", reasoning=5), "reasoning"),
        (replace(CALLED, role="user"), "tool_calls"),
        (Message("assistant", tool_calls=5), "tool_calls"),
        (Message("assistant", tool_calls=(CALL,) * (MOST_CALLS + 1)), "tool_calls"),
        (Message("assistant", tool_calls=("look",)), "tool_calls[0]"),
        (with_call(id=""), "tool_calls[0].id"),
        (with_call(id=5), "tool_calls[0].id"),
        (with_call(id="x" * (LONGEST_NAME_BYTES + 1)), "tool_calls[0].id"),
        (with_call(name=""), "tool_calls[0].name"),
        (with_call(name="\ud800"), "tool_calls[0].name"),
        (with_call(arguments=5), "tool_calls[0].arguments"),
        (with_call(arguments="x" * (1 << 20) + "x"), "tool_calls[0].arguments"),
        (Message("user", "a", parts=5), "parts"),
        (Message("user", "5", parts=(5,)), "parts[0]"),
        (Message("user", "ab", parts=("a", "b")), "parts"),
        (Message("user", "a", parts=("a",) * 4097), "parts"),
        (Message("user", "a", tool_call_id="1"), "tool_call_id"),
        (Message("tool", "a", tool_call_id=5), "tool_call_id"),
        (Message("user", "a", name="x" * (LONGEST_NAME_BYTES + 1)), "name"),
        (Message("user", "a", keep_s=-1), "keep_s"),
        (Message("user", "a", keep_s=86_401), "keep_s"),
        (Message("user", "a", keep_s=math.nan), "keep_s"),
        (Message("user", "a", keep_s=True), "keep_s"),
        (Message("user", "a", keep_s="5"), "keep_s"),
    ],
)
def test_messages_that_are_refused(message, field):
    assert refused(Request(messages=(USER, message))) == f"messages[1].{field}"


@pytest.mark.parametrize(
    "arguments",
    [
        "[1]",
        "5",
        "{1",
        '{"a": 1}}',
        '{"a": 1e999',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        "x",
    ]
    + ['{"a": ' + "[" * depth + "]" * depth + "}" for depth in (64, 100_000)],
)
def test_arguments_are_a_json_object(arguments):
    request = Request(messages=(USER, with_call(arguments=arguments)))
    assert refused(request) == "messages[1].tool_calls[0].arguments"


@pytest.mark.parametrize(
    "arguments",
    ["", " ", "{}", "{", '{"a": "b\\', '{"a": ' + "[" * 63 + "]" * 63 + "}", ' {"a": 1, "a": 2} '],
)
def test_arguments_that_pass(arguments):
    validate(Request(messages=(USER, with_call(arguments=arguments))), 100)


def test_numbers_of_messages():
    assert refused(Request(messages=(USER,) * (MOST_MESSAGES + 1))) == "messages"
    kept = (replace(USER, keep_s=1.0),)
    validate(Request(messages=kept * 8), 100)
    assert refused(Request(messages=(USER, *kept * 9))) == "messages[9].keep_s"


@pytest.mark.parametrize(
    "last", [USER, Message("tool", "a"), CALLED], ids=["user", "tool", "with calls"]
)
def test_only_an_answer_can_be_continued(last):
    assert refused(Request(messages=(USER, last), continue_last=True)) == "continue_last"
    validate(Request(messages=(USER, last)), 100)


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ("look", ""),
        (replace(LOOK, name=""), ".name"),
        (replace(LOOK, name="a b"), ".name"),
        (replace(LOOK, name="look\n"), ".name"),
        (replace(LOOK, name="\u00e9"), ".name"),
        (replace(LOOK, name="x" * (LONGEST_TOOL_NAME + 1)), ".name"),
        (replace(LOOK, name=5), ".name"),
        (replace(LOOK, description=None), ".description"),
        (replace(LOOK, strict=1), ".strict"),
        (replace(LOOK, parameters=[]), ".parameters"),
        (replace(LOOK, parameters={"$ref": "http://x"}, strict=True), ".parameters"),
        (replace(LOOK, parameters={"title": "x" * (64 << 10)}), ".parameters"),
        (replace(LOOK, parameters={"not": DEEP_SCHEMA}), ".parameters"),
        (replace(LOOK, parameters={"a": math.nan}), ".parameters"),
        (replace(LOOK, parameters={"type": "string"}), ".parameters.type"),
        (replace(LOOK, parameters={"type": None}), ".parameters.type"),
        (replace(LOOK, parameters={"properties": ["a"]}), ".parameters.properties"),
        (replace(LOOK, parameters={"required": 5}), ".parameters.required"),
        (replace(LOOK, parameters={"required": [{}]}), ".parameters.required"),
    ],
)
def test_tools_that_are_refused(tool, field):
    other = Tool("other")
    assert refused(replace(CHAT, tools=(other, tool))) == f"tools[1]{field}"


def test_tools_that_pass():
    validate(replace(CHAT, tools=tuple(Tool(f"Tool-{n}_x") for n in range(MOST_TOOLS))), 100)
    validate(replace(CHAT, tools=(replace(LOOK, parameters={}, strict=True),)), 100)
    long = Tool("x" * LONGEST_TOOL_NAME, "d" * (1 << 20))
    validate(replace(CHAT, tools=(long,)), 100)
    for schema in ({"type": ["object", "null"]}, {"properties": None, "required": None}):
        validate(replace(CHAT, tools=(replace(LOOK, parameters=schema),)), 100)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "x" * 513}}},
        {"properties": {"a": {"$ref": "http://x"}}},
        {"properties": {"a": {"enum": list(range(4000))}}},
        {"properties": {"default": {"pattern": "x" * 513}}},
    ],
)
def test_a_schema_is_checked_in_full_only_where_it_binds(schema):
    shown = replace(CHAT, tools=(replace(LOOK, parameters=schema), Tool("other", strict=True)))
    validate(shown, 100)
    assert refused(replace(shown, tool_choice="required")) == "tools[0].parameters"
    strict = replace(CHAT, tools=(Tool("other"), replace(LOOK, parameters=schema, strict=True)))
    assert refused(strict) == "tools[1].parameters"


@pytest.mark.parametrize("keyword", ["default", "const", "enum", "examples"])
def test_data_in_a_schema_has_no_keywords(keyword):
    data = [{"$ref": "main", "pattern": "x" * 513, "x-guidance": {}}]
    schema = {"properties": {"$ref": {keyword: data}}}
    validate(replace(CHAT, tools=(replace(LOOK, parameters=schema, strict=True),)), 100)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": 5}, "tools"),
        ({"tools": (LOOK,) * (MOST_TOOLS + 1)}, "tools"),
        ({"tools": (LOOK, LOOK)}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "any", "tools": (LOOK,)}, "tool_choice"),
        ({"forced_tool": "look", "tools": (LOOK,)}, "forced_tool"),
        ({"forced_tool": "find", "tools": (LOOK,), "tool_choice": "required"}, "forced_tool"),
        ({"forced_tool": 5, "tools": (LOOK,)}, "forced_tool"),
    ],
)
def test_choices_that_are_refused(fields, param):
    assert refused(replace(CHAT, **fields)) == param


def test_choices_that_pass():
    required = replace(CHAT, tools=(LOOK,), tool_choice="required")
    validate(required, 100)
    validate(replace(required, forced_tool="look", parallel_tool_calls=False), 100)
    validate(replace(CHAT, tools=(LOOK,), tool_choice="none"), 100)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": (LOOK,)},
        {"template_values": {"thinking": True}},
        {"continue_last": True},
        {"add_generation_prompt": False},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_only_chats_have(fields):
    assert refused(Request(text="a", **fields)) == next(iter(fields))


DEEP = [[[[[[[[[[[[[[[["x"]]]]]]]]]]]]]]]]


@pytest.mark.parametrize(
    ("values", "param"),
    [
        (5, "template_values"),
        ({"messages": []}, "template_values.messages"),
        ({"tools": []}, "template_values.tools"),
        ({"x" * 1000: 1}, "template_values." + "x" * 64),
        ({5: 1}, "template_values"),
        ({"enable_thinking": 1}, "template_values.enable_thinking"),
        ({"thinking": "yes"}, "template_values.thinking"),
        ({"preserve_thinking": None}, "template_values.preserve_thinking"),
        ({"reasoning_effort": "huge"}, "template_values.reasoning_effort"),
        ({"reasoning_effort": []}, "template_values.reasoning_effort"),
        ({"documents": "text"}, "template_values.documents"),
        ({"documents": [DEEP]}, "template_values.documents"),
        ({"documents": ["x" * 16 * 1024]}, "template_values.documents"),
        ({"documents": [math.inf]}, "template_values.documents"),
        ({"documents": [b"x"]}, "template_values.documents"),
        ({"documents": ["\ud800"]}, "template_values.documents"),
    ],
)
def test_values_for_the_template_that_are_refused(values, param):
    assert refused(replace(CHAT, template_values=values)) == param


def test_values_for_the_template_that_pass():
    samples = {"bool": True, "effort": "xhigh", "list": DEEP}
    values = {name: samples[kind] for name, kind in TEMPLATE_VALUES.items()}
    validate(replace(CHAT, template_values=values), 100)
