"""DeepSeek: V3 and R1 write `function`, a separator, the name, and the arguments in a code fence;
V3.1 writes the name, a separator and the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output import reading
from hearth.backends.text.output.collector import Collector, Cut, Unreadable
from hearth.backends.text.output.lark import Lark, quoted
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat

_CALLS: Final = "<｜tool▁calls▁begin｜>"
_CALL: Final = "<｜tool▁call▁begin｜>"
_SEPARATOR: Final = "<｜tool▁sep｜>"
_CALL_END: Final = "<｜tool▁call▁end｜>"
_CALLS_END: Final = "<｜tool▁calls▁end｜>"
_FENCE: Final = "```"


@dataclass(frozen=True)
class DeepSeekFormat(TaggedFormat):
    """Both forms are parsed."""

    is_fenced: bool
    """The template writes the form of V3 and R1, so grammars require that form."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, _SEPARATOR)

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(
            self.think,
            {_CALLS: _read_first, _CALL: _read},
            closers=(_CALL_END, _CALLS_END, _FENCE),
        )

    def calls(self, lark: Lark) -> str:
        return lark.rule(f"{lark.mark(_CALLS)} {self._rest(lark)}")

    def free(self, lark: Lark) -> str:
        return lark.free(_CALLS, self._rest(lark))

    def _rest(self, lark: Lark) -> str:
        """The rule for the text after the marker of all calls."""
        call = lark.one_of(self._call(lark, tool) for tool in lark.tools)
        calls = lark.repeated(call, rf"/\n?/ {call}")
        return lark.rule(f"{calls} {lark.mark(_CALLS_END)}")

    def _call(self, lark: Lark, tool: Tool) -> str:
        begin, separator, end = map(lark.mark, (_CALL, _SEPARATOR, _CALL_END))
        arguments = lark.arguments(tool)
        if self.is_fenced:
            head = quoted(f"{tool.name}\n{_FENCE}json\n")
            fence = quoted(f"\n{_FENCE}")
            return f'{begin} "function" {separator} {head} {arguments} {fence} {end}'
        return f"{begin} {quoted(tool.name)} {separator} {arguments} {end}"


def _read_first(collector: Collector) -> reading.Reader[None]:
    """Read the text after the marker of all calls."""
    if (yield from reading.visible()) != _CALL[0]:
        raise Unreadable
    yield from reading.literal(_CALL[1:])
    yield from _read(collector)


def _read(collector: Collector) -> reading.Reader[None]:
    """Read the text after the marker of one call."""
    head = yield from _up_to_separator()
    try:
        char = yield from reading.visible()
    except Cut:
        if head != "function":
            collector.open_call(head)
        raise
    if char == "{":
        collector.open_call(head)
        yield from reading.arguments_from(char, collector)
        return
    if head != "function":
        raise Unreadable
    name, _ = yield from reading.named(reading.word("\n", char))
    collector.open_call(name.strip())
    if (yield from reading.visible()) != _FENCE[0]:
        raise Unreadable
    yield from reading.literal(_FENCE[1:] + "json")
    yield from reading.arguments(collector)


def _up_to_separator() -> reading.Reader[str]:
    """Read the text before the separator."""
    head = ""
    try:
        head, _ = yield from reading.word(_SEPARATOR[0])
        yield from reading.literal(_SEPARATOR[1:])
    except Cut as cut:
        head = (head or cut.read).strip()
        raise Cut(name="" if "function".startswith(head) else head) from None
    return head.strip()
