"""Which part of a long chat is mounted: arithmetic over the sizes of its messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STEP: Final = 10
"""Messages, at most, by which the window moves."""
STEP_CHARS: Final = 4000
"""About so much text is mounted with one step, and at least two messages."""
MOST: Final = 40
"""Messages that stay mounted."""


def _step(sizes: Sequence[int]) -> int:
    """How many of the messages, whose sizes come nearest first, one step mounts."""
    chars = 0
    for number, size in enumerate(sizes[:STEP], 1):
        chars += size
        if number >= 2 and chars >= STEP_CHARS:
            return number
    return min(len(sizes), STEP)


@dataclass(frozen=True, slots=True)
class Window:
    """The messages from `first` to before `end` are mounted.

    The sizes that the methods take are the characters of each message of the chat.
    """

    first: int
    end: int

    @classmethod
    def last_of(cls, sizes: Sequence[int]) -> Window:
        """The end of a chat."""
        return cls(len(sizes) - _step(sizes[::-1]), len(sizes))

    @classmethod
    def around(cls, number: int, sizes: Sequence[int]) -> Window:
        """A message and some on both sides."""
        before = sizes[max(number - STEP, 0) : number][::-1]
        after = sizes[number : number + STEP]
        return cls(number - _step(before), number + max(_step(after), 1))

    def earlier(self, sizes: Sequence[int]) -> Window:
        """With more at the start, and less at the end where it becomes too long."""
        first = self.first - _step(sizes[max(self.first - STEP, 0) : self.first][::-1])
        return Window(first, min(self.end, max(first + MOST, self.first + 1)))

    def later(self, sizes: Sequence[int]) -> Window:
        """With more at the end, and less at the start where it becomes too long."""
        end = self.end + _step(sizes[self.end : self.end + STEP])
        return Window(max(self.first, min(end - MOST, self.end - 1)), end)

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and self.first <= number < self.end
