"""What a file says of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


STAYS_PACKED = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4"})
"""Types that are computed with as they are; anything else packed is unpacked when it is loaded."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file, before anything of it is read."""

    name: str
    shape: tuple[int, ...]
    """As PyTorch has it: a matrix that maps i inputs to o outputs is (o, i)."""
    dtype: torch.dtype | None
    """None: packed in blocks, see `packing`."""
    packing: str = ""
    """The GGUF type of a packed tensor, e.g. "Q4_K"; "" where `dtype` says it."""
    nbytes: int = 0
