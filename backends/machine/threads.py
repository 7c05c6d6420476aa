"""How many threads: measured on the loaded model where that is cheap, physical cores where it is
not."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEASURE_BUDGET_S = 0.3
"""For decode and prefill together."""
CLEARLY_FASTER = 0.95
"""Another count must take at most this share of the default's time: timings of single steps are
noisy."""


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """Threads, and the seconds per step that each measured count took; nothing measured: the
    default."""

    threads: int
    measured_s: dict[int, float]


def usable_cores() -> int:
    """Physical cores that this process may use: decoding is bound by memory, so hyper-threads only
    get in the way.

    Bounded by the CPU affinity and, on Linux, by the cgroup's quota.
    """
    return max(1, min(_physical_cores() or os.cpu_count() or 1, usable_threads()))


def usable_threads() -> int:
    """Logical processors that this process may use, within affinity and the cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        logical = len(os.sched_getaffinity(0))
    else:
        logical = os.cpu_count() or 1
    quota = _cgroup_quota(Path("/sys/fs/cgroup/cpu.max"))
    return max(1, min(logical, quota) if quota else logical)


def _physical_cores() -> int | None:
    """None: not known."""
    try:
        import psutil
    except ModuleNotFoundError:  # On a machine with nothing but a card and PyTorch.
        return None
    return psutil.cpu_count(logical=False)


SPINS: Final = "3000"
"""How often a thread looks whether the others have come to a barrier before it sleeps, where
libgomp joins them (GOMP_SPINCOUNT): about a tenth of a millisecond. By default it looks 300,000
times. A step has hundreds of barriers, and where other programs want the cores too, a thread that
waits at one keeps the thread that it waits for from running. On two idle cores that costs 1 to 3 %;
next to busy programs steps are several times as fast (`benchmarks/busy_steps.py`).
"""


def fastest_threads(step: Callable[[int], None], default: int) -> ThreadChoice:
    """The fastest number of threads for `step`, of those worth trying (see `measure_threads`)."""
    return measure_threads(step, candidates(default, max(default, usable_threads())))


def candidates(default: int, most: int) -> list[int]:
    """Counts worth trying, the default first: half of it, one less (leaves a core to others), and
    all threads."""
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

    Each count gets one untimed step (threads start up) and the best of `repeats` timed ones. A
    count is skipped where its steps would, at the speed seen so far, go beyond the budget; so a
    large model keeps the default.

    Args:
        step: does the same work each time, with the number of threads it is given.
        counts: what to try, the default first.
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
    """Whole CPUs of a cgroup-v2 `cpu.max` file ("200000 100000" is 2); None without a limit."""
    try:
        quota, period = path.read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
