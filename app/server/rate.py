"""The rate of events over the last minute."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 60


class Rate:
    """Events per second over the last minute, or since `started_s` if that is shorter.

    Args:
        started_s: the current time of a monotonic clock, which also gives every later time.
    """

    __slots__ = ("_seconds", "_started_s")

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._seconds: deque[list[int]] = deque()
        """[second, events in it], oldest first; seconds without events are left out."""

    def add(self, now_s: float, events: int) -> None:
        """Count `events`."""
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += events
            return
        self._seconds.append([second, events])
        self._forget(second)

    def per_s(self, now_s: float) -> float:
        """Events per second; a span below one second counts as one."""
        first = self._forget(int(now_s))
        span_s = now_s - max(self._started_s, float(first))
        return sum(events for _, events in self._seconds) / max(1.0, span_s)

    def _forget(self, second: int) -> int:
        """Drop events before the window that ends in `second`; returns its first second."""
        first = second - WINDOW_S + 1
        while self._seconds and self._seconds[0][0] < first:
            self._seconds.popleft()
        return first
