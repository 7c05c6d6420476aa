"""What a file says of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


STAYS_PACKED = frozenset({"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4"})
"""Types that are computed with as they are; anything else packed is unpacked when it is loaded."""
DEQUANTIZED = STAYS_PACKED | {
    *("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "NVFP4"),
}
"""Packed types that can be unpacked at all: `hearth.kernels.blocks.packings`, for those who must
not import torch.
"""


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
