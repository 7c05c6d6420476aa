"""`Outline`: the shape of one thread's tree, without its texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


class Outline:
    """Which message follows which.

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

    def parent(self, message: str) -> str | None:
        """What it follows; None for a first message."""
        return self._parents[message]

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
