"""Which part of a long chat is mounted: arithmetic over the number of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STEP: Final = 10
"""Messages that are mounted at a time."""
MOST: Final = 40
"""Messages that stay mounted."""
FIRST_CHARS: Final = 6000
"""About so much text is mounted at first, and at least two messages."""


@dataclass(frozen=True, slots=True)
class Window:
    """The messages from `first` to before `end` are mounted."""

    first: int
    end: int

    @classmethod
    def last_of(cls, sizes: Sequence[int]) -> Window:
        """The end of a chat whose messages have so many characters."""
        first = end = len(sizes)
        chars = 0
        while first and (end - first < 2 or (chars < FIRST_CHARS and end - first < STEP)):
            first -= 1
            chars += sizes[first]
        return cls(first, end)

    @classmethod
    def around(cls, number: int, total: int) -> Window:
        """A message and some on both sides."""
        return cls(max(number - STEP // 2, 0), min(number + STEP // 2 + 1, total))

    def earlier(self) -> Window:
        """With more at the start, and less at the end where it becomes too long."""
        first = max(self.first - STEP, 0)
        return Window(first, min(self.end, max(first + MOST, self.first + 1)))

    def later(self, total: int) -> Window:
        """With more at the end, and less at the start where it becomes too long."""
        end = min(self.end + STEP, total)
        return Window(max(self.first, min(end - MOST, self.end - 1)), end)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number < self.end
