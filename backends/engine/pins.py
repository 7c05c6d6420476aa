"""Which kept prefixes must stay for a while, whoever needs their room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from hearth.backends.engine.cells import CellPool
from hearth.backends.engine.radix import RadixIndex


@dataclass(slots=True)
class _Pin:
    seconds: float
    until: float


class Pins:
    """Kept prefixes, by id, that must not be forgotten until some seconds after their last use.

    A pin ends by time only in `expire`, so that nothing changes in the middle of an operation.

    Args:
        pool: which cells they hold.
        index: which tokens they hold.
        clock: seconds, never going back.
        most: how many there may be.
    """

    def __init__(
        self, pool: CellPool, index: RadixIndex, clock: Callable[[], float], *, most: int
    ) -> None:
        self.most = most
        self._pool = pool
        self._index = index
        self._clock = clock
        self._pins: dict[int, _Pin] = {}

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._pins

    def __iter__(self) -> Iterator[int]:
        return iter(self._pins)

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def cells(self) -> int:
        """Cells that they hold, whoever else holds them; one that several hold counts once."""
        return self._pool.cells_of(self._pins)

    def begun_by(self, tokens: Seq[int]) -> list[int]:
        """Those that `tokens` begin with, the longest first."""
        if not self._pins:
            return []
        return [
            holder
            for common, holder in self._index.candidates(tokens)
            if holder in self._pins and self._index.length(holder) == common
        ]

    def make_room(self, sequence: int, tokens: int, seconds: float, most_cells: int) -> bool:
        """Whether the first `tokens` of `sequence` may be pinned too.

        Where there are too many already, the last one on the way to them ends, if it asks for no
        more than `seconds`: its cells stay with the new one. (A chat that grows pins a longer
        prefix at each turn.)

        Args:
            most_cells: that all of them may hold.
        """
        shared = (self._pool.shared(pin, sequence) for pin in self._pins)
        if self.cells + tokens - min(tokens, max(shared, default=0)) > most_cells:
            return False
        if len(self._pins) < self.most:
            return True
        on_the_way = [pin for pin in self._within(sequence, tokens) if self._asks(pin) <= seconds]
        if not on_the_way:
            return False
        self.remove(max(on_the_way, key=self._index.length))
        return True

    def add(self, sequence: int, seconds: float) -> None:
        """`sequence` stays until `seconds` after its last use, which is now. One that is pinned
        already stays for the longer of both times.
        """
        known = self._pins.get(sequence)
        self._pins[sequence] = _Pin(seconds if known is None else max(seconds, known.seconds), 0.0)
        self.use(sequence)

    def use(self, sequence: int) -> None:
        """`sequence`, which is pinned, is used now."""
        pin = self._pins[sequence]
        pin.until = self._clock() + pin.seconds

    def remove(self, sequence: int) -> None:
        """`sequence` need not stay any more; it may not have been pinned."""
        self._pins.pop(sequence, None)

    def expire(self) -> None:
        """Remove those whose time is over."""
        if self._pins:
            now = self._clock()
            self._pins = {one: pin for one, pin in self._pins.items() if now < pin.until}

    def _within(self, sequence: int, tokens: int) -> list[int]:
        """Those that the first `tokens` of `sequence` go beyond."""
        return [
            other
            for other in self._index.covered(sequence)
            if other in self._pins and self._index.length(other) < tokens
        ]

    def _asks(self, pin: int) -> float:
        return self._pins[pin].seconds
