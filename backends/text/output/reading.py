"""Readers of calls: coroutines that are sent one character after the other.

A reader returns with the last character of what it reads. It raises `Unreadable` at the first
character that it cannot take, which is then not part of what it read; never after it gave
something to the collector in the same step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import Final, TypeVar

from hearth.backends.text.output.collector import Collector, Cut, Unreadable
from hearth.backends.text.output.json_scanner import SPACE, JsonScanner, Step, is_begun, is_json

LONGEST_NAME: Final = 256
"""Characters of a name or header of a call."""

Result = TypeVar("Result")
Reader = Generator[None, str, Result]
ReadCall = Callable[[Collector], Reader[None]]
"""Makes the reader of what follows a marker."""

_NAME_KEYS: Final = ("name", "function", "tool_name")
_ARGUMENT_KEYS: Final = ("arguments", "parameters")
_OTHER_KEYS: Final = ("id", "type", "index", "tool_call_id")


def visible() -> Reader[str]:
    """The next character that is not white space."""
    while (char := (yield)) in SPACE:
        pass
    return char


def literal(text: str) -> Reader[None]:
    """Exactly `text`."""
    for expected in text:
        if (yield) != expected:
            raise Unreadable


def word(stops: str, first: str = "") -> Reader[tuple[str, str]]:
    """`first` and what follows up to one of the characters `stops`; and that character."""
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
    """`reader`, which reads the name of a call."""
    try:
        return (yield from reader)
    except Cut as cut:
        raise Cut(name=cut.read.strip().removeprefix('"')) from None


def string(first: str) -> Reader[str]:
    """The JSON text of a string that begins with the character `first`."""
    if first != '"':
        raise Unreadable
    chars: list[str] = []
    try:
        yield from scan(first, chars.append)
    except Cut:
        raise Cut("".join(chars)) from None
    return "".join(chars)


def scan(first: str, take: Callable[[str], None]) -> Reader[None]:
    """A JSON value, no number, that begins with the character `first`; `take` gets every character
    as it comes.
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
    """Any JSON value; returns the first visible character after it."""
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
    """White space and then the arguments of the open call, an object; its end is the call's."""
    yield from arguments_from((yield from visible()), collector)


def arguments_from(first: str, collector: Collector) -> Reader[None]:
    """The same from their first character, `first`, on."""
    if first != "{":
        raise Unreadable
    yield from scan(first, collector.write_arguments)
    collector.close_call()


def envelopes(collector: Collector) -> Reader[None]:
    """An `Envelope`, or a JSON list of them."""
    yield from envelopes_from((yield from visible()), collector)


def envelopes_from(first: str, collector: Collector) -> Reader[None]:
    """The same from their first character, `first`, on."""
    if first == "{":
        yield from Envelope(collector).read()
        return
    if first != "[":
        raise Unreadable
    while True:
        if (yield from visible()) != "{":
            raise Unreadable
        yield from Envelope(collector).read()
        char = yield from visible()
        if char == "]":
            return
        if char != ",":
            raise Unreadable
        collector.begin_call("", is_suspect=True)


class Envelope:
    """One call as a JSON object: `{"name": ..., "arguments": {...}}`, in any order; the OpenAI
    nesting `{"type": "function", "function": {...}}`; arguments as a string that holds the object.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._is_named = False
        self._has_arguments = False
        self._early: list[str] = []
        """Arguments that came before the name."""

    def read(self) -> Reader[None]:
        """From after the opening brace up to the closing one."""
        try:
            yield from self._members(is_inner=False)
        except Cut as cut:
            if not self._is_named and (name := self._collector.only_tool(cut.name)):
                self._name(name)
            raise
        if not self._is_named:
            raise Unreadable
        if not self._has_arguments:
            self._collector.write_arguments("{}")
        self._collector.close_call()

    def _members(self, *, is_inner: bool) -> Reader[None]:
        char = ","
        while char == ",":
            key = json.loads((yield from string((yield from visible()))))
            if (yield from visible()) != ":":
                raise Unreadable
            char = yield from visible()
            if key == "function" and char == "{" and not is_inner:
                yield from self._members(is_inner=True)
                char = yield from visible()
            elif key in _NAME_KEYS:
                self._name(json.loads((yield from named(string(char)))))
                char = yield from visible()
            elif key in _ARGUMENT_KEYS:
                yield from self._arguments(char)
                char = yield from visible()
            elif key in _OTHER_KEYS:
                char = yield from skip(char)
            else:
                raise Unreadable
        if char != "}":
            raise Unreadable

    def _name(self, name: str) -> None:
        if self._is_named:
            raise Unreadable
        self._collector.open_call(name)
        self._is_named = True
        if self._early:
            self._collector.write_arguments("".join(self._early))
            self._early.clear()
        if self._has_arguments:
            self._collector.end_arguments()

    def _arguments(self, first: str) -> Reader[None]:
        if self._has_arguments:
            raise Unreadable
        if first == "{":
            yield from scan(first, self._write)
        elif first == "n":
            yield from literal("ull")
            self._write("{}")
        else:
            try:
                self._write(_unwrapped((yield from string(first))))
            except Cut as cut:
                self._write(_begun(cut.read))
                raise
        self._has_arguments = True
        if self._is_named:
            self._collector.end_arguments()

    def _write(self, piece: str) -> None:
        if self._is_named:
            self._collector.write_arguments(piece)
        else:
            self._early.append(piece)


def _unwrapped(text: str) -> str:
    """The object that the JSON text of a string holds."""
    inner: str = json.loads(text).strip(SPACE)
    if not inner:
        return "{}"
    if not inner.startswith("{") or not is_json(inner) or not is_utf8(inner):
        raise Unreadable
    return inner


def _begun(text: str) -> str:
    """What the beginning of the JSON text of a string holds of an object."""
    for cut in range(min(6, len(text))):  # An escape may be incomplete.
        try:
            inner: str = json.loads(text[: len(text) - cut] + '"').lstrip(SPACE)
        except ValueError:
            continue
        return inner if inner.startswith("{") and is_begun(inner) and is_utf8(inner) else ""
    return ""


def is_utf8(text: str) -> bool:
    """False: `text` has lone surrogates, which an escape of JSON can make."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
