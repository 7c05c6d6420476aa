"""Sizes, times, counts and the states of models as every front end shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hearth.app.sizes import readable_size

if TYPE_CHECKING:
    from hearth.backends.contract import WorkerStats

size = readable_size

_STALLED_S: Final = 15.0
"""A model that has requests and makes no progress for this long is shown as stalled."""


def duration(seconds: float) -> str:
    """A time span to its first two units, such as "4 min 30 s"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(number: int) -> str:
    """A count of parameters, such as "7.1 M"."""
    if not number:
        return "?"
    for unit, divisor in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= divisor:
            return f"{number / divisor:.1f} {unit}"
    return str(number)


def state_of(worker: WorkerStats) -> str:
    """queued (it is loaded when other models have made way), loading, stalled, generating or
    idle.
    """
    if worker.pid == 0:
        return "queued"
    if worker.info is None:
        return "loading"
    if worker.stalled_s >= _STALLED_S:
        return "stalled"
    return "generating" if worker.running or worker.waiting else "idle"


def unload_in_s(worker: WorkerStats) -> float | None:
    """Seconds until the model is unloaded if no request comes; None: it is not idle, or stays."""
    if worker.keep_alive_s is None or worker.keep_alive_s < 0 or state_of(worker) != "idle":
        return None
    return max(0.0, worker.keep_alive_s - worker.idle_s)
