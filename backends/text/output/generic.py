"""Templates that show tools and have no markers of their own: a JSON object, or a list of them, as
the answer or in a code fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import Collector, Unreadable
from hearth.backends.text.output.hermes import envelope_rule
from hearth.backends.text.output.lark import Lark
from hearth.backends.text.output.llama3 import bare_text
from hearth.backends.text.output.reading import Reader, envelopes, literal, visible
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat

_FENCE: Final = "```"


class GenericFormat(TaggedFormat):
    """`{"name": ..., "arguments": ...}`."""

    name = "json"

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(
            self.think,
            {_FENCE + "json": _fenced},
            envelopes,
            modest=frozenset((_FENCE + "json",)),
            separators=",;",
        )

    def calls(self, lark: Lark, tools: Sequence[Tool], *, required: bool, parallel: bool) -> str:
        call = envelope_rule(lark, tools, "arguments", required=required)
        if not parallel:
            return call
        return lark.one_of((call, f'"[" {call} (", " {call})* "]"'))

    def free(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        text = lark.terminal("NO_CALL", bare_text((_FENCE + "json",)))
        return lark.one_of((text, self.calls(lark, tools, required=False, parallel=parallel)))


def _fenced(collector: Collector) -> Reader[None]:
    """What follows the beginning of a fence, and its end."""
    yield from envelopes(collector)
    if (yield from visible()) != _FENCE[0]:
        raise Unreadable
    yield from literal(_FENCE[1:])


class PlainFormat(GenericFormat):
    """Templates that show no tools: only reasoning is told from content. Where tools are given all
    the same, generic JSON is what a model that was never taught another form may write.
    """

    name = "plain"
