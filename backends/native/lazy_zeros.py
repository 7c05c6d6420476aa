"""Tensors on the processor that take memory only where they were written to, and give it back."""

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
"""A map of our own: of one that may be shared the system keeps what is given back."""
_SMALL_PAGES: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)
"""Linux only."""
_GIVE_BACK: Final[int | None] = getattr(
    mmap, "MADV_DONTNEED" if sys.platform == "linux" else "MADV_FREE", None
)
"""The first of these gives nothing back elsewhere than on Linux; Windows has neither."""
_POPULATE: Final[int | None] = 23 if sys.platform == "linux" else None
"""MADV_POPULATE_WRITE, of Linux 5.14; Python has no name for it."""
_AT_ONCE: Final = 1 << 20
"""Bytes that are populated in one call, during which Python's other threads wait."""


class LazyZeros:
    """A tensor of zeros, of one element at least. It is in the system's small pages, so that a
    number here and there takes little.

    Attributes:
        tensor: as long as it is in use, its memory is there.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        size = prod(shape) * dtype.itemsize
        self._map = mmap.mmap(-1, size) if _PRIVATE is None else mmap.mmap(-1, size, flags=_PRIVATE)
        if _SMALL_PAGES is not None:
            with suppress(OSError):  # A kernel that has no large pages knows no such advice.
                self._map.madvise(_SMALL_PAGES)
        self.tensor = torch.frombuffer(self._map, dtype=dtype, count=prod(shape)).view(shape)

    def populate(self, axis: int, start: int, end: int, is_wanted: Callable[[], bool]) -> bool:
        """Have memory for what is at `start` to `end` of `axis`, while `is_wanted`, so that the
        first write to it need not wait for that. Changes nothing that is written there: any thread
        may call it.

        Returns False where the system cannot do that, or it is not wanted any more.
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
        """Give the system memory back: what is at `start` or later of `axis`, as far as the
        system's pages hold nothing else. It reads as zeros afterwards, or as what it was.

        Returns False where the system takes nothing back.
        """
        if _GIVE_BACK is None:
            return False
        for first, end in self._ranges(axis, start, self.tensor.shape[axis]):
            try:
                self._map.madvise(_GIVE_BACK, first, end - first)
            except OSError:  # Memory that is locked stays.
                return False
        return True

    def _ranges(self, axis: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The bytes of what is at `start` to `end` of `axis`, as far as the system's pages hold
        nothing else.
        """
        shape, itemsize = self.tensor.shape, self.tensor.itemsize
        step = prod(shape[axis + 1 :]) * itemsize
        page = mmap.PAGESIZE
        for row in range(prod(shape[:axis])):
            begin = row * shape[axis] * step
            first = -(-(begin + start * step) // page) * page
            last = (begin + end * step) // page * page
            if first < last:
                yield first, last
