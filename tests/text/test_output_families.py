"""A template's own markers say which family it belongs to."""

import json

import pytest

from hearth.backends.contract.events import ToolCallPart
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.deepseek import DeepSeekFormat
from hearth.backends.text.output.families import described_format_of, format_of, takes_tools, thinks
from hearth.backends.text.output.generic import GenericFormat, Llama3Format
from hearth.backends.text.output.harmony import HarmonyFormat
from hearth.backends.text.output.hermes import HermesFormat
from hearth.backends.text.output.mistral import MistralFormat
from hearth.backends.text.output.qwen_coder import QwenCoderFormat

# Characteristic excerpts, as the templates of the models spell them.
EXCERPTS = {
    "Qwen 2.5": ('{%- if tools %}{{- "<tool_call>\\n{name: <function-name>" }}', HermesFormat),
    "Qwen 3": ("{{ tools }}<tool_call>\n{%- if enable_thinking %}<think></think>", HermesFormat),
    "Nemotron 2": (
        "{%- for tool in tools -%}{{- '<TOOLCALL>[' -}}{{- ']</TOOLCALL>'",
        HermesFormat,
    ),
    "Granite 3.3": ("{{ tools }} only with <|tool_call|> followed by a JSON list", HermesFormat),
    "Qwen 3 Coder": (
        "{{ tools }}<tool_call>\n<function=' ~ name ~ '><parameter='",
        QwenCoderFormat,
    ),
    "Functionary 3.1": ("{{ tools }}<function=example>{} <|python_tag|>", QwenCoderFormat),
    "Llama 3.1": ('{{ tools }}<|start_header_id|><|python_tag|>{"parameters": p}', Llama3Format),
    "Llama 3.2": ('{{ tools }}<|start_header_id|>{"name": n, "parameters": p}', Llama3Format),
    "Mistral Nemo": ('{% for tool in tools %}{{- "[TOOL_CALLS][" }}', MistralFormat),
    "Ministral 3": ("{{ tools }}[TOOL_CALLS]' + name + '[ARGS]' [THINK] [/THINK]", MistralFormat),
    "DeepSeek R1": (
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json </think>",
        DeepSeekFormat,
    ),
    "DeepSeek V3.1": ("<｜tool▁call▁begin｜>'+ name + '<｜tool▁sep｜>'</think>", DeepSeekFormat),
    "gpt-oss": ("{%- if tools %}<|start|>assistant<|channel|>analysis<|message|>", HarmonyFormat),
    "GLM 4.6": (
        "{{ tools }}<tool_call>{name}\n<arg_key>{key}</arg_key> <think></think>",
        GenericFormat,
    ),
    "another with tools": ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", GenericFormat),
    "SmolLM": ("{% for message in messages %}<think></think>{{ tools_text }}", GenericFormat),
    "Phi 3.5": ("{% for message in messages %}{{ message['content'] }}{% endfor %}", GenericFormat),
}


@pytest.mark.parametrize("model", EXCERPTS)
def test_family_of_a_template(model: str) -> None:
    excerpt, family = EXCERPTS[model]
    assert type(format_of(excerpt)) is family


def test_no_template_no_tools() -> None:
    assert type(format_of(None)) is GenericFormat
    assert not takes_tools(None)
    assert not thinks(None)


@pytest.mark.parametrize(
    ("template", "takes"),
    [
        ("{% if tools %}{{ tools | tojson }}", True),
        ("{{tools}}", True),
        ("{%- for t in tools -%}", True),
        ("{{ message.tool_calls }} [AVAILABLE_TOOLS] builtin_tools mytools tools_x", False),
        ("", False),
    ],
)
def test_a_template_takes_tools_if_it_shows_them(template: str, takes: bool) -> None:
    assert takes_tools(template) is takes


@pytest.mark.parametrize(
    ("template", "thinking"),
    [
        ("{% if enable_thinking is false %}", True),
        ("<think>", True),
        ("[THINK]", True),
        ("<|channel|>analysis", True),
        ("{{ message.reasoning_content }}", True),
        ("{{ message.content }}", False),
    ],
)
def test_a_template_thinks_if_it_speaks_of_it(template: str, thinking: bool) -> None:
    assert thinks(template) is thinking


def first_id(template: str, text: str) -> str:
    parts = format_of(template).parser((Tool("now"),), "").push(text)
    return next(part.id for part in parts if isinstance(part, ToolCallPart))


def test_ids_are_as_the_family_writes_them_and_never_the_same() -> None:
    mistral, text = "{{ tools }} [TOOL_CALLS]", '[TOOL_CALLS]now[ARGS]{"a": 1}'
    ids = {first_id(mistral, text) for _ in range(20)}
    assert len(ids) == 20
    assert all(len(ident) == 9 and ident.isalnum() for ident in ids)
    assert first_id(mistral, "[TOOL_CALLS]now[CALL_ID]abcdefgh1[ARGS]{}") == "abcdefgh1"
    other = first_id("{{ tools }}", '{"name": "now"}')
    assert other.startswith("call_")
    assert len(other) == len("call_") + 24


def test_markers_that_may_be_control_tokens_are_named() -> None:
    assert {"<tool_call>", "</tool_call>", "<think>", "</think>"} <= set(
        format_of("<tool_call> <think> </think>").markers
    )
    assert {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"} <= set(format_of("[TOOL_CALLS]").markers)
    assert {"<|channel|>", "<|message|>", "<|end|>", "<|call|>"} <= set(
        format_of("<|start|><|channel|>").markers
    )
    assert "<｜tool▁sep｜>" in format_of("<｜tool▁call▁begin｜>").markers


def test_the_channel_is_known_while_text_comes() -> None:
    parser = format_of("<think> </think>").parser((), "<|im_start|>assistant\n<think>\n")
    assert parser.channel == "reasoning"
    parser.push("hm</think>")
    assert parser.channel == "content"
    harmony = format_of("<|start|><|channel|>").parser((), "<|start|>assistant")
    harmony.push("<|channel|>analysis<|message|>")
    assert harmony.channel == "reasoning"
    harmony.push("x<|end|><|start|>assistant<|channel|>final<|message|>")
    assert harmony.channel == "content"


def test_arguments_come_as_they_are_written() -> None:
    parser = format_of("{{ tools }} <tool_call>").parser((Tool("now"),), "")
    [named] = parser.push('<tool_call>{"name": "now"')
    assert isinstance(named, ToolCallPart)
    assert (named.position, named.name, named.arguments) == (0, "now", "")
    assert parser.push(', "arguments": {"a": "on') == [ToolCallPart(0, arguments='{"a": "on')]
    assert parser.push('e", ') == [ToolCallPart(0, arguments='e", ')]
    assert parser.push('"b": 1}}') == [ToolCallPart(0, arguments='"b": 1}')]
    assert parser.calls == 1


def test_text_is_held_back_only_while_a_marker_may_begin() -> None:
    parser = format_of("{{ tools }} <tool_call>").parser((Tool("now"),), "")
    texts = ["Hello", " world", " <to", "ol", "s>"]
    given = ["".join(part.text for part in parser.push(text)) for text in texts]  # type: ignore[union-attr]
    assert given == ["Hello", " world", "", "", " <tools>"]


def test_described_tools_are_read_as_generic_json() -> None:
    template = "{{ messages }} <think> </think>"
    described = described_format_of(template)
    parser = described.parser((Tool("now"),), "<think>\n")
    parts = [*parser.push('hm</think>\n{"name": "now", "arguments": {}}'), *parser.finish()]
    assert [type(part) for part in parts[1:]] == [ToolCallPart, ToolCallPart]
    assert parser.calls == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": 5},
        {"type": 5},
        {"type": [["x"], None]},
        {"oneOf": [7, {"type": {}}]},
        {"type": "string", "enum": 5},
        True,
    ],
    ids=repr,
)
def test_a_schema_that_is_odd_inside_is_read_as_far_as_it_goes(schema: object) -> None:
    coder = format_of(EXCERPTS["Qwen 3 Coder"][0])
    tools = (Tool("f", parameters={"properties": {"a": schema}, "required": None}, strict=True),)
    assert coder.grammar("", content=None, tools=tools, required=True, parallel=True)
    parser = coder.parser(tools, "")
    call = "<tool_call>\n<function=f>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call>"
    parts = [*parser.push(call), *parser.finish()]
    assert parser.calls == 1 and not parser.notices
    assert json.loads("".join(part.arguments for part in parts))["a"] in ([1], "[1]")
