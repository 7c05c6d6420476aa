"""Tokens per second over the last minute, from counters that only increase."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

WINDOW_S: Final = 60
_NOW_S: Final = 2.0


class TokenRate:
    """The rate at which all workers together generate tokens.

    Call `feed` at every update with what each worker has generated so far; tokens generated between
    two calls are spread evenly over the time between them.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._spans: deque[tuple[float, float, int]] = deque()
        """(from, to, tokens) for each update of the last minute, times in seconds, oldest first."""
        self._looked_s: float | None = None

    def feed(self, now_s: float, counts: Mapping[int, int]) -> None:
        """Record how many tokens each worker, by process id, has generated since it was loaded."""
        before_s, self._looked_s = self._looked_s, now_s
        # A worker that was missing at the last update has generated all of its tokens since.
        came = sum(max(0, count - self._counts.get(pid, 0)) for pid, count in counts.items())
        self._counts = dict(counts)
        if before_s is None or now_s <= before_s:
            return
        self._spans.append((before_s, now_s, came))
        while self._spans and self._spans[0][1] <= now_s - WINDOW_S:
            self._spans.popleft()

    @property
    def now(self) -> float:
        """Tokens per second over the last two seconds."""
        return 0.0 if self._looked_s is None else self._between(self._looked_s - _NOW_S) / _NOW_S

    def per_second(self) -> list[float]:
        """Tokens in each second of the last minute, [60], oldest first."""
        seconds = [0.0] * WINDOW_S
        if self._looked_s is None:
            return seconds
        start_s = self._looked_s - WINDOW_S
        for begin_s, end_s, tokens in self._spans:
            a, b = max(0.0, begin_s - start_s), end_s - start_s
            for second in range(int(a), min(WINDOW_S, int(b) + 1)):
                shared_s = min(b, second + 1.0) - max(a, float(second))
                seconds[second] += max(0.0, tokens * shared_s / (end_s - begin_s))
        return seconds

    def _between(self, from_s: float) -> float:
        """Tokens since `from_s`."""
        return sum(
            tokens * (end_s - max(begin_s, from_s)) / (end_s - begin_s)
            for begin_s, end_s, tokens in self._spans
            if end_s > from_s
        )
