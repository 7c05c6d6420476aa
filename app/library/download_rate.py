"""How fast a download goes, and when it will be done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable


class Rate:
    """Bytes per second over the last seconds.

    Args:
        window_s: how far it looks back.
        clock: seconds that only grow.
    """

    def __init__(self, window_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, done_bytes: int) -> None:
        """Record how many bytes are there now; fewer than before: some are fetched again."""
        now = self._clock()
        if self._seen and done_bytes < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._window_s:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """None until it is known."""
        if len(self._seen) < 2:
            return None
        (since, before), (_, after) = self._seen[0], self._seen[-1]
        took_s = self._clock() - since
        return (after - before) / took_s if took_s > 0 else None

    def eta_s(self, missing_bytes: int) -> float | None:
        """Seconds until `missing_bytes` have come at this rate; None where nothing moves."""
        rate = self.bytes_per_s
        return missing_bytes / rate if rate else None
