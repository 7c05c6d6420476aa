"""Histograms of durations, in constant memory."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final

_STEP: Final = 1.05
"""Ratio of a bucket's edges, at most; its geometric middle is within 2.5 % of each value."""
_DECADES: Final = range(-5, 4)
"""From 10 µs to 10,000 s; shorter and longer durations are in the first and last bucket."""
_NICE: Final = tuple(float(f"{lead}e{n}") for n in _DECADES for lead in ("1", "2.5", "5"))


def _edges() -> Iterator[float]:
    """The upper edges: those of `_NICE`, and between each two as many as `_STEP` requires."""
    for lower, upper in pairwise((*_NICE, 10.0**_DECADES.stop)):
        parts = math.ceil(math.log(upper / lower) / math.log(_STEP))
        yield lower
        yield from (lower * (upper / lower) ** (part / parts) for part in range(1, parts))


_EDGES: Final = tuple(_edges())
_PUBLISHED: Final = tuple((edge, _EDGES.index(edge)) for edge in _NICE if 0.001 <= edge <= 500.0)


class Histogram:
    """Durations in seconds: count, sum, and any percentile to within 2.5 % (10 µs to 10,000 s)."""

    __slots__ = ("_counts", "_least_s", "_most_s", "count", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(_EDGES) + 1)
        self._least_s = math.inf
        self._most_s = 0.0
        self.count = 0
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count `seconds`, `times` times."""
        self._counts[bisect_left(_EDGES, seconds)] += times
        self.count += times
        self.sum_s += seconds * times
        if seconds < self._least_s:
            self._least_s = seconds
        if seconds > self._most_s:
            self._most_s = seconds

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`."""
        self._counts = [
            ours + theirs for ours, theirs in zip(self._counts, other._counts, strict=True)
        ]
        self._least_s = min(self._least_s, other._least_s)
        self._most_s = max(self._most_s, other._most_s)
        self.count += other.count
        self.sum_s += other.sum_s

    @property
    def mean_s(self) -> float | None:
        """The mean; None if nothing was counted."""
        return self.sum_s / self.count if self.count else None

    def percentile(self, percent: float) -> float | None:
        """The value that `percent` of all do not exceed (nearest rank); None if there are none."""
        if not self.count:
            return None
        rank = max(1, math.ceil(self.count * percent / 100))
        bucket = next(at for at, seen in enumerate(accumulate(self._counts)) if seen >= rank)
        lower = _EDGES[max(0, bucket - 1)]
        upper = _EDGES[min(bucket, len(_EDGES) - 1)]
        return min(max(math.sqrt(lower * upper), self._least_s), self._most_s)

    def cumulative(self) -> list[tuple[float, int]]:
        """(edge in seconds, count of durations up to it), from 1 ms to 500 s."""
        seen = list(accumulate(self._counts))
        return [(edge, seen[at]) for edge, at in _PUBLISHED]
