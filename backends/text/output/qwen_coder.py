"""Qwen3-Coder, Qwen3.5, Nemotron 3: `<function=name><parameter=key>value</parameter></function>`
between `<tool_call>` tags; Functionary 3.1: `<function=name>{...}</function>`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output import reading
from hearth.backends.text.output.collector import Collector, Cut, Unreadable
from hearth.backends.text.output.json_scanner import SPACE, is_begun, is_json
from hearth.backends.text.output.lark import Lark, quoted
from hearth.backends.text.output.rules import json_rule
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat
from hearth.backends.text.stops import MarkerSearch

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_FUNCTION: Final = "<function="
_END: Final = "</function>"
_PARAMETER: Final = "<parameter="
_PARAMETER_END: Final = "</parameter>"
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_PLAIN_STRING: Final = frozenset(("type", "description", "title", "default", "examples", "enum"))
_PLAIN_OBJECT: Final = frozenset(
    ("type", "description", "title", "properties", "required", "additionalProperties", "$schema")
)


@dataclass(frozen=True)
class QwenCoderFormat(TaggedFormat):
    """Both forms are parsed. A value is text if its schema says that it is a string, or if it has
    no schema; otherwise it is JSON."""

    is_wrapped: bool
    """A call is between `<tool_call>` tags."""
    is_json: bool
    """The template writes arguments as one JSON object, so grammars require that form."""

    def style(self, tools: Sequence[Tool]) -> Style:
        schemas = {tool.name: tool.parameters for tool in tools}
        read = {_OPEN: partial(_read_wrapped, schemas), _FUNCTION: partial(_read, schemas)}
        return Style(self.think, read, closers=(_END, _CLOSE))

    def calls(self, lark: Lark) -> str:
        begin = f"{lark.mark(_OPEN)} /\\n?/ {quoted(_FUNCTION)}"
        begin = begin if self.is_wrapped else quoted(_FUNCTION)
        call = lark.rule(f"{begin} {self._rest(lark)}")
        return lark.repeated(call, f"/\\n?/ {call}")

    def free(self, lark: Lark) -> str:
        return lark.free(_FUNCTION, self._rest(lark))

    def _rest(self, lark: Lark) -> str:
        """The rule for a call, after `<function=`."""
        call = lark.one_of(
            f"{quoted(tool.name + '>')} {self._body(lark, tool)}" for tool in lark.tools
        )
        end = quoted(_END)
        return lark.rule(
            f"{call} {end} /\\n?/ {lark.mark(_CLOSE)}" if self.is_wrapped else f"{call} {end}"
        )

    def _body(self, lark: Lark, tool: Tool) -> str:
        is_bound = lark.binds(tool)
        if self.is_json or (is_bound and not _is_plain(tool.parameters)):
            return lark.arguments(tool)
        if not is_bound:
            value = lark.until(_PARAMETER_END)
            return lark.rule(f'"\\n" ("{_PARAMETER}" /[^>\\n]{{1,64}}/ ">\\n" {value} "\\n")*')
        needed = tool.parameters.get("required") or ()
        members = (
            _member(lark, key, schema) + ("" if key in needed else "?")
            for key, schema in _properties(tool.parameters).items()
        )
        return lark.rule(" ".join(('"\\n"', *members)))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schemas of the arguments by name."""
    return schema.get("properties") or {}


def _is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether an object written value by value with tags can be guaranteed to follow the schema."""
    properties = _properties(schema)
    return set(schema) <= _PLAIN_OBJECT and all(
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and (value["type"] != "string" or _is_plain_string(value))
        and "$ref" not in json.dumps(value)
        and not set(key) & set(">\n")
        for key, value in properties.items()
    )


def _is_plain_string(schema: Mapping[str, Any]) -> bool:
    """Whether a string of this schema can be written as it is."""
    choices = _listed(schema.get("enum"))
    are_texts = bool(choices) and all(isinstance(one, str) for one in choices)
    return set(schema) <= _PLAIN_STRING and (are_texts or "enum" not in schema)


def _member(lark: Lark, key: str, schema: dict[str, Any]) -> str:
    """A rule for one value with its tags."""
    begin, end = quoted(f"{_PARAMETER}{key}>\n"), quoted(f"\n{_PARAMETER_END}\n")
    if schema["type"] != "string":
        return lark.rule(f"{begin} {lark.rule(json_rule(schema))} {end}")
    if "enum" in schema:
        return lark.rule(f"{begin} {lark.one_of(map(quoted, schema['enum']))} {end}")
    return lark.rule(f'{begin} {lark.until(_PARAMETER_END)} "\\n"')


def _read_wrapped(
    schemas: Mapping[str, Mapping[str, Any]], collector: Collector
) -> reading.Reader[None]:
    """Read the text after `<tool_call>`: a call of either form, or another family's envelope."""
    first = yield from reading.visible()
    if first != _FUNCTION[0]:
        yield from reading.envelopes_from(first, collector)
        return
    yield from reading.literal(_FUNCTION[1:])
    yield from _read(schemas, collector)


def _read(schemas: Mapping[str, Mapping[str, Any]], collector: Collector) -> reading.Reader[None]:
    """Read the text after `<function=`."""
    name, _ = yield from reading.named(reading.word(">"))
    name = name.strip()
    collector.open_call(name)
    properties = _properties(schemas[name])
    char = yield from reading.visible()
    if char == "{":
        yield from reading.arguments_from(char, collector)
        return
    keys: set[str] = set()
    while True:
        if char != "<":
            raise Unreadable
        char = yield
        if char == "/":
            yield from reading.literal(_END[2:])
            break
        if char != _PARAMETER[1]:
            raise Unreadable
        yield from reading.literal(_PARAMETER[2:])
        key, _ = yield from reading.word(">")
        if key in keys:
            raise Unreadable
        head = f"{', ' if keys else '{'}{json.dumps(key, ensure_ascii=False)}: "
        keys.add(key)
        yield from _read_value(collector, head, _kinds(properties.get(key)))
        char = yield from reading.visible()
    collector.write_arguments("}" if keys else "{}")
    collector.close_call()


def _read_value(
    collector: Collector, head: str, kinds: frozenset[str] | None
) -> reading.Reader[None]:
    """Read a value up to its closing tag; `head` is the text before it in the arguments."""
    search = MarkerSearch((_PARAMETER_END,))
    marker = None
    if kinds is not None:
        texts: list[str] = []
        try:
            while marker is None:
                text, marker, _ = search.find((yield))
                texts.append(text)
        except Cut:
            value = "".join(texts).strip(SPACE)
            is_value = is_begun(value) or is_json(value)
            collector.write_arguments(head + (value if is_value else json.dumps(value)[:-1]))
            raise
        collector.write_arguments(head + _value("".join(texts), kinds))
        return
    collector.write_arguments(head + '"')
    is_first, newline = True, ""
    while marker is None:
        text, marker, _ = search.find((yield))
        if not text:
            continue
        text = newline + (text.removeprefix("\n") if is_first else text)
        is_first = False
        newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if text:
            escaped = json.dumps(text, ensure_ascii=False)[1:-1]
            collector.write_arguments(escaped, newline + search.held + (marker or ""))
    collector.write_arguments('"')


def _kinds(schema: Any) -> frozenset[str] | None:
    """The JSON types that `schema` allows, empty if it names none; None if only text."""
    if not isinstance(schema, dict) or not schema:
        return None
    branches = [schema, *_listed(schema.get("anyOf")), *_listed(schema.get("oneOf"))]
    kinds: set[str] = set()
    for branch in branches:
        kind = branch.get("type") if isinstance(branch, dict) else None
        kinds.update(one for one in (kind, *_listed(kind)) if isinstance(one, str))
    return None if kinds == {"string"} else frozenset(kinds)


def _listed(value: Any) -> Sequence[Any]:
    """`value` if it is a list, else empty; the inner parts of a schema are not checked before."""
    return value if isinstance(value, (list, tuple)) else ()


def _value(text: str, kinds: frozenset[str]) -> str:
    """The JSON text of a value: `text` if that is JSON of one of `kinds`, otherwise a string that
    contains it.
    """
    value = text.strip(SPACE)
    value = _PYTHON_WORDS.get(value, value)
    if is_json(value) and (not kinds or _kind(value) & kinds):
        return value
    return json.dumps(text.removeprefix("\n").removesuffix("\n"), ensure_ascii=False)


def _kind(value: str) -> set[str]:
    """The JSON types of the JSON text `value`."""
    names = {'"': "string", "{": "object", "[": "array", "n": "null"}
    names |= {"t": "boolean", "f": "boolean"}
    if value[0] in names:
        return {names[value[0]]}
    return {"number"} if set(value) & set(".eE") else {"number", "integer"}
