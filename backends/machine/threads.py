"""The number of threads: measured on the loaded model if that is cheap, else the number of physical
cores."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEASURE_BUDGET_S = 0.3
"""Seconds that measuring may take, for decode and prefill together."""
CLEARLY_FASTER = 0.95
"""Another number of threads must take at most this share of the default's time, because timings of
single steps are noisy."""


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The number of threads, and the seconds per step of each measured number; without measurements
    it is the default."""

    threads: int
    measured_s: dict[int, float]


def usable_cores() -> int:
    """Number of physical cores that this process may use; decoding is bound by memory, so
    hyper-threads only slow it down.

    Limited by the CPU affinity and, on Linux, by the cgroup's quota.
    """
    return max(1, min(_physical_cores() or os.cpu_count() or 1, usable_threads()))


def usable_threads() -> int:
    """Number of logical processors that this process may use, within affinity and cgroup quota."""
    if hasattr(os, "sched_getaffinity"):
        logical = len(os.sched_getaffinity(0))
    else:
        logical = os.cpu_count() or 1
    quota = _cgroup_quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, min(logical, quota) if quota else logical)


def _physical_cores() -> int | None:
    """Number of physical cores; None: unknown."""
    try:
        import psutil
    except ModuleNotFoundError:  # Possible where only PyTorch is installed.
        return None
    return psutil.cpu_count(logical=False)


SPINS: Final = "3000"
"""Value of GOMP_SPINCOUNT: how often a thread of libgomp polls at a barrier before it sleeps, for
about a tenth of a millisecond. The default is 300,000 times. A step has hundreds of barriers, and
if other programs use the cores too, a spinning thread keeps the thread that it waits for from
running. This value costs 1 to 3 % on two idle cores; next to busy programs, steps are several times
as fast (`benchmarks/busy_steps.py`).
"""


def fastest_threads(step: Callable[[int], None], default: int) -> ThreadChoice:
    """The fastest number of threads for `step`, among `candidates` (see `measure_threads`)."""
    return measure_threads(step, candidates(default, max(default, usable_threads())))


def candidates(default: int, most: int) -> list[int]:
    """Numbers of threads worth trying: the default first, then half of it, one less (which leaves a
    core to other programs), and all threads."""
    worth = [default, default // 2, default - 1, most]
    return list(dict.fromkeys(count for count in worth if 1 <= count <= most))


def measure_threads(
    step: Callable[[int], None],
    counts: Sequence[int],
    *,
    budget_s: float = MEASURE_BUDGET_S / 2,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> ThreadChoice:
    """Time `step` with each number of threads and choose the fastest.

    For each number, one step is untimed (threads start up), and the best of `repeats` timed steps
    counts. Measuring stops when the steps of the next number would exceed the budget at the speed
    seen so far; a large model thus keeps the default.

    Args:
        step: does the same work each time, with the given number of threads.
        counts: the numbers to try, the default first.
    """
    started = clock()
    slowest = 0.0
    timings: dict[int, float] = {}
    for count in counts if len(counts) > 1 else ():
        if clock() - started + slowest * (repeats + 1) > budget_s:
            break
        times = []
        for _ in range(repeats + 1):
            before = clock()
            step(count)
            times.append(clock() - before)
            if clock() - started > budget_s:
                break
        timings[count] = min(times[1:] or times)
        slowest = max(slowest, *times)
    default = counts[0]
    best = min(timings, key=timings.__getitem__, default=default)
    faster = best != default and timings[best] <= timings[default] * CLEARLY_FASTER
    return ThreadChoice(best if faster else default, timings)


def _cgroup_quota(path: Path) -> int | None:
    """Number of CPUs in a cgroup-v2 `cpu.max` file, rounded up ("200000 100000" is 2); None without
    a limit.
    """
    try:
        quota, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
