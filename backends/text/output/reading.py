"""Readers of calls: coroutines that are sent one character at a time.

A reader returns on the last character of what it reads. It raises `Unreadable` on the first
character that it cannot accept, which is then not part of what it read. It never raises after
passing something to the collector in the same step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from hearth.backends.text.output.collector import Collector, Cut, Unreadable
from hearth.backends.text.output.json_scanner import SPACE, JsonScanner, Step, is_begun, is_json

LONGEST_NAME: Final = 256
"""Most characters of the name or header of a call."""

Result = TypeVar("Result")
Reader = Generator[None, str, Result]
ReadCall = Callable[[Collector], Reader[None]]
"""Creates the reader of the text after a marker."""

_NAME_KEYS: Final = ("name", "function", "tool_name")
_ARGUMENT_KEYS: Final = ("arguments", "parameters")
_OTHER_KEYS: Final = ("id", "type", "index", "tool_call_id")


def visible() -> Reader[str]:
    """Read up to the next character that is not white space, and return it."""
    while (char := (yield)) in SPACE:
        pass
    return char


def literal(text: str) -> Reader[None]:
    """Read exactly `text`."""
    for expected in text:
        if (yield) != expected:
            raise Unreadable


def word(stops: str, first: str = "") -> Reader[tuple[str, str]]:
    """Read up to one of the characters `stops`; returns `first` and the text, and the stop."""
    chars = [first]
    try:
        while (char := (yield)) not in stops:
            if len(chars) == LONGEST_NAME:
                raise Unreadable
            chars.append(char)
    except Cut:
        raise Cut("".join(chars)) from None
    return "".join(chars), char


def named(reader: Reader[Result]) -> Reader[Result]:
    """Run `reader`, which reads the name of a call."""
    try:
        return (yield from reader)
    except Cut as cut:
        raise Cut(name=cut.read.strip().removeprefix('"')) from None


def string(first: str) -> Reader[str]:
    """Read a JSON string whose first character is `first`; returns its JSON text."""
    if first != '"':
        raise Unreadable
    chars: list[str] = []
    try:
        yield from scan(first, chars.append)
    except Cut:
        raise Cut("".join(chars)) from None
    return "".join(chars)


def scan(first: str, take: Callable[[str], None]) -> Reader[None]:
    """Read a JSON value other than a number whose first character is `first`; every character is
    passed to `take` as it arrives.
    """
    scanner = JsonScanner()
    step = scanner.take(first)
    while step is Step.MORE:
        take(first)
        first = yield
        step = scanner.take(first)
    if step is not Step.END:
        raise Unreadable
    take(first)


def skip(first: str) -> Reader[str]:
    """Read any JSON value; returns the first visible character after it."""
    scanner = JsonScanner()
    step = scanner.take(first)
    while step is Step.MORE:
        first = yield
        step = scanner.take(first)
    if step is Step.BAD:
        raise Unreadable
    if step is Step.END or first in SPACE:
        first = yield from visible()
    return first


def arguments(collector: Collector) -> Reader[None]:
    """Read white space and the arguments of the open call, an object whose end closes the call."""
    yield from arguments_from((yield from visible()), collector)


def arguments_from(first: str, collector: Collector) -> Reader[None]:
    """As `arguments`, with `first` as the first character."""
    if first != "{":
        raise Unreadable
    yield from scan(first, collector.write_arguments)
    collector.close_call()


def envelopes(collector: Collector) -> Reader[None]:
    """Read a call as `_envelope` does, or a JSON list of such calls."""
    yield from envelopes_from((yield from visible()), collector)


def envelopes_from(first: str, collector: Collector) -> Reader[None]:
    """As `envelopes`, with `first` as the first character."""
    if first == "{":
        yield from _envelope(collector)
        return
    if first != "[":
        raise Unreadable
    while True:
        if (yield from visible()) != "{":
            raise Unreadable
        yield from _envelope(collector)
        char = yield from visible()
        if char == "]":
            return
        if char != ",":
            raise Unreadable
        collector.begin_call("", is_suspect=True)


def _envelope(collector: Collector) -> Reader[None]:
    """Read one call as a JSON object, from after the opening brace up to the closing one:
    `{"name": ..., "arguments": {...}}` in any order; also the OpenAI nesting
    `{"type": "function", "function": {...}}`, and arguments as a string that contains the object.
    """
    known: set[str] = set()
    yield from _members(collector, known, is_inner=False)
    if "name" not in known:
        raise Unreadable
    if "arguments" not in known:
        collector.write_arguments("{}")
    collector.close_call()


def _members(collector: Collector, known: set[str], *, is_inner: bool) -> Reader[None]:
    """Read the members of an envelope; `known` has the members already read, each allowed once."""
    char = ","
    while char == ",":
        key = json.loads((yield from string((yield from visible()))))
        if (yield from visible()) != ":":
            raise Unreadable
        char = yield from visible()
        what = "name" if key in _NAME_KEYS else "arguments" if key in _ARGUMENT_KEYS else ""
        if key == "function" and char == "{" and not is_inner:
            yield from _members(collector, known, is_inner=True)
            char = yield from visible()
        elif key in _OTHER_KEYS:
            char = yield from skip(char)
        elif not what or what in known:
            raise Unreadable
        else:
            if what == "name":
                collector.open_call(json.loads((yield from named(string(char)))))
            else:
                yield from _inner_arguments(char, collector)
            known.add(what)
            char = yield from visible()
    if char != "}":
        raise Unreadable


def _inner_arguments(first: str, collector: Collector) -> Reader[None]:
    """Read the arguments in an envelope."""
    if first == "{":
        yield from scan(first, collector.write_arguments)
    elif first == "n":
        yield from literal("ull")
        collector.write_arguments("{}")
    else:
        try:
            collector.write_arguments(_unwrapped((yield from string(first))))
        except Cut as cut:
            collector.write_arguments(_begun(cut.read))
            raise
    collector.end_arguments()


def _unwrapped(text: str) -> str:
    """The object in a string, given the JSON text of the string."""
    inner: str = json.loads(text).strip(SPACE)
    if not inner:
        return "{}"
    if not inner.startswith("{") or not is_json(inner) or not is_utf8(inner):
        raise Unreadable
    return inner


def _begun(text: str) -> str:
    """The beginning of the object in a string, given the beginning of the string's JSON text."""
    for cut in range(min(6, len(text))):  # An escape may be incomplete.
        try:
            inner: str = json.loads(text[: len(text) - cut] + '"').lstrip(SPACE)
        except ValueError:
            continue
        return inner if inner.startswith("{") and is_begun(inner) and is_utf8(inner) else ""
    return ""


def is_utf8(text: str) -> bool:
    """Whether `text` has no lone surrogates, which JSON escapes can produce."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
