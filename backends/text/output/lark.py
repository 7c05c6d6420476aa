"""Writes grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.rules import json_rule

_FREE_TEXT: Final = "/(?s:.*)/"


class Lark:
    """Builds a grammar.

    Args:
        control_tokens: ids of control tokens by their text. Free text never contains these, and a
            rule must refer to them by id; every other marker is ordinary text.
        tools: the tools that may be called, with the schemas of their arguments.
        required: the answer is a call, so the arguments of every tool follow its schema; otherwise
            only those of strict tools do.
        parallel: more than one call may be made.
    """

    def __init__(
        self,
        control_tokens: Mapping[str, int],
        tools: Sequence[Tool],
        *,
        required: bool,
        parallel: bool,
    ) -> None:
        self.tools = tools
        self.required = required
        self.parallel = parallel
        self._control_tokens = control_tokens
        self._rules: list[str] = []
        self.text = self.terminal("TEXT", _FREE_TEXT)
        """A terminal for any text."""

    def source(self, start: str) -> str:
        """The grammar whose output is `start`."""
        return "\n".join(("%llguidance {}", f"start: {start}", *self._rules)) + "\n"

    def terminal(self, name: str, body: str) -> str:
        """Add a terminal of the grammar, made of regular expressions; returns `name`."""
        self._rules.append(f"{name}: {body}")
        return name

    def rule(self, body: str, *, options: str = "") -> str:
        """Add a rule; returns its name."""
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def one_of(self, bodies: Iterable[str]) -> str:
        """A rule for one of `bodies`."""
        return self.rule(" | ".join(bodies))

    def is_control(self, marker: str) -> bool:
        return marker in self._control_tokens

    def mark(self, marker: str) -> str:
        """A marker as a control token if it is one, else as text."""
        ident = self._control_tokens.get(marker)
        return quoted(marker) if ident is None else f"<[{ident}]>"

    def written(self, text: str, markers: Iterable[str]) -> str:
        """`text`, with the `markers` in it written as by `mark`."""
        parts: list[str] = []
        while places := [(text.find(marker), marker) for marker in markers if marker in text]:
            at, marker = min(places)
            if at:
                parts.append(quoted(text[:at]))
            parts.append(self.mark(marker))
            text = text[at + len(marker) :]
        if text:
            parts.append(quoted(text))
        return " ".join(parts)

    def until(self, marker: str) -> str:
        """Free text up to and including the first `marker`."""
        if self.is_control(marker):
            return self.rule(f"{self.text} {self.mark(marker)}")
        return self.rule(f"{self.text} {quoted(marker)}", options="[lazy]")

    def free(self, marker: str, rest: str) -> str:
        """A rule for any text in which `rest` follows each `marker`."""
        call = f"({self.until(marker)} {rest})"
        return self.rule(f"{call}* {self.text}" if self.parallel else f"{self.text} | {call}")

    def repeated(self, first: str, more: str) -> str:
        """A rule for `first`, and (`parallel`) any number of `more`."""
        return self.rule(f"{first} ({more})*" if self.parallel else first)

    def binds(self, tool: Tool) -> bool:
        """Whether the arguments of `tool` must follow its schema; otherwise they are any object."""
        return self.required or tool.strict

    def arguments(self, tool: Tool) -> str:
        """A rule for the arguments of `tool`."""
        schema: dict[str, Any] = {"type": "object"}
        if self.binds(tool):
            schema |= tool.parameters or {"properties": {}}
        return self.rule(json_rule(schema))


def quoted(text: str) -> str:
    """A rule for exactly `text`."""
    return json.dumps(text, ensure_ascii=False)
