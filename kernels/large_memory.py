"""Memory for weights in large pages: they are read once for each token, and looking up a page for
every 4 KiB of them takes its time.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Final

import torch
from torch import Tensor

_LARGE_PAGE: Final = 2 << 20
"""Bytes, on x86 and most ARM systems; less than one is not worth asking for."""
_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)
"""Linux only; elsewhere the system decides."""
_ALIGNMENT: Final = 64


def large_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on the processor, in large pages where the system has them."""
    size = prod(shape) * dtype.itemsize
    if _ADVICE is None or size < _LARGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    # Shared memory, which is the default, has pages of another kind.
    memory = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # A kernel that has no large pages knows no such advice.
        memory.madvise(_ADVICE)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(shape)


class LargeMemory:
    """Tensors that share large pages, for one thread: a matrix on its own fills its last page in
    part, or has none. Pages are given back when none of the tensors that were asked for with them
    is in use any more.
    """

    def __init__(self, together: int = 128 << 20) -> None:
        """
        Args:
            together: bytes that are asked for at a time. They take memory when they are written.
        """
        self._together = together
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, size: int) -> Tensor:
        """[size] uint8, which begin at a multiple of 64 bytes."""
        if size > len(self._rest):
            self._rest = large_empty((max(size, self._together),), torch.uint8)
        found = self._rest[:size]
        self._rest = self._rest[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return found
