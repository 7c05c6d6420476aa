"""Tensors on the processor that take memory only where they are written, and can release it."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from typing import Final

import torch

_PRIVATE: Final[int | None] = (
    mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if sys.platform != "win32" else None
)
"""A private mapping: for a shared one, the system would keep the memory that is released."""
_SMALL_PAGES: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)
"""Linux only."""
_GIVE_BACK: Final[int | None] = getattr(
    mmap, "MADV_DONTNEED" if sys.platform == "linux" else "MADV_FREE", None
)
"""MADV_DONTNEED releases memory only on Linux; Windows has neither."""
_POPULATE: Final[int | None] = 23 if sys.platform == "linux" else None
"""MADV_POPULATE_WRITE, since Linux 5.14; Python has no name for it."""
_AT_ONCE: Final = 1 << 20
"""Bytes that are populated per call, during which Python's other threads wait."""


class LazyZeros:
    """A tensor of zeros with at least one element.

    It uses the system's small pages, so that a few scattered numbers take little memory.

    Attributes:
        tensor: keeps the memory mapped as long as it is referenced.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        size = prod(shape) * dtype.itemsize
        self._map = mmap.mmap(-1, size) if _PRIVATE is None else mmap.mmap(-1, size, flags=_PRIVATE)
        if _SMALL_PAGES is not None:
            with suppress(OSError):  # A kernel without large pages does not know this advice.
                self._map.madvise(_SMALL_PAGES)
        self.tensor = torch.frombuffer(self._map, dtype=dtype, count=prod(shape)).view(shape)

    def populate(self, axis: int, start: int, end: int, is_wanted: Callable[[], bool]) -> bool:
        """Allocate memory for `start` to `end` of `axis`, so that first writes do not wait for it.

        The contents do not change, so any thread may call this. Returns False if the system cannot
        do this, or once `is_wanted` returns False.
        """
        if _POPULATE is None:
            return False
        for first, end_byte in self._ranges(axis, start, end):
            for at in range(first, end_byte, _AT_ONCE):
                if not is_wanted():
                    return False
                try:
                    self._map.madvise(_POPULATE, at, min(_AT_ONCE, end_byte - at))
                except OSError:
                    return False
        return True

    def give_back(self, axis: int, start: int) -> bool:
        """Release the memory from `start` of `axis` on, in system pages that hold nothing else.

        The released part reads as zeros afterwards, or as before. Returns False if the system
        cannot take memory back.
        """
        if _GIVE_BACK is None:
            return False
        for first, end in self._ranges(axis, start, self.tensor.shape[axis]):
            try:
                self._map.madvise(_GIVE_BACK, first, end - first)
            except OSError:  # Locked memory cannot be released.
                return False
        return True

    def _ranges(self, axis: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Byte ranges of `start` to `end` of `axis`, rounded inwards to whole system pages."""
        shape, itemsize = self.tensor.shape, self.tensor.itemsize
        step = prod(shape[axis + 1 :]) * itemsize
        page = mmap.PAGESIZE
        for row in range(prod(shape[:axis])):
            begin = row * shape[axis] * step
            first = -(-(begin + start * step) // page) * page
            last = (begin + end * step) // page * page
            if first < last:
                yield first, last
