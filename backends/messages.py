"""The messages of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
