"""Llama 3.1 to 3.3: a JSON object `{"name": ..., "parameters": ...}` as the whole answer, which
`<|python_tag|>` may announce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.hermes import envelope_rule
from hearth.backends.text.output.lark import Lark
from hearth.backends.text.output.reading import envelopes
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat

_TAG: Final = "<|python_tag|>"
_NO_CALL: Final = r"/(\s*[^\s\[{](?s:.*))?/"
"""Text that is not read as a call: it does not begin with a bracket."""


class Llama3Format(TaggedFormat):
    """One JSON object, with or without the tag. The family makes one call at a time; what several
    look like is up to the model, and objects after each other are read.
    """

    name = "llama3"

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(self.think, {_TAG: envelopes}, envelopes, separators=";,")

    def calls(self, lark: Lark, tools: Sequence[Tool], *, required: bool, parallel: bool) -> str:
        call = envelope_rule(lark, tools, "parameters", required=required)
        tag = f"{lark.mark(_TAG)}? " if lark.is_control(_TAG) else ""
        more = f'"; " {call}'
        return lark.rule(f"{tag}{call} ({more})*" if parallel else f"{tag}{call}")

    def free(self, lark: Lark, tools: Sequence[Tool], *, parallel: bool) -> str:
        text = lark.terminal("NO_CALL", bare_text(() if lark.is_control(_TAG) else (_TAG,)))
        return lark.one_of((text, self.calls(lark, tools, required=False, parallel=parallel)))


def bare_text(without: Sequence[str]) -> str:
    """The body of a terminal for text that does not begin with a bracket, and has none of the texts
    `without`, which are free of characters that mean something in a regular expression but "|".
    """
    excluded = (f" & ~/(?s:.*){text.replace('|', '[|]')}(?s:.*)/" for text in without)
    return _NO_CALL + "".join(excluded)
