"""Base classes of formats: the interface of all, and, for families that `tagged` parses, where the
parser begins (in reasoning or not) and the frame of the grammar.
"""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hearth.backends.contract.requests import Tool
from hearth.backends.text.output.lark import Lark
from hearth.backends.text.output.parser import OutputParser
from hearth.backends.text.output.tagged import Style, TaggedParser

_ALPHABET: Final = string.ascii_letters + string.digits
MakeId = Callable[[], str]


def call_id() -> str:
    """An id in OpenAI's form."""
    return "call_" + random_text(24)


def random_text(length: int) -> str:
    """`length` letters and digits that cannot be guessed."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


@dataclass(frozen=True)
class OutputFormat(ABC):
    """How a family of models writes reasoning and tool calls."""

    control_tokens: Mapping[str, int]
    """As for `Lark`."""
    make_id: MakeId
    """Returns the id of a new call."""

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Special tokens that have a meaning, and so must be visible to the parser."""

    @abstractmethod
    def parser(self, tools: Sequence[Tool], prompt: str, *, required: bool = False) -> OutputParser:
        """A parser for one answer to `prompt`, the rendered template, which may end in reasoning.
        Without `tools` nothing is read as a call. `required`: a grammar ensures that the answer
        consists of calls and nothing else.
        """

    @abstractmethod
    def grammar(
        self,
        prompt: str,
        *,
        content: str | None,
        tools: Sequence[Tool],
        required: bool,
        parallel: bool,
    ) -> str | None:
        """A Lark grammar (llguidance's) for the whole output; None if there is no constraint.

        Args:
            prompt: as for `parser`.
            content: the body of a rule that the answer must follow, after any reasoning; None: the
                answer is free.
            tools: the tools that may be called, with the schemas of their arguments.
            required: the answer is a call of one of `tools`. Otherwise only calls of `strict` tools
                are constrained, once they have begun.
            parallel: more than one call may be made.
        """


@dataclass(frozen=True)
class TaggedFormat(OutputFormat):
    """The format of a family that writes tags."""

    think: tuple[str, str] | None
    """The tags around reasoning, if the template mentions them."""

    @property
    def markers(self) -> tuple[str, ...]:
        return self.style(()).markers

    def parser(self, tools: Sequence[Tool], prompt: str, *, required: bool = False) -> OutputParser:
        is_thinking = self.think is not None and prompt.rstrip().endswith(self.think[0])
        style = self.style(tools)
        return TaggedParser(
            style, tools, self.make_id, is_thinking=is_thinking, is_required=required
        )

    def grammar(
        self,
        prompt: str,
        *,
        content: str | None,
        tools: Sequence[Tool],
        required: bool,
        parallel: bool,
    ) -> str | None:
        lark = Lark(self.control_tokens, tools, required=required, parallel=parallel)
        if required:
            answer = self.calls(lark)
        elif content is not None:
            answer = lark.rule(content)
            if tools:
                answer = lark.one_of((answer, self.calls(lark)))
        elif any(tool.strict for tool in tools):
            free = self.free(lark)
            return lark.source(f"{self._thought(lark, prompt, may_begin=False)} {free}")
        else:
            return None
        return lark.source(f"{self._thought(lark, prompt, may_begin=True)} {answer}")

    @abstractmethod
    def style(self, tools: Sequence[Tool]) -> Style:
        """How reasoning and calls of `tools` are parsed."""

    @abstractmethod
    def calls(self, lark: Lark) -> str:
        """A rule for one call or, if `lark.parallel`, several calls, and nothing else."""

    @abstractmethod
    def free(self, lark: Lark) -> str:
        """A rule for any text in which calls of strict tools follow their schemas."""

    def _thought(self, lark: Lark, prompt: str, *, may_begin: bool) -> str:
        """A rule for the rest of the reasoning that the prompt opened, or, if `may_begin`, for
        optional reasoning that the model begins.
        """
        if self.think is None:
            return ""
        begin, end = self.think
        prompt = prompt.rstrip()
        if prompt.endswith(begin):
            return f"{lark.until(end)} {_newlines(lark)}"
        if may_begin and not prompt.endswith(end):
            return f"({lark.mark(begin)} {lark.until(end)} {_newlines(lark)})?"
        return ""


def _newlines(lark: Lark) -> str:
    return lark.rule(r"/\n{0,2}/")
