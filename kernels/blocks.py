"""Common to GGUF's packed types: block sizes, and reading scales, nibbles and bit fields.

Source: ggml's `ggml-common.h`. A row of weights is a whole number of blocks; a block contains its
own scales. Little-endian, like GGUF.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from hearth.kernels.block_sizes import BLOCKS

_HALVES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def packings() -> tuple[str, ...]:
    """Every type that can be dequantized, by its GGUF name."""
    return tuple(BLOCKS)


def block_of(packing: str) -> tuple[int, int]:
    """(elements, bytes) of one block.

    Raises:
        ValueError: the type is unknown or cannot be dequantized.
    """
    if packing not in BLOCKS:
        raise ValueError(f"{packing!r} cannot be dequantized; the types are {', '.join(BLOCKS)}")
    return BLOCKS[packing]


def scale_offsets(packing: str) -> tuple[int, ...]:
    """Offsets in bytes of the half-precision scales in a block; empty for types that store none in
    one piece. The rest of a block is integers.
    """
    return _HALVES.get(packing, ())


def halves(blocks: Tensor, start: int, count: int = 1) -> Tensor:
    """[n, count] float32: `count` half-precision numbers from byte `start` of each block."""
    return _view(blocks, start, 2 * count, torch.float16).to(torch.float32)


def words16(blocks: Tensor, start: int, count: int) -> Tensor:
    """[n, count] int32: unsigned 16-bit numbers from byte `start`."""
    return _view(blocks, start, 2 * count, torch.int16).to(torch.int32).bitwise_and_(0xFFFF)


def words32(blocks: Tensor, start: int, count: int) -> Tensor:
    """[n, count] int32: 32-bit words from byte `start`. A right shift brings in copies of the sign
    bit, which must be masked off.
    """
    return _view(blocks, start, 4 * count, torch.int32)


def _view(blocks: Tensor, start: int, length: int, dtype: torch.dtype) -> Tensor:
    # A copy, because a view of wider elements must begin at a multiple of their size.
    part = blocks[:, start : start + length].clone(memory_format=torch.contiguous_format)
    return part.view(dtype)


def fields(values: Tensor, shifts: Iterable[int], mask: int, dim: int) -> Tensor:
    """`values >> shift & mask` for each shift, stacked along the new dimension `dim`."""
    # Torch vectorizes over one long contiguous piece, but not over short pieces far apart.
    values = values.contiguous()
    shifted = [values.bitwise_right_shift(shift) if shift else values for shift in shifts]
    return torch.stack(shifted, dim).bitwise_and_(mask)


def signs_of(bits: Tensor) -> Tensor:
    """[..., 8] float32: -1 where a bit of the bytes [...] is set, else 1; lowest bit first."""
    set_bits = fields(bits, range(8), 1, -1)
    return set_bits.to(torch.float32).mul_(-2).add_(1)
