"""What the history holds: threads, the messages of their trees, and what a search finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from hearth.backends.messages import Role, ToolCall

State = Literal["complete", "streaming", "stopped", "failed"]
EndState = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """What was measured while an answer was made; 0 or "" where nothing was."""

    ttft_s: float = 0
    tok_per_s: float = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    model: str = ""
    quantization: str = ""


@dataclass(frozen=True, slots=True)
class Thread:
    """A chat: its title and settings, and which branch of its tree is shown."""

    id: str
    title: str
    """One line. Empty until the first message of the user gives one."""
    created_at: float
    """Seconds since 1970, as all times here."""
    changed_at: float
    """When its messages last changed."""
    pinned: bool
    archived: bool
    model: str
    system: str
    settings: dict[str, Any]
    """Sampling and preset overrides, as JSON values."""
    leaf: str | None
    """Where the shown branch ends; None: there is no message."""
    messages: int
    """How many messages the tree has, those of hidden branches included."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a tree. The messages after it are its children; alternatives to it have the
    same parent.
    """

    id: str
    parent: str | None
    role: Role
    content: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    created_at: float = 0
    state: State = "complete"
    finish_reason: str = ""
    error: str = ""
    """Why it failed."""
    numbers: Numbers | None = None
    siblings: tuple[str, ...] = ()
    """All alternatives in the order they were made, this one among them."""
    hash: str = ""
    """Hexadecimal; of this message and all before it. Empty while it is being written."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A place that a search found."""

    thread_id: str
    title: str
    message_id: str
    """Empty: the words are in the title."""
    role: Role | Literal["title"]
    snippet: str
    """One line of text around the words."""
    marks: tuple[tuple[int, int], ...]
    """Where the words are in `snippet`: first character, and the one after the last."""
    created_at: float
