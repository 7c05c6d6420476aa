"""Mistral: `[TOOL_CALLS][{"name": ..., "arguments": ..., "id": ...}]`, and from 2025 on
`[TOOL_CALLS]name[ARGS]{...}`; reasoning is between `[THINK]` and `[/THINK]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output import reading
from hearth.backends.text.output.collector import Collector, Unreadable
from hearth.backends.text.output.hermes import envelope_rule
from hearth.backends.text.output.lark import Lark, quoted
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat

_OPEN: Final = "[TOOL_CALLS]"
_ARGUMENTS: Final = "[ARGS]"
_ID: Final = "[CALL_ID]"
_ID_MEMBER: Final = r'(", \"id\": \"" /[a-zA-Z0-9]{9}/ "\"")?'


@dataclass(frozen=True)
class MistralFormat(TaggedFormat):
    """Both forms are parsed."""

    is_named: bool
    """The template writes the newer form, so grammars require that form."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, _ARGUMENTS, _ID)

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(self.think, {_OPEN: _read})

    def calls(self, lark: Lark) -> str:
        call = lark.rule(f"{lark.mark(_OPEN)} {self._rest(lark)}")
        return lark.repeated(call, call) if self.is_named else call

    def free(self, lark: Lark) -> str:
        return lark.free(_OPEN, self._rest(lark))

    def _rest(self, lark: Lark) -> str:
        """The rule for the text after the marker."""
        if not self.is_named:
            call = envelope_rule(lark, "arguments", more=_ID_MEMBER)
            members = lark.repeated(call, f'", " {call}')
            return lark.rule(f'"[" {members} "]"')
        return lark.one_of(
            f"{quoted(tool.name)} {lark.mark(_ARGUMENTS)} {lark.arguments(tool)}"
            for tool in lark.tools
        )


def _read(collector: Collector) -> reading.Reader[None]:
    """Read the text after the marker."""
    first = yield from reading.visible()
    if first in "[{":
        yield from reading.envelopes_from(first, collector)
        return
    name, stop = yield from reading.named(reading.word("[{", first))
    if stop == "{":
        collector.open_call(name.strip())
        yield from reading.arguments_from(stop, collector)
        return
    ident = ""
    stop = yield
    if stop == "C":
        yield from reading.literal("ALL_ID]")
        ident, _ = yield from reading.word("[")
        stop = yield
    if stop != "A":
        raise Unreadable
    yield from reading.literal("RGS]")
    collector.open_call(name.strip(), ident.strip())
    yield from reading.arguments(collector)
