"""What models of each family write, cut wherever it can be cut, always means the same."""

import itertools
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hearth.backends.contract.events import Part, Token, ToolCallPart
from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import CUT, UNREAD
from hearth.backends.text.output.families import format_of

TOOLS = (
    Tool(
        "get_weather",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    ),
    Tool(
        "add",
        parameters={
            "type": "object",
            "properties": {
                "a": {"type": ["number", "boolean", "object"]},
                "b": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            },
        },
    ),
    Tool("now"),
)
NOTICES = {"cut": CUT, "unread": UNREAD}


@dataclass
class Case:
    template: str
    name: str
    title: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    complete: int | None = None
    notices: list[str] = field(default_factory=list)
    prompt: str = ""
    tools: bool = True


@dataclass
class Answer:
    content: str
    reasoning: str
    calls: list[tuple[str, str, str]]
    complete: int
    notices: tuple[str, ...]


def cases() -> list[Case]:
    found = []
    for path in sorted((Path(__file__).parent / "transcripts").glob("*.toml")):
        family = tomllib.loads(path.read_text(encoding="utf-8"))
        head = {"template": family["template"], "name": family["name"]}
        found += [Case(**head, **case) for case in family["case"]]
    return found


def joined(parts: Iterable[Part]) -> tuple[str, str, list[tuple[str, str, str]]]:
    """Content, reasoning, and (id, name, arguments) of calls."""
    texts = {"content": "", "reasoning": ""}
    calls: list[tuple[str, str, str]] = []
    for part in parts:
        if isinstance(part, Token):
            assert part.text
            texts[part.channel] += part.text
        elif part.name:
            assert part.position == len(calls)
            assert part.id
            calls.append((part.id, part.name, part.arguments))
        else:
            assert isinstance(part, ToolCallPart)
            assert part.position == len(calls) - 1
            assert part.id == ""
            ident, name, arguments = calls[-1]
            calls[-1] = (ident, name, arguments + part.arguments)
    return texts["content"], texts["reasoning"], calls


def read(case: Case, pieces: Iterable[str]) -> Answer:
    counter = itertools.count()
    output_format = format_of(case.template, make_id=lambda: f"call_{next(counter)}")
    parser = output_format.parser(TOOLS if case.tools else (), case.prompt)
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    parts += parser.finish()
    return Answer(*joined(parts), parser.calls, parser.notices)


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.name}: {case.title}")
def test_transcript_means_what_is_written_beside_it_however_it_is_cut(case: Case) -> None:
    answer = read(case, [case.text])

    assert answer.content == case.content
    assert answer.reasoning == case.reasoning
    assert [[name, arguments] for _, name, arguments in answer.calls] == case.calls
    assert answer.complete == (len(case.calls) if case.complete is None else case.complete)
    assert answer.notices == tuple(NOTICES[notice] for notice in case.notices)
    if case.complete is None:
        assert all(isinstance(json.loads(arguments), dict) for _, _, arguments in answer.calls)
    assert read(case, case.text) == answer  # One character at a time.
    for at in range(1, len(case.text)):
        assert read(case, [case.text[:at], case.text[at:]]) == answer


@pytest.mark.parametrize(
    "family", ["hermes", "qwen-coder", "llama3", "mistral", "deepseek", "harmony", "json"]
)
def test_every_family_has_twenty_transcripts(family: str) -> None:
    assert sum(case.name == family for case in cases()) >= 20
