"""The prefixes that are kept of sequences that nobody runs, in the order of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from hearth.backends.engine.cells import CellPool
from hearth.backends.engine.pins import Pins
from hearth.backends.engine.radix import RadixIndex


class KeptPrefixes:
    """Ids of kept prefixes, the least recently used first; some of them are pinned.

    Args:
        pool: which cells they hold.
        index: which tokens they hold.
        clock: seconds, for pins.
        most_pins: how many may be pinned.
    """

    def __init__(
        self, pool: CellPool, index: RadixIndex, clock: Callable[[], float], *, most_pins: int
    ) -> None:
        self._index = index
        self._order: dict[int, None] = {}
        self.pins = Pins(pool, index, clock, most=most_pins)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def add(self, sequence: int) -> None:
        """`sequence` is kept, and counts as used now."""
        self._order[sequence] = None

    def remove(self, sequence: int) -> None:
        """`sequence` is kept, and pinned, no more."""
        del self._order[sequence]
        self.pins.remove(sequence)

    def touch(self, sequence: int) -> None:
        """`sequence`, which is kept, is used now."""
        del self._order[sequence]
        self._order[sequence] = None

    def use_pins(self, tokens: Seq[int]) -> None:
        """Every pinned prefix that `tokens` begin with is used now."""
        for pin in self.pins.begun_by(tokens):
            self.pins.use(pin)
            self.touch(pin)

    def unpin_beyond(self, cells: int) -> None:
        """Let pins hold so many cells at most; the least recently used end first."""
        for sequence in self._order:
            if self.pins.cells > cells:
                self.pins.remove(sequence)

    def loose(self) -> list[int]:
        """Those that are not pinned, the least recently used first."""
        return [sequence for sequence in self._order if sequence not in self.pins]

    def first_to_go(self) -> int:
        """The least recently used; a pinned one only where there are no others."""
        loose = self.loose()
        return loose[0] if loose else next(iter(self._order))

    def exactly(self, sequence: int, tokens: int) -> int | None:
        """The one that is just the first `tokens` of `sequence`, a pinned one if there is one."""
        same = [
            other
            for other in self._index.covered(sequence)
            if other in self._order and self._index.length(other) == tokens
        ]
        pinned = [other for other in same if other in self.pins]
        return next(iter(pinned or same), None)

    def covered(self, sequence: int) -> list[int]:
        """Those that are not pinned and whose tokens `sequence` has all."""
        covered = set(self._index.covered(sequence))
        return [other for other in self.loose() if other in covered]

    def serving(self, sequence: int, *, keeps_past: bool) -> int | None:
        """One that serves all that `sequence` would: the same tokens, or where `keeps_past` is
        true more; None if there is none.
        """
        length = self._index.length(sequence)
        for other in self._index.covering(sequence):
            if other in self._order and (keeps_past or self._index.length(other) == length):
                return other
        return None

    def check_integrity(self, most_pinned_cells: int) -> None:
        """Raises AssertionError where pins are not kept, or are more than they may be."""
        assert all(pin in self._order for pin in self.pins), "what is pinned is kept"
        assert len(self.pins) <= self.pins.most and self.pins.cells <= most_pinned_cells
