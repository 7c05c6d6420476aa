"""Detects a worker that has work and makes no progress."""

from __future__ import annotations

from typing import Final

STALL_S: Final = 60.0
"""A worker that has work and makes no progress for this many seconds is killed."""
LONGEST_STEP_S: Final = 600.0
"""The limit for a worker that computes all the time: one step of a large model on a slow machine
may take minutes, and counts as progress only when it is over.
"""
_BUSY_CORES: Final = 0.5
"""A process that has used more processor time per second than this since its last progress is
considered to be computing.
"""


class ProgressWatch:
    """Counts how long a process has work without making progress.

    The time is summed over calls of `check`, so that a pause of the watching process itself does
    not count against the watched one.

    Args:
        stall_s: the limit for a process that does not compute.
        longest_step_s: the limit for a process that computes.
    """

    def __init__(self, stall_s: float = STALL_S, longest_step_s: float = LONGEST_STEP_S) -> None:
        self.interval_s = stall_s / 12
        """Seconds between calls of `check`."""
        self._stall_s = stall_s
        self._longest_step_s = longest_step_s
        self._marker: object = None
        self._cpu_s = 0.0
        self._moved = True
        self.idle_s = 0.0
        """Seconds without progress at the last check."""

    def progress(self) -> None:
        """The process has sent an answer, or has received its first work."""
        self._moved = True

    def check(self, marker: object, cpu_s: float, passed_s: float) -> bool:
        """Whether the process has made no progress for too long.

        Args:
            marker: a value that differs after every step, or None if the process did not report it;
                an equal value means no progress.
            cpu_s: processor seconds that the process has used since it started.
            passed_s: seconds since the last check; more than two intervals count as two.
        """
        if marker is not None and marker != self._marker:
            self._marker = marker
            self._moved = True
        if self._moved:
            self._moved = False
            self.idle_s = 0.0
            self._cpu_s = cpu_s
            return False
        self.idle_s += min(passed_s, 2 * self.interval_s)
        computes = cpu_s - self._cpu_s > _BUSY_CORES * self.idle_s
        return self.idle_s >= (self._longest_step_s if computes else self._stall_s)
