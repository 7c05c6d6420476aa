"""The memory bandwidth of this machine, which limits decoding; measured once and stored."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from hearth.app.jobs.child import Reporter
from hearth.app.jobs.job import follow_job, run_job
from hearth.app.machine import Machine
from hearth.backends.machine.atomic_files import write_json

_FILE: Final = "bandwidth.json"
_QUIET_CORES: Final = 0.3
"""Number of processors that other programs may use during a measurement."""


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A measured bandwidth, with place and date; or one that the user gave, with `threads` 0."""

    bytes_per_s: float
    threads: int = 0
    cpu: str = ""
    date: str = ""
    """ISO 8601."""
    is_busy: bool = False
    """Whether other programs kept processors busy, so that the bandwidth at rest is higher.

    It is then measured again next time, and the higher figure is stored.
    """

    @property
    def source(self) -> str:
        """The figure and its source, such as "26.9 GB/s read by 2 threads, measured here on
        2026-11-21".
        """
        if not self.threads:
            return f"{self.bytes_per_s / 1e9:.1f} GB/s, as given"
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        rate = f"{self.bytes_per_s / 1e9:.1f} GB/s read by {threads}"
        busy = " while other programs were busy: at rest it is more" if self.is_busy else ""
        return f"{rate}, measured here on {self.date}{busy}"


def known_bandwidth(cache_dir: Path, machine: Machine) -> Bandwidth | None:
    """The stored measurement of this processor at rest; None if there is none."""
    stored = _stored(cache_dir, machine)
    return stored if stored is not None and not stored.is_busy else None


def _stored(cache_dir: Path, machine: Machine) -> Bandwidth | None:
    import msgspec

    try:
        bandwidth = msgspec.json.decode((cache_dir / _FILE).read_bytes(), type=Bandwidth)
    except (OSError, ValueError):
        return None  # It will be measured again.
    is_same = bandwidth.cpu == machine.cpu and bandwidth.threads == machine.usable_cores
    return bandwidth if is_same and bandwidth.bytes_per_s > 0 else None


def measure_bandwidth(
    cache_dir: Path, machine: Machine, log_dir: Path | None = None, size_bytes: int | None = None
) -> Bandwidth:
    """Measure in a child process, which takes a second, and store the result.

    For commands: Ctrl+C ends the measurement.

    Args:
        cache_dir: an existing folder.
        log_dir: folder of the child's log.
        size_bytes: size of the memory that is read; None: far more than caches hold.

    Raises:
        HearthError: the child failed.
    """
    answer = run_job(measure, _question(machine, size_bytes), lambda _: None, log_dir)
    return _kept(answer, cache_dir, machine)


async def measured_bandwidth(
    cache_dir: Path, machine: Machine, log_dir: Path | None = None, size_bytes: int | None = None
) -> Bandwidth:
    """As `measure_bandwidth`, without blocking the event loop. Cancelling it ends the child."""
    answer = await follow_job(measure, _question(machine, size_bytes), log_dir=log_dir)
    return _kept(answer, cache_dir, machine)


def measure(question: dict[str, Any], reporter: Reporter) -> dict[str, Any]:
    """In the child: the bytes per second that `question["threads"]` threads read.

    They read `question["size_bytes"]`, if given. Also returns the number of processors that other
    programs used meanwhile.
    """
    import psutil

    from hearth.backends.bench.bandwidth import read_bytes_per_s

    reporter.check()
    sizes = {} if question["size_bytes"] is None else {"size_bytes": question["size_bytes"]}
    began, before, own_before = time.monotonic(), psutil.cpu_times(), os.times()
    rate = read_bytes_per_s(question["threads"], **sizes)
    took_s, after, own = time.monotonic() - began, psutil.cpu_times(), os.times()
    all_s = (after.user + after.system) - (before.user + before.system)
    own_s = (own.user + own.system) - (own_before.user + own_before.system)
    return {"bytes_per_s": rate, "cores_elsewhere": max(0.0, all_s - own_s) / max(took_s, 1e-3)}


def _question(machine: Machine, size_bytes: int | None) -> dict[str, Any]:
    return {"threads": machine.usable_cores, "size_bytes": size_bytes}


def _kept(answer: dict[str, Any], cache_dir: Path, machine: Machine) -> Bandwidth:
    """Store and return the child's result, or the earlier result if that is better.

    The earlier result is better if other programs were busy now, and it was measured at rest or is
    higher. So repeated measurements do not contradict each other.
    """
    bandwidth = Bandwidth(
        float(answer["bytes_per_s"]),
        machine.usable_cores,
        machine.cpu,
        time.strftime("%Y-%m-%d"),
        is_busy=answer["cores_elsewhere"] > _QUIET_CORES,
    )
    before = _stored(cache_dir, machine)
    if bandwidth.is_busy and before is not None:
        bandwidth = max((bandwidth, before), key=lambda one: (not one.is_busy, one.bytes_per_s))
    write_json(cache_dir / _FILE, asdict(bandwidth))
    return bandwidth
