"""Calls without markers of their own: a JSON object, or a list of them, as the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.collector import Collector, Unreadable
from hearth.backends.text.output.hermes import envelope_rule
from hearth.backends.text.output.lark import Lark
from hearth.backends.text.output.reading import Reader, envelopes, literal, visible
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat

_FENCE: Final = "```"
_TAG: Final = "<|python_tag|>"
_NO_CALL: Final = r"/(\s*[^\s\[{](?s:.*))?/"
"""Text that is not read as a call because it does not begin with a bracket."""


class GenericFormat(TaggedFormat):
    """`{"name": ..., "arguments": ...}`, bare or in a code fence."""

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(
            self.think,
            {_FENCE + "json": _fenced},
            envelopes,
            ambiguous=frozenset((_FENCE + "json",)),
            separators=",;",
        )

    def calls(self, lark: Lark) -> str:
        call = envelope_rule(lark, "arguments")
        if not lark.parallel:
            return call
        return lark.one_of((call, f'"[" {call} (", " {call})* "]"'))

    def free(self, lark: Lark) -> str:
        text = lark.terminal("NO_CALL", _bare_text((_FENCE + "json",)))
        return lark.one_of((text, self.calls(lark)))


def _fenced(collector: Collector) -> Reader[None]:
    """Read the text after the opening of a fence, up to its end."""
    yield from envelopes(collector)
    if (yield from visible()) != _FENCE[0]:
        raise Unreadable
    yield from literal(_FENCE[1:])


class Llama3Format(TaggedFormat):
    """Llama 3.1 to 3.3: `{"name": ..., "parameters": ...}`, with or without the tag. The family
    makes one call at a time; several calls have no defined form, but consecutive objects are read.
    """

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(self.think, {_TAG: envelopes}, envelopes, separators=";,")

    def calls(self, lark: Lark) -> str:
        call = envelope_rule(lark, "parameters")
        tag = f"{lark.mark(_TAG)}? " if lark.is_control(_TAG) else ""
        return lark.repeated(f"{tag}{call}", f'"; " {call}')

    def free(self, lark: Lark) -> str:
        text = lark.terminal("NO_CALL", _bare_text(() if lark.is_control(_TAG) else (_TAG,)))
        return lark.one_of((text, self.calls(lark)))


def _bare_text(without: Sequence[str]) -> str:
    """The body of a terminal for text that does not begin with a bracket and contains none of the
    texts `without`, which have no special characters of regular expressions except "|".
    """
    excluded = (f" & ~/(?s:.*){text.replace('|', '[|]')}(?s:.*)/" for text in without)
    return _NO_CALL + "".join(excluded)
