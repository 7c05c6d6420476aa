"""Which kept prefixes leave the key-value memory, because those who run would pay for them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Final

from hearth.backends.engine.cells import CellPool
from hearth.backends.engine.kept import KeptPrefixes
from hearth.backends.engine.radix import RadixIndex
from hearth.backends.engine.sequence_store import SequenceStore
from hearth.backends.engine.shelf import Shelf

WORTH_MOVING: Final = 16
"""Cells that a kept prefix must free, or tokens that it must save from being computed, to be moved
out of the pool or back. Even a few cells can cost those who run a tenth of their speed: llama.cpp's
flash attention cuts the pool at its middle, a part a thread, from the 257th cell in use on."""


class Shelving:
    """Moves kept prefixes to a shelf.

    Args:
        store: where they are.
        pool: which cells they hold.
        index: which tokens they hold.
        beside: most cells of kept prefixes that stay while sequences run; None: nothing is moved.
    """

    def __init__(
        self, store: SequenceStore, pool: CellPool, index: RadixIndex, beside: int | None
    ) -> None:
        self._store = store
        self._pool = pool
        self._index = index
        self._most_beside = beside if store.keeps_past else None
        self.worth_moving = WORTH_MOVING
        self.shelf = Shelf()

    def shrink(self, pool_tokens: int) -> int:
        """Let the shelf have no more than `pool_tokens` leave beside the pool as it is now; returns
        how many tokens that is.
        """
        room = max(0, pool_tokens - self._store.allocated_tokens)
        self.shelf.shrink(room)
        return room

    def out_of_the_way(self, live: Seq[int], kept: KeptPrefixes, pool_tokens: int) -> Iterator[int]:
        """Save kept prefixes, the least recently used first; each is on the shelf when it is given
        out, and then has to be dropped from the pool. Pinned ones stay.

        Args:
            live: the sequences that run.
            pool_tokens: most tokens in pool and shelf together.
        """
        if self._most_beside is None:
            return
        room = self.shrink(pool_tokens)
        for sequence in kept.loose() if live else ():
            if self._pool.cells - self._pool.cells_of(live) <= self._most_beside:
                return
            others = [other for other in (*live, *kept) if other != sequence]
            own = self._pool.cells - self._pool.cells_of(others)
            length = self._index.length(sequence)
            if own < self.worth_moving or length > room:
                continue
            if (state := self._store.save(sequence)) is None:
                return
            self.shelf.add(self._index.tokens(sequence), state)
            self.shelf.shrink(room)
            yield sequence
