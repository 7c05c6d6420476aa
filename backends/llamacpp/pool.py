"""Which sequence holds which cells of a unified key-value pool, counted the way llama.cpp counts
them.

llama.cpp keeps one cell per token; `llama_memory_seq_cp` lets a second sequence hold the same cell.
Nothing in its C interface says how many cells are free, so this is the account of it: sequences are
lists of shared segments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Segment:
    """A run of cells that the same sequences hold."""

    length: int
    holders: int


class CellPool:
    """Lengths, sharing and promises of the sequences in one pool.

    A promise (`promise`) is how long a sequence may become; `promised_cells` is what the pool must
    hold if every sequence grows to its promise.

    Args:
        slots: number of sequences.
    """

    def __init__(self, slots: int) -> None:
        self._segments: list[list[Segment]] = [[] for _ in range(slots)]
        self._lengths = [0] * slots
        self._promises = [0] * slots
        self._cells = 0

    @property
    def cells(self) -> int:
        """Cells in use; a shared one counts once."""
        return self._cells

    @property
    def tokens(self) -> int:
        """Tokens held by all sequences; a shared one counts once for each holder."""
        return sum(self._lengths)

    @property
    def promised_cells(self) -> int:
        """Cells in use once every sequence has grown to what it was promised."""
        pairs = zip(self._lengths, self._promises, strict=True)
        return self._cells + sum(max(0, promise - length) for length, promise in pairs)

    def length(self, slot: int) -> int:
        return self._lengths[slot]

    def promised(self, slot: int) -> int:
        return self._promises[slot]

    def promise(self, slot: int, tokens: int) -> None:
        """Note that `slot` may grow to `tokens`; replaces what was promised before."""
        self._promises[slot] = tokens

    def append(self, slot: int, count: int) -> None:
        """`slot` grew by `count` tokens, in cells of its own."""
        segments = self._segments[slot]
        if segments and segments[-1].holders == 1:
            segments[-1].length += count
        elif count:
            segments.append(Segment(count, 1))
        self._lengths[slot] += count
        self._cells += count

    def trim(self, slot: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of `slot`; cells that nobody holds any more are free."""
        if tokens >= self._lengths[slot]:
            return
        kept = self._split(slot, tokens)
        for segment in self._segments[slot][kept:]:
            segment.holders -= 1
            if segment.holders == 0:
                self._cells -= segment.length
        del self._segments[slot][kept:]
        self._lengths[slot] = tokens

    def fork(self, source: int, target: int, tokens: int) -> None:
        """Let the empty `target` hold the first `tokens` cells of `source`."""
        shared = self._segments[source][: self._split(source, tokens)]
        for segment in shared:
            segment.holders += 1
        self._segments[target] = list(shared)
        self._lengths[target] = tokens

    def release(self, slot: int) -> None:
        """`slot` holds nothing and is promised nothing."""
        self.trim(slot, 0)
        self._promises[slot] = 0

    def _split(self, slot: int, tokens: int) -> int:
        """Make a boundary after `tokens` tokens of `slot`; returns how many of its segments lie
        before it."""
        covered = 0
        for index, segment in enumerate(self._segments[slot]):
            if covered == tokens:
                return index
            if covered + segment.length > tokens:
                self._cut(segment, tokens - covered)
                return index + 1
            covered += segment.length
        return len(self._segments[slot])

    def _cut(self, segment: Segment, at: int) -> None:
        tail = Segment(segment.length - at, segment.holders)
        segment.length = at
        for segments in self._segments:
            for index, other in enumerate(segments):
                if other is segment:
                    segments.insert(index + 1, tail)
                    break
