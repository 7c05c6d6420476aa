"""Sizes, times, counts, model states and command arguments in the form that all front ends use."""

from __future__ import annotations

import re
import shlex
from fractions import Fraction
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hearth.backends.contract.loaded import WorkerStats

_STALLED_S: Final = 15.0
"""A model with requests but no progress for this long is shown as stalled."""
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgt", 1)}
"""Bytes per unit, by lower-case name. SI's kB, MB, GB, TB are powers of 1000. IEC's KiB, MiB, GiB,
TiB are powers of 1024, and so are K, M, G, T alone, as in `ls -h` and `docker run --memory`."""

_SIZE = re.compile(r"(\d{1,1000}(?:\.\d{1,1000})?)\s*([a-z]*)", re.ASCII)
"""Python's `int` reads at most 4,300 digits."""


def parse_size(text: str) -> int | None:
    """The number of bytes that `text` means, such as "512MiB", "2 GB", "1.5G" or "1048576", rounded
    down; None if it is not a size.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        return None
    return int(Fraction(match[1]) * _UNITS[match[2]])


def format_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as exactly `size_bytes`."""
    texts = []
    for unit in ("KiB", "MiB", "GiB", "TiB", "kB", "MB", "GB", "TB"):
        number, rest = divmod(size_bytes, _UNITS[unit.lower()])
        if number and not rest:
            texts.append(f"{number}{unit}")
    return min([*texts, str(size_bytes)], key=len)


def size(size_bytes: float) -> str:
    """A size in decimal units, such as "4.7 GB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if round(size_bytes, 0 if unit == "B" else 1) < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def binary_size(size_bytes: float) -> str:
    """A size in binary units, such as "3.125 GiB", with up to three decimals."""
    for unit in ("B", "KiB", "MiB"):
        if round(size_bytes, 0 if unit == "B" else 1) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    whole, _, rest = f"{size_bytes:.3f}".partition(".")
    return f"{int(whole):,}.{rest.rstrip('0').ljust(1, '0')} GiB"


def duration(seconds: float) -> str:
    """A time span in its two largest units, such as "4 min 30 s"."""
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


def right_by_position(drafted: Sequence[int], accepted: Sequence[int]) -> str:
    """The share of drafted tokens that were accepted, by position in the draft; empty if none were
    drafted.
    """
    pairs = zip(accepted, drafted, strict=True)
    return " ".join(f"{right / made:.2f}" for right, made in pairs if made)


def state_of(worker: WorkerStats) -> str:
    """One of queued (to be loaded when other models have been unloaded), loading, stalled,
    generating and idle.
    """
    if worker.pid == 0:
        return "queued"
    if worker.info is None:
        return "loading"
    if worker.stalled_s >= _STALLED_S:
        return "stalled"
    return "generating" if worker.running or worker.waiting else "idle"


def unload_in_s(worker: WorkerStats) -> float | None:
    """Seconds until the model is unloaded without new requests; None if it is busy or stays."""
    if worker.keep_alive_s is None or worker.keep_alive_s < 0 or state_of(worker) != "idle":
        return None
    return max(0.0, worker.keep_alive_s - worker.idle_s)


def argument(name: str) -> str:
    """`name` quoted so that a POSIX shell and the commands of `hearth` take it literally. The name
    of a model comes from a file, so it may contain anything.
    """
    return f"-- {shlex.quote(name)}" if name.startswith("-") else shlex.quote(name)
