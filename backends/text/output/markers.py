"""Markers in a stream of text: nothing is given away that may turn out to belong to one."""

from __future__ import annotations

from hearth.backends.text.stops import StopMatcher


class MarkerSearch(StopMatcher):
    """Finds one marker after the other, however the text is split. Linear in the text."""

    @property
    def held(self) -> str:
        """The end of the text so far, with which a marker may begin."""
        return self._held

    def find(self, text: str, start: int = 0) -> tuple[str, str | None, int]:
        """Read `text` from `start` on, up to the end of the first marker.

        Returns:
            what is no part of a marker, the marker (None: there is none yet), and how far was read.
        """
        state = self._state
        for index in range(start, len(text)):
            state = self._next(state, text[index])
            found = self._found[state]
            if found is not None:
                before = self._held + text[start : index + 1]
                self._state, self._held = 0, ""
                return before[: -len(found)], found, index + 1
        self._state = state
        pending = self._held + text[start:]
        safe = len(pending) - self._depth[state]
        self._held = pending[safe:]
        return pending[:safe], None, len(text)
