"""Finds markers in streamed text, and holds back text that may turn out to be part of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class MarkerSearch:
    """Finds one marker after another, however the text is split.

    A match is the marker whose last character comes first; if several end there, the longest.
    Linear in the text (Aho and Corasick, "Efficient string matching", 1975).

    Args:
        markers: non-empty strings.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._steps: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found: list[str | None] = [None]
        for marker in markers:
            self._insert(marker)
        self._link()
        self._state = 0
        self.held = ""
        """The end of the text so far that may be the beginning of a marker."""

    def find(
        self, text: str, start: int = 0, *, may_match: bool = True
    ) -> tuple[str, str | None, int]:
        """Read `text` from `start` on, up to the end of the first marker.

        Args:
            may_match: False: markers that `text` completes are treated as ordinary text.

        Returns:
            The text that is not part of a marker, the marker (None if not found yet), and the
            position after the last character read.
        """
        if not self._steps[0]:  # There are no markers.
            return text[start:], None, len(text)
        state = self._state
        for index in range(start, len(text)):
            state = self._next(state, text[index])
            marker = self._found[state]
            if marker is not None and may_match:
                before = self.held + text[start : index + 1]
                self._state, self.held = 0, ""
                return before[: -len(marker)], marker, index + 1
        self._state = state
        pending = self.held + text[start:]
        safe = len(pending) - self._depth[state]
        self.held = pending[safe:]
        return pending[:safe], None, len(text)

    def finish(self) -> str:
        """End the text; returns what was held back."""
        held, self.held = self.held, ""
        self._state = 0
        return held

    def _insert(self, marker: str) -> None:
        state = 0
        for char in marker:
            if char not in self._steps[state]:
                self._steps[state][char] = len(self._steps)
                self._steps.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(None)
            state = self._steps[state][char]
        self._found[state] = marker

    def _link(self) -> None:
        """Find for each state the state of its longest proper suffix that begins a marker."""
        self._fallback = [0] * len(self._steps)
        pending = deque(self._steps[0].values())
        while pending:
            state = pending.popleft()
            for char, child in self._steps[state].items():
                self._fallback[child] = self._next(self._fallback[state], char)
                if self._found[child] is None:
                    self._found[child] = self._found[self._fallback[child]]
                pending.append(child)

    def _next(self, state: int, char: str) -> int:
        while state and char not in self._steps[state]:
            state = self._fallback[state]
        return self._steps[state].get(char, 0)


class StopMatcher(MarkerSearch):
    """Finds the first stop string to be completed, so that generation ends at once, at a place that
    does not depend on how the text is split into tokens.
    """

    _matched: str | None = None

    def push(self, text: str, *, may_match: bool = True) -> tuple[str, str | None]:
        """Take in `text`; returns the text that is safe to show, and the stop string found, if any.

        After a match all further text is dropped, and the same match is returned.

        Args:
            may_match: False: stop strings that `text` completes are treated as ordinary text.
        """
        if self._matched is not None:
            return "", self._matched
        shown, self._matched, _ = self.find(text, may_match=may_match)
        return shown, self._matched
