"""Chooses the number of decoding threads while other programs start and stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_WINDOW: Final = 4
"""Number of steps whose mean time is compared."""
_CLEARLY_FASTER: Final = 0.9
"""Another number of threads is kept if its steps take at most this share of the time before."""
_CLEARLY_LOST: Final = 1.5
"""A trial ends early when its steps take more than this multiple of the time before."""
_CLEARLY_SLOWER: Final = 1.4
"""A trial starts early when steps take more than this multiple of their earlier time."""
_LEAST_REST_S: Final = 0.5
"""Least seconds of steps between two trials; each failed trial doubles the interval."""
_LONGEST_REST_S: Final = 32.0
"""Upper limit of the seconds of steps between two trials."""
_FIRST_REST_S: Final = 8.0
"""Seconds of steps before the first trial if nothing seems to change."""
_MOVES: Final[tuple[Callable[[int], int], ...]] = (
    lambda threads: threads - max(1, threads // 4),
    lambda threads: threads + max(1, threads // 4),
    lambda threads: threads // 2,
)
"""Changes of the number of threads, tried one after the other."""


class ThreadPace:
    """Chooses a number of threads for steps that only decode.

    Threads wait for each other after each operation of a step. If another program uses one of their
    cores, all of them wait for the thread that has no core, and fewer threads are faster: on two
    cores next to one busy program, one thread decodes several times as fast as two. From time to
    time, and at once if steps take clearly longer than before, a few steps are computed with
    another number of threads, which is kept if it is clearly faster. A trial ends as soon as it has
    lost, so it costs a few steps at most.

    Args:
        threads: the initial number.
        most: most threads that may be used.
        step_s: best time of a step of one row with `threads`; None: unknown.
    """

    def __init__(self, threads: int, most: int, step_s: float | None = None) -> None:
        self.threads = threads
        """Number of threads for the next step."""
        self.chosen = threads
        """Number of threads without a trial, for steps that are not compared."""
        self._most = max(threads, most)
        self._rows = 1
        self._times: list[float] = []
        """Seconds of the last steps of `_rows` rows, on `threads` threads."""
        self._known_s = step_s
        """Seconds of a step of `_rows` rows when it was last compared."""
        self._before_s = 0.0
        """Seconds of a step with `chosen` threads, measured before the current trial."""
        self._rest_s = 0.0
        """Seconds of steps since the last trial."""
        self._interval_s = _FIRST_REST_S
        self._move = 0
        """Index in `_MOVES` of the next change to try."""

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step that took `seconds` to decode a token for each of `rows` sequences."""
        if rows != self._rows:
            self._begin(rows)
        self._times.append(seconds)
        if self.threads != self.chosen:
            self._judge()
            return
        self._rest_s += seconds
        if len(self._times) < _WINDOW:
            return
        del self._times[:-_WINDOW]
        mean_s = sum(self._times) / _WINDOW
        if self._known_s is None:
            self._known_s = mean_s
        is_slower = mean_s > _CLEARLY_SLOWER * self._known_s and self._rest_s >= _LEAST_REST_S
        if is_slower:
            self._move, self._interval_s = 0, _LEAST_REST_S
        if is_slower or self._rest_s >= self._interval_s:
            self._try(mean_s)

    def _begin(self, rows: int) -> None:
        """Start again with steps of another size; a trial in progress is dropped."""
        self._rows, self._known_s = rows, None
        self._times.clear()
        self.threads = self.chosen

    def _try(self, mean_s: float) -> None:
        """Start a trial with the next number of threads that is possible."""
        self._known_s, self._before_s, self._rest_s = mean_s, mean_s, 0.0
        for _ in _MOVES:
            other = _MOVES[self._move](self.chosen)
            if 1 <= other <= self._most:
                self.threads = other
                self._times.clear()
                return
            self._move = (self._move + 1) % len(_MOVES)

    def _judge(self) -> None:
        """Keep the number of threads on trial, or end the trial, or continue it."""
        took_s = sum(self._times)
        most_s = _CLEARLY_FASTER * self._before_s * _WINDOW
        if took_s > most_s or took_s > _CLEARLY_LOST * self._before_s * len(self._times):
            self.threads = self.chosen
            self._move = (self._move + 1) % len(_MOVES)
            self._interval_s = min(2 * self._interval_s, _LONGEST_REST_S)
            self._times.clear()
        elif len(self._times) == _WINDOW:
            self.chosen = self.threads  # The same change is tried next, it may help again.
            self._known_s = took_s / _WINDOW
            self._interval_s = _LEAST_REST_S
