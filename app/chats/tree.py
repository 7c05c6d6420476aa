"""What the history holds: threads, the messages of their trees and the shape of those, and what a
search finds.
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
    title: str = ""
    """One line. Empty until the first message of the user gives one."""
    created_at: float = 0
    """Seconds since 1970, as all times here."""
    changed_at: float = 0
    """When its messages last changed."""
    pinned: bool = False
    archived: bool = False
    model: str = ""
    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """Sampling and preset overrides, as JSON values."""
    leaf: str | None = None
    """Where the shown branch ends; None: there is no message."""
    messages: int = 0
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


class Outline:
    """The shape of a thread's tree: which message follows which.

    Args:
        rows: (message, parent, the child last shown or made), in the order of their making; every
            parent is among the messages.
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
        """All of them, in the order of their making."""
        return list(self._parents)

    def __contains__(self, message: str) -> bool:
        return message in self._parents

    def siblings(self, message: str) -> tuple[str, ...]:
        """All alternatives with the same parent, itself among them."""
        return tuple(self._children[self._parents[message]])

    def path(self, leaf: str | None) -> list[str]:
        """From the first message to `leaf`."""
        path = []
        while leaf is not None:
            path.append(leaf)
            leaf = self._parents[leaf]
        return path[::-1]

    def end_of(self, message: str) -> str:
        """The end of the branch through `message` that was last shown or made; where it is gone,
        of the newest.
        """
        while children := self._children.get(message):
            shown = self._shown.get(message)
            message = shown if shown in children else children[-1]
        return message

    def subtree(self, message: str) -> list[str]:
        """`message` and all that follows it, on any branch; parents before their children."""
        found = [message]
        for each in found:
            found.extend(self._children.get(each, ()))
        return found

    def after_deletion(self, message: str) -> str | None:
        """The leaf that is shown when the subtree of `message` is gone: of the sibling before it,
        else of the one after it, else the parent.
        """
        siblings = self.siblings(message)
        if len(siblings) == 1:
            return self._parents[message]
        at = siblings.index(message)
        return self.end_of(siblings[at - 1] if at else siblings[1])


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
