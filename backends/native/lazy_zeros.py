"""Tensors on the processor that take memory only where they were written to, and give it back."""

from __future__ import annotations

import mmap
import sys
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

    def give_back(self, axis: int, start: int) -> bool:
        """Give the system memory back: what is at `start` or later of `axis`, as far as the
        system's pages hold nothing else. It reads as zeros afterwards, or as what it was.

        Returns False where the system takes nothing back.
        """
        if _GIVE_BACK is None:
            return False
        shape, itemsize = self.tensor.shape, self.tensor.itemsize
        row_bytes = prod(shape[axis:]) * itemsize
        kept_bytes = start * prod(shape[axis + 1 :]) * itemsize
        page = mmap.PAGESIZE
        for row in range(prod(shape[:axis])):
            first = -(-(row * row_bytes + kept_bytes) // page) * page
            size = (row + 1) * row_bytes // page * page - first
            if size <= 0:
                continue
            try:
                self._map.madvise(_GIVE_BACK, first, size)
            except OSError:  # Memory that is locked stays.
                return False
        return True
