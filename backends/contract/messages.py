"""The messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the model asks for."""

    id: str
    name: str
    arguments: str
    """A JSON object, as the model wrote it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat."""

    role: Role
    content: str = ""
    reasoning: str = ""
    """What the model thought before it answered; only of the assistant."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only of the assistant."""
    tool_call_id: str = ""
    """Which call a message of the role "tool" answers."""
    name: str = ""
    """Who speaks, or which tool answers, where the template can say so."""
    keep_s: float = 0.0
    """Keep what is computed for the prompt up to the end of this message, so many seconds from its
    last use, in spite of others who need room; 0: as long as there is room.
    """
    parts: tuple[str, ...] = ()
    """The texts that `content` joins with newlines, where more than one was sent: chat templates
    that iterate over parts get these.
    """

    @classmethod
    def of_parts(cls, role: Role, parts: Iterable[str], **fields: Any) -> Self:
        """The message that says `parts`, joined by newlines; empty ones are left out."""
        texts = tuple(filter(None, parts))
        parted = texts if len(texts) > 1 else ()
        return cls(role, "\n".join(texts), parts=parted, **fields)

    def with_content(self, content: str) -> Self:
        """The same message with other content, in one part."""
        return replace(self, content=content, parts=())
