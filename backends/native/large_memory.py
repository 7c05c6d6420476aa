"""Memory for weights in large pages: they are read once for each token, and looking up a page for
every 4 KiB of them takes its time.
"""

from __future__ import annotations

import mmap
from math import prod
from typing import Final

import torch
from torch import Tensor

_LARGE_PAGE: Final = 2 << 20
"""Bytes, on x86 and most ARM systems; less than one is not worth asking for."""
_ADVICE: Final = getattr(mmap, "MADV_HUGEPAGE", None)
"""Linux only; elsewhere the system decides."""


def large_empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of zeros on the processor, in large pages where the system has them."""
    size = prod(shape) * dtype.itemsize
    if _ADVICE is None or size < _LARGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    memory = mmap.mmap(-1, -(-size // _LARGE_PAGE) * _LARGE_PAGE)
    memory.madvise(_ADVICE)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape)).view(shape)
