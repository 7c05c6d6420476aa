"""Which sequence holds which cells of a unified key-value pool, counted the way llama.cpp counts
them.

llama.cpp keeps one cell per token; `llama_memory_seq_cp` lets a second sequence hold the same cell.
Nothing in its C interface says how many cells are free, so this is the account of it: sequences are
lists of shared segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(slots=True, eq=False)
class Segment:
    """A run of cells that the same sequences hold."""

    length: int
    holders: int


class CellPool:
    """Lengths, sharing and promises of the sequences in one pool.

    A promise (`promise`) is how long a sequence may become; `promised_cells` is what the pool must
    hold if every sequence grows to its promise.

    Sequences share first parts only. So who holds a segment holds all segments before it, it stands
    at the same index in the list of each of its holders, and along a list the holders become fewer:
    a list is never longer than there are sequences.

    Args:
        sequences: number of sequences.
    """

    def __init__(self, sequences: int) -> None:
        self._segments: list[list[Segment]] = [[] for _ in range(sequences)]
        self._lengths = [0] * sequences
        self._promises = [0] * sequences
        self._cells = 0
        self._growth = 0

    @property
    def cells(self) -> int:
        """Cells in use; a shared one counts once."""
        return self._cells

    @property
    def tokens(self) -> int:
        """Tokens held by all sequences; a shared one counts once for each holder."""
        return sum(self._lengths)

    @property
    def growth(self) -> int:
        """Cells that are promised and not yet in use."""
        return self._growth

    @property
    def promised_cells(self) -> int:
        """Cells in use once every sequence has grown to what it was promised."""
        return self._cells + self._growth

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def promised(self, sequence: int) -> int:
        return self._promises[sequence]

    def cells_of(self, sequences: Iterable[int]) -> int:
        """Cells that at least one of `sequences` holds; a shared one counts once."""
        lengths = {id(part): part.length for held in sequences for part in self._segments[held]}
        return sum(lengths.values())

    def shared(self, one: int, other: int) -> int:
        """How many first cells two sequences both hold."""
        pairs = zip(self._segments[one], self._segments[other], strict=False)
        return sum(mine.length for mine, theirs in pairs if mine is theirs)

    def promise(self, sequence: int, tokens: int) -> None:
        """Note that `sequence` may grow to `tokens`; replaces what was promised before."""
        self._note(sequence, self._lengths[sequence], tokens)

    def append(self, sequence: int, count: int) -> None:
        """`sequence` grew by `count` tokens, in cells of its own."""
        segments = self._segments[sequence]
        if segments and segments[-1].holders == 1:
            segments[-1].length += count
        elif count:
            segments.append(Segment(count, 1))
        self._cells += count
        self._note(sequence, self._lengths[sequence] + count, self._promises[sequence])

    def trim(self, sequence: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of `sequence`; cells that nobody holds any more are
        free."""
        if tokens >= self._lengths[sequence]:
            return
        kept = self._split(sequence, tokens)
        dropped = self._segments[sequence][kept:]
        del self._segments[sequence][kept:]
        left = [segment for segment in dropped if segment.holders > 1]
        for segment in dropped:
            segment.holders -= 1
        self._cells -= sum(segment.length for segment in dropped[len(left) :])
        self._note(sequence, tokens, self._promises[sequence])
        if left:
            self._join(kept + len(left) - 1, left[-1])

    def fork(self, source: int, target: int, tokens: int) -> None:
        """Let the empty `target` hold the first `tokens` cells of `source`."""
        shared = self._segments[source][: self._split(source, tokens)]
        for segment in shared:
            segment.holders += 1
        self._segments[target] = shared
        self._note(target, tokens, self._promises[target])

    def release(self, sequence: int) -> None:
        """`sequence` holds nothing and is promised nothing."""
        self.trim(sequence, 0)
        self.promise(sequence, 0)

    def check_integrity(self) -> None:
        """Count all of it again; raises AssertionError where the account differs."""
        holders: dict[int, int] = {}
        lengths: dict[int, int] = {}
        for held, segments in enumerate(self._segments):
            assert sum(segment.length for segment in segments) == self._lengths[held]
            for segment in segments:
                holders[id(segment)] = holders.get(id(segment), 0) + 1
                lengths[id(segment)] = segment.length
        for segments in self._segments:
            assert all(holders[id(segment)] == segment.holders for segment in segments)
            assert all(segment.length > 0 for segment in segments)
            assert all(before.holders > after.holders for before, after in pairwise(segments))
        assert sum(lengths.values()) == self._cells
        assert sum(map(_growth, self._lengths, self._promises)) == self._growth

    def _note(self, sequence: int, length: int, promise: int) -> None:
        self._growth += _growth(length, promise)
        self._growth -= _growth(self._lengths[sequence], self._promises[sequence])
        self._lengths[sequence] = length
        self._promises[sequence] = promise

    def _split(self, sequence: int, tokens: int) -> int:
        """Make a boundary after `tokens` tokens of `sequence`; returns how many of its segments lie
        before it."""
        covered = 0
        for index, segment in enumerate(self._segments[sequence]):
            if covered == tokens:
                return index
            if covered + segment.length > tokens:
                self._cut(index, segment, tokens - covered)
                return index + 1
            covered += segment.length
        return len(self._segments[sequence])

    def _cut(self, index: int, segment: Segment, at: int) -> None:
        tail = Segment(segment.length - at, segment.holders)
        segment.length = at
        for segments in self._holding(index, segment):
            segments.insert(index + 1, tail)

    def _join(self, index: int, segment: Segment) -> None:
        """The last segment that others held beside one that left: make it one with what follows it,
        if that has the same holders."""
        holding = self._holding(index, segment)
        if len(holding[0]) == index + 1:
            return
        following = holding[0][index + 1]
        if following.holders == segment.holders:
            segment.length += following.length
            for segments in holding:
                del segments[index + 1]

    def _holding(self, index: int, segment: Segment) -> list[list[Segment]]:
        """The lists that have `segment`, which is at `index` in each."""
        return [
            segments
            for segments in self._segments
            if len(segments) > index and segments[index] is segment
        ]


def _growth(length: int, promise: int) -> int:
    return max(0, promise - length)
