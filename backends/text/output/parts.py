"""What parsers of output give, and what they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hearth.backends.contract.events import Channel
from hearth.backends.contract.requests import Tool


@dataclass(slots=True)  # Not frozen: one a token is made, and freezing costs a microsecond.
class TextPart:
    """More of the answer, or of the reasoning before it."""

    text: str
    channel: Channel = "content"


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of a tool call: the first one has `id` and `name`, and the `arguments` of all its
    pieces, joined, are a JSON text.
    """

    position: int
    id: str = ""
    name: str = ""
    arguments: str = ""


Part = TextPart | CallPart


class OutputParser(Protocol):
    """Takes apart the text of one answer. Text is never lost: what cannot be read as a call comes
    out as content, unchanged. Linear in the length of the text, whatever it is.
    """

    @property
    def channel(self) -> Channel:
        """What text that came now would be, as far as that is decided."""
        ...

    @property
    def calls(self) -> int:
        """Tool calls that are complete."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What the reader should know, e.g. that a call could not be read."""
        ...

    def push(self, text: str) -> list[Part]:
        """What `text` completes."""
        ...

    def finish(self, *, cut: bool = False) -> list[Part]:
        """The end: everything that was held back.

        Args:
            cut: the model had not ended. What it had written of a call is a call then, as far as
                its name is certain, and never content.
        """
        ...


class OutputFormat(Protocol):
    """How a family of models writes reasoning and tool calls."""

    @property
    def name(self) -> str: ...

    @property
    def markers(self) -> tuple[str, ...]:
        """Special tokens that carry meaning, and so must be visible to the parser."""
        ...

    def parser(self, tools: Sequence[Tool], prompt: str, *, required: bool = False) -> OutputParser:
        """A parser for one answer to `prompt`, which is the rendered template: it may have opened
        the reasoning. Without `tools` nothing is read as a call. `required`: a grammar sees to it
        that the answer is calls and nothing else.
        """
        ...

    def grammar(
        self,
        prompt: str,
        *,
        content: str | None,
        tools: Sequence[Tool],
        required: bool,
        parallel: bool,
    ) -> str | None:
        """A Lark grammar (llguidance's) that the whole output follows; None if nothing is asked.

        Args:
            prompt: as for `parser`.
            content: the body of a rule that the answer must follow, after the reasoning if there is
                any; None: it is free.
            tools: those that may be called, with the schemas of their arguments.
            required: the answer is a call of one of `tools`. Otherwise those that are `strict`
                constrain what is written once such a call has begun.
            parallel: more than one call may be made.
        """
        ...
