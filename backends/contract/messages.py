"""The messages of a chat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that the model asks for."""

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
    """The model's reasoning before the answer; only for the role "assistant"."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only for the role "assistant"."""
    tool_call_id: str = ""
    """The id of the call that a message of the role "tool" answers."""
    name: str = ""
    """Name of the speaker, or of the tool that answers, for templates that show it."""
    keep_s: float = 0.0
    """Seconds from its last use for which the computed prompt up to the end of this message is
    kept, even if other requests need the room; 0: as long as there is room.
    """
    parts: tuple[str, ...] = ()
    """The texts that `content` joins with newlines, if more than one was sent; chat templates that
    iterate over parts get these.
    """

    @classmethod
    def of_parts(cls, role: Role, parts: Iterable[str], **fields: Any) -> Self:
        """A message whose content is `parts` joined by newlines; empty parts are left out."""
        texts = tuple(filter(None, parts))
        parted = texts if len(texts) > 1 else ()
        return cls(role, "\n".join(texts), parts=parted, **fields)

    def with_content(self, content: str) -> Self:
        """The same message with other content, in one part."""
        return replace(self, content=content, parts=())
