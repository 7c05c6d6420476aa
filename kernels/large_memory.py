"""Memory for weights in large pages: all weights are read for each token, and address translation
for every 4 KiB page takes time.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod
from typing import Final

import torch
from torch import Tensor

_LARGE_PAGE: Final = 2 << 20
"""Bytes of a large page on x86 and most ARM systems; smaller tensors do not ask for one."""
_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)
"""None except on Linux, where programs can ask for large pages."""
_ALIGNMENT: Final = 64


def large_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on the CPU, in large pages if the system has them."""
    size = prod(shape) * dtype.itemsize
    if _ADVICE is None or size < _LARGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    # Shared memory, the default of mmap, does not get large pages by this advice.
    memory = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # Raised by kernels without large pages.
        memory.madvise(_ADVICE)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(shape)


class LargeMemory:
    """Allocates tensors that share large pages, for one thread, because a matrix on its own leaves
    its last page partly unused or is smaller than a page. An allocation is freed once none of the
    tensors in it is in use.
    """

    def __init__(self, together: int = 128 << 20) -> None:
        """
        Args:
            together: bytes allocated at a time. They use memory only when they are written.
        """
        self._together = together
        self._rest = torch.empty(0, dtype=torch.uint8)

    def empty(self, size: int) -> Tensor:
        """[size] uint8, aligned to 64 bytes."""
        if size > len(self._rest):
            self._rest = large_empty((max(size, self._together),), torch.uint8)
        memory = self._rest[:size]
        self._rest = self._rest[-(-size // _ALIGNMENT) * _ALIGNMENT :]
        return memory
