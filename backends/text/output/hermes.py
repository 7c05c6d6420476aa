"""Hermes, Qwen 2.5 and 3, Granite 4 and others: `<tool_call>{"name": ..., "arguments": ...}
</tool_call>`; Apriel, Nemotron 2 and Granite 3 put a list of such objects between other tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.lark import Lark, quoted
from hearth.backends.text.output.reading import envelopes
from hearth.backends.text.output.tagged import Style
from hearth.backends.text.output.tagged_format import TaggedFormat


@dataclass(frozen=True)
class HermesFormat(TaggedFormat):
    """JSON between tags."""

    begin: str
    end: str
    """May be empty."""
    is_list: bool
    """A list of calls is between the tags, otherwise one call; both are parsed."""

    def style(self, tools: Sequence[Tool]) -> Style:
        return Style(
            self.think,
            {self.begin: envelopes},
            envelopes if self.is_list else None,
            closers=(self.end,) if self.end else (),
        )

    def calls(self, lark: Lark) -> str:
        call = lark.rule(f"{lark.mark(self.begin)} {self._rest(lark)}")
        return call if self.is_list else lark.repeated(call, f"/\\n?/ {call}")

    def free(self, lark: Lark) -> str:
        return lark.free(self.begin, self._rest(lark))

    def _rest(self, lark: Lark) -> str:
        """The rule for the text after the first tag."""
        call = envelope_rule(lark, "arguments")
        end = lark.mark(self.end) if self.end else ""
        if self.is_list:
            members = lark.repeated(call, f'", " {call}')
            return lark.rule(f'"[" {members} "]" {end}')
        return lark.rule(f"/\\n?/ {call} /\\n?/ {end}")


def envelope_rule(lark: Lark, key: str, more: str = "") -> str:
    """A rule for a call as a JSON object with the arguments under `key`; `more` is a rule for
    further members.
    """
    return lark.one_of(
        f'{quoted(_head(tool, key))} {lark.arguments(tool)} {more} "}}"' for tool in lark.tools
    )


def _head(tool: Tool, key: str) -> str:
    return f'{{"name": {quoted(tool.name)}, "{key}": '
