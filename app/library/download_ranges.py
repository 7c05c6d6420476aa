"""Which bytes of a file are there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""From the first byte to the one after the last."""


class Ranges:
    """A set of bytes, kept as ranges that neither touch nor overlap, in order."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __bool__(self) -> bool:
        return bool(self._starts)

    @property
    def total(self) -> int:
        """How many bytes are there."""
        return sum(self._ends) - sum(self._starts)

    @property
    def prefix(self) -> int:
        """How many bytes are there without a gap from the file's beginning."""
        return self._ends[0] if self._starts and self._starts[0] == 0 else 0

    def add(self, start: int, end: int) -> None:
        """Bytes from `start` to before `end` are there now; none if they are the same."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def missing(self, size_bytes: int) -> list[Range]:
        """What a file of `size_bytes` lacks, in order."""
        gaps = []
        position = 0
        for start, end in self:
            if position < start:
                gaps.append((position, min(start, size_bytes)))
            position = max(position, end)
        if position < size_bytes:
            gaps.append((position, size_bytes))
        return gaps


def pieces(ranges: Iterable[Range], most_bytes: int) -> list[Range]:
    """`ranges`, cut so that none is longer than `most_bytes`."""
    return [
        (cut, min(cut + most_bytes, end))
        for start, end in ranges
        for cut in range(start, end, most_bytes)
    ]
