"""How much memory this process may still take, and ways to return memory to the system."""

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
"""Options of mallopt(3), from malloc.h."""
_SEPARATE_BYTES = 1 << 20
_MOST_KEPT_BYTES = 32 << 20
"""`DEFAULT_MMAP_THRESHOLD_MAX` of malloc.c on 64 bits."""


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes that can be taken without swapping, within the limit of the Linux control group (v2)
    if there is one."""
    free = free_memory_bytes()
    room = _cgroup_room(cgroup)
    return free if room is None else min(free, room)


def _cgroup_room(folder: Path) -> int | None:
    """`memory.max` less the memory in use, not counting file pages that the kernel can drop. None
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
    """Memory that C code allocates inside the block is written to at once, so that it is taken now
    and not at its first use. Only with glibc; affects all threads.
    """
    _set_option(_M_PERTURB, 0xFF)  # Allocations are filled with the complement of this, zeros.
    try:
        yield
    finally:
        _set_option(_M_PERTURB, 0)


@contextmanager
def separate_allocations() -> Iterator[None]:
    """Inside the block, allocations of more than a megabyte are returned to the system when C code
    frees them.

    By default glibc serves allocations of up to 32 MiB from its heap and keeps freed ones there,
    and the heap becomes fragmented by allocations that stay. The default is restored afterwards.
    Only with glibc; affects all threads.
    """
    _set_option(_M_MMAP_THRESHOLD, _SEPARATE_BYTES)
    try:
        yield
    finally:
        # Once set, the limits no longer rise by themselves; these are their final values.
        _set_option(_M_MMAP_THRESHOLD, _MOST_KEPT_BYTES)
        _set_option(_M_TRIM_THRESHOLD, 2 * _MOST_KEPT_BYTES)


def release_free_memory() -> None:
    """Return freed memory to the system that glibc still holds in the heap of each thread. Does
    nothing without glibc.
    """
    trim = _glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _set_option(option: int, value: int) -> None:
    """Call mallopt(3), if the C library has it."""
    set_option = _glibc("mallopt")
    if set_option is not None:
        set_option(option, value)


def _glibc(name: str) -> Any:
    """A function of the C library on Linux; None if there is none of this name."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
