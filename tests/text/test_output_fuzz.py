"""Whatever a model writes, nothing is lost, and how it is cut makes no difference."""

import ast
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.backends.contract.events import Part, Token
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output import families
from hearth.backends.text.output.collector import CUT
from hearth.backends.text.output.families import format_of
from hearth.backends.text.output.parser import OutputParser

TEMPLATES = {
    "hermes": "{{ tools }} <tool_call> <think> </think>",
    "lists": "{{ tools }} <TOOLCALL>[ <think> </think>",
    "qwen-coder": "{{ tools }} <tool_call> <function=f> <parameter=p> <think> </think>",
    "llama3": '{{ tools }} <|start_header_id|> <|python_tag|> "parameters"',
    "mistral": "{{ tools }} [TOOL_CALLS] [ARGS] [THINK] [/THINK]",
    "deepseek": "{{ tools }} <｜tool▁call▁begin｜> ```json <think> </think>",
    "harmony": "{{ tools }} <|start|> <|channel|>",
    "json": "{{ tools }} <think> </think>",
    "plain": "<think> </think>",
}
OWN_PIECES = {
    "hermes": ("<tool_call>", "</tool_call>", "<tool_", "call>"),
    "lists": ("<TOOLCALL>", "</TOOLCALL>", "<TOOL"),
    "qwen-coder": (
        *("<tool_call>", "</tool_call>", "<function=", "<function=text>", "</function>"),
        *("<parameter=a>", "</parameter>", "<parameter=", "</", ">"),
    ),
    "llama3": ("<|python_tag|>", "<|python", ";"),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[TOOL"),
    "deepseek": (
        *("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"),
        *("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "function", "```", "```json", "<｜tool"),
    ),
    "harmony": (
        *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>"),
        *("analysis", "commentary", "final", "assistant", " to=functions.add", "json", " to="),
    ),
    "json": ("```json", "```", "``"),
    "plain": (),
}
HEADS = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": ',
    "lists": '<TOOLCALL>[{"name": "add", "arguments": ',
    "qwen-coder": "<tool_call>\n<function=add>\n",
    "llama3": '<|python_tag|>{"name": "add", "parameters": ',
    "mistral": "[TOOL_CALLS]add[ARGS]",
    "deepseek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n",
    "harmony": "<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
    "json": '```json\n[{"name": "add", "arguments": ',
    "plain": "<think>",
}
TAILS = {
    "hermes": "}\n</tool_call>",
    "lists": "}]</TOOLCALL>",
    "qwen-coder": "</function>\n</tool_call>",
    "llama3": "}",
    "mistral": "",
    "deepseek": "\n```<｜tool▁call▁end｜>",
    "harmony": "<|call|>",
    "json": "}]\n```",
    "plain": "</think>",
}
BODIES = ('{"a": [1, {"b": "WORD"}]}', '{"a": "WORD', "{}", '"{\\"a\\": \\"WORD\\"}"', "null")
PIECES = (
    *(
        "<think>",
        "</think>",
        "<",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ",",
        ":",
        " ",
        "\n",
        "1",
        "-",
        ".",
    ),
    *('"name":', '"arguments":', '"parameters":', '"function":', '"add"', '"now"', '"rm"', "add"),
    *('{"name": "add", "arguments": ', '{"a": 1}', "{}", "null", '"{}"', "}}", '{"a": "', "é🌧"),
    *(
        "WORD",
        "WORD",
        "WORD",
        '"WORD"',
        '{"a": "WORD"}',
        '{"name": "add", "arguments": {"a": "WORD',
    ),
)
TOOLS = (
    Tool("add", parameters={"type": "object", "properties": {"a": {"type": "number"}}}),
    Tool("text", parameters={"type": "object", "properties": {"a": {"type": "string"}}}),
    Tool("now"),
)


@st.composite
def written(draw: st.DrawFn) -> tuple[str, str, list[str], int]:
    """A family, an output, the words in it that mean something, and where to cut it."""
    family = draw(st.sampled_from(sorted(TEMPLATES)))
    head, tail = HEADS[family], TAILS[family]
    whole = (head + body + tail for body in BODIES)
    value = "<parameter=WORD>\nWORD\n</parameter>" if family == "qwen-coder" else ""
    alphabet = st.sampled_from(
        (*PIECES, *OWN_PIECES[family] * 3, head, head, *whole, head + value, head + value + tail)
    )
    text = "".join(draw(st.lists(alphabet, max_size=25)))
    words = [f"w{number:03}" for number in range(text.count("WORD"))]
    for word in words:
        text = text.replace("WORD", word, 1)
    return family, text, words, draw(st.integers(0, len(text)))


def read(family: str, pieces: Sequence[str], tools: Sequence[Tool] = TOOLS) -> dict[str, object]:
    """Everything that came out, joined."""
    counter = itertools.count()
    output_format = format_of(TEMPLATES[family], make_id=lambda: f"#{next(counter)}")
    parser = output_format.parser(tools, "")
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    parts += parser.finish()
    return {"parts": merged(parts), "calls": parser.calls, "notices": parser.notices}


def merged(parts: Sequence[Part]) -> list[list[str]]:
    """Neighbours of one kind as one: [kind, text], in order."""
    out: list[list[str]] = []
    for part in parts:
        if isinstance(part, Token):
            kind, text = part.channel, part.text
        else:
            if part.name:
                out.append([f"call {part.position} {part.id}", part.name])
            kind, text = f"arguments {part.position}", part.arguments
        if text and out and out[-1][0] == kind:
            out[-1][1] += text
        elif text:
            out.append([kind, text])
    return out


@given(written())
def test_cuts_make_no_difference_and_no_word_is_lost(case: tuple[str, str, list[str], int]) -> None:
    family, text, words, at = case
    whole = read(family, [text])
    assert read(family, text) == whole
    assert read(family, [text[:at], text[at:]]) == whole
    parts = whole["parts"]
    assert isinstance(parts, list)
    said = " ".join(" ".join(part) for part in parts)
    assert [word for word in words if word not in said] == []
    calls = [part for part in parts if part[0].startswith("call")]
    assert isinstance(whole["calls"], int)
    assert whole["calls"] <= len(calls)
    if whole["calls"] == len(calls) and CUT not in (whole["notices"] or ()):  # type: ignore[operator]
        for part in parts:
            if part[0].startswith("arguments"):
                assert isinstance(json.loads(part[1]), dict)


@given(written())
def test_without_tools_everything_but_reasoning_is_content(
    case: tuple[str, str, list[str], int],
) -> None:
    family, text, words, _ = case
    result = read(family, [text], tools=())
    assert result["calls"] == 0
    assert result["notices"] == ()
    parts = result["parts"]
    assert isinstance(parts, list)
    assert {part[0] for part in parts} <= {"content", "reasoning"}
    said = "".join(part[1] for part in parts)
    assert all(word in said for word in words)


@given(st.text(), st.sampled_from(sorted(TEMPLATES)))
def test_any_text_without_markers_comes_out_as_it_is(text: str, family: str) -> None:
    if not text.lstrip().startswith(("[", "{")) and not {"<", "[", "`"} & set(text):
        parts = [["content", text]] if text else []
        assert read(family, text) == {"parts": parts, "calls": 0, "notices": ()}


def parser_of(family: str) -> OutputParser:
    return format_of(TEMPLATES[family]).parser(TOOLS, "")


@pytest.mark.parametrize("family", sorted(TEMPLATES))
@pytest.mark.parametrize("kind", ["[", "{", " ", "tags", "calls"])
def test_hostile_text_of_a_megabyte_is_read_in_linear_time(family: str, kind: str) -> None:
    own = OWN_PIECES[family] or ("<think>",)
    piece = {"tags": own[0], "calls": own[0] + '{"name":"add","arguments":{"a":['}.get(kind, kind)
    size = 100_000 if kind in (" ", "calls") else 1_000_000
    text = piece * (size // len(piece))
    parser = parser_of(family)
    given = [*parser.push(text), *parser.finish()]
    assert sum(len(part.text) for part in given if isinstance(part, Token)) <= len(text)
    assert len(parser.notices) <= 2


def test_no_backtracking_and_nothing_executed() -> None:
    """Model text meets no regular expression (they can take exponential time) and no `eval`."""
    folder = Path(families.__file__).parent
    banned = {"eval", "exec", "compile", "literal_eval", "__import__"}
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & {"re", "regex", "ast"}, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in {"re", "regex", "ast"}, path
            elif isinstance(node, ast.Call):
                called = node.func
                name = called.attr if isinstance(called, ast.Attribute) else None
                name = called.id if isinstance(called, ast.Name) else name
                assert name not in banned, path
