"""The contents of the history: threads, their messages, the shape of their trees, and search
results.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from hearth.backends.contract.messages import Role, ToolCall

State = Literal["complete", "streaming", "stopped", "failed"]
EndState = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Numbers:
    """Measurements of an answer; 0 or "" for what was not measured."""

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
    title: str = ""
    """One line; empty until the user's first message supplies a title."""
    created_at: float = 0
    """In seconds since 1970, as all times here."""
    changed_at: float = 0
    """When its messages last changed."""
    pinned: bool = False
    archived: bool = False
    model: str = ""
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sampling and preset overrides, as JSON values."""
    leaf: str | None = None
    """The end of the shown branch; None if there are no messages."""
    messages: int = 0
    """The number of messages in the tree, including hidden branches."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a tree. The messages that follow it are its children; its alternatives have
    the same parent.
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
    """Why the answer failed."""
    numbers: Numbers | None = None
    siblings: tuple[str, ...] = ()
    """All alternatives in the order of creation, including this message."""


class Outline:
    """The shape of a thread's tree: which message follows which.

    Args:
        rows: (message, parent, child last shown or created), in the order of creation; every parent
            is among the messages.
    """

    def __init__(self, rows: Iterable[tuple[str, str | None, str | None]]) -> None:
        self._parents: dict[str, str | None] = {}
        self._shown: dict[str, str] = {}
        self._children: defaultdict[str | None, list[str]] = defaultdict(list)
        for message, parent, shown in rows:
            self._parents[message] = parent
            self._children[parent].append(message)
            if shown is not None:
                self._shown[message] = shown

    @property
    def messages(self) -> list[str]:
        """All messages, in the order of creation."""
        return list(self._parents)

    def __contains__(self, message: str) -> bool:
        return message in self._parents

    def siblings(self, message: str) -> tuple[str, ...]:
        """All alternatives with the same parent, including `message` itself."""
        return tuple(self._children[self._parents[message]])

    def path(self, leaf: str | None) -> list[str]:
        """The messages from the first to `leaf`."""
        path = []
        while leaf is not None:
            path.append(leaf)
            leaf = self._parents[leaf]
        return path[::-1]

    def end_of(self, message: str) -> str:
        """The end of the branch through `message` that was last shown or created. Where that child
        is gone, the newest one is followed.
        """
        while children := self._children.get(message):
            shown = self._shown.get(message)
            message = shown if shown in children else children[-1]
        return message

    def subtree(self, message: str) -> list[str]:
        """`message` and all its descendants on any branch, parents before their children."""
        messages = [message]
        for each in messages:
            messages.extend(self._children.get(each, ()))
        return messages

    def after_deletion(self, message: str) -> str | None:
        """The leaf to show when the subtree of `message` is deleted: that of the previous sibling,
        else of the next one, else the parent.
        """
        siblings = self.siblings(message)
        if len(siblings) == 1:
            return self._parents[message]
        at = siblings.index(message)
        return self.end_of(siblings[at - 1] if at else siblings[1])


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result."""

    thread_id: str
    title: str
    message_id: str
    """Empty if the words are in the title."""
    role: Role | Literal["title"]
    snippet: str
    """One line of text around the matched words."""
    marks: tuple[tuple[int, int], ...]
    """Positions of the words in `snippet`: (first character, one past the last)."""
    created_at: float
