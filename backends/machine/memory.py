"""How much memory this process may still take, and how it gives some back."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hearth.kernels.free_memory import free_memory_bytes

CGROUP = Path("/sys/fs/cgroup")
_M_PERTURB, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -6, -3, -1
"""Of malloc.h, options of mallopt(3)."""
_SEPARATE_BYTES = 1 << 20
_MOST_KEPT_BYTES = 32 << 20
"""`DEFAULT_MMAP_THRESHOLD_MAX` of malloc.c on 64 bits."""


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes that can be taken without swapping, within the limit of a Linux control group (v2) if
    there is one."""
    free = free_memory_bytes()
    room = _cgroup_room(cgroup)
    return free if room is None else min(free, room)


def _cgroup_room(folder: Path) -> int | None:
    """`memory.max` less what is in use; file pages that the kernel can drop are not in use. None
    without a limit."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = (folder / "memory.stat").read_text()
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    pairs = (line.partition(" ") for line in stat.splitlines())
    droppable = sum(
        int(count) for name, _, count in pairs if name in ("inactive_file", "active_file")
    )
    return max(0, int(limit) - max(0, used - droppable))


@contextmanager
def touched_allocations() -> Iterator[None]:
    """What C allocates inside is written to at once, so that it takes memory now and not when it is
    first used. Only with glibc, in all threads.
    """
    _set_option(_M_PERTURB, 0xFF)  # what is allocated is filled with its complement, zeros
    try:
        yield
    finally:
        _set_option(_M_PERTURB, 0)


@contextmanager
def separate_allocations() -> Iterator[None]:
    """What C frees inside and is larger than a megabyte goes back to the system at once. Otherwise
    glibc keeps up to 32 MiB of a kind for the next one, in a heap that what stays splits up.
    Afterwards it does so again. Only with glibc, in all threads.
    """
    _set_option(_M_MMAP_THRESHOLD, _SEPARATE_BYTES)
    try:
        yield
    finally:
        # Once set, the limits no longer rise by themselves: these are where they would end.
        _set_option(_M_MMAP_THRESHOLD, _MOST_KEPT_BYTES)
        _set_option(_M_TRIM_THRESHOLD, 2 * _MOST_KEPT_BYTES)


def release_free_memory() -> None:
    """Give the system what is freed and still held by the C library (glibc keeps it, in a heap of
    each thread). Does nothing where there is no glibc.
    """
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _set_option(option: int, value: int) -> None:
    """mallopt(3), where there is one."""
    set_option = _glibc("mallopt")
    if set_option is not None:
        set_option(option, value)


def _glibc(name: str) -> Any:
    """A function of the C library; None where that has none of this name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
