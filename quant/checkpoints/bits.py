"""Codes of a few bits in and out of bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Codes packed without gaps, the first one in the lowest bits of the first byte.

    Args:
        packed: [rows, bytes] uint8, contiguous or not.
        bits: 2, 3, 4 or 8.

    Returns:
        [rows, at least bytes · 8 / bits] uint8; more of 3 bits, for whole triples of bytes.
    """
    if bits == 8:
        return packed
    if bits == 3:
        packed = functional.pad(packed, (0, -packed.shape[-1] % 3))
        triples = torch.unflatten(packed, -1, (-1, 3)).to(torch.int32)
        words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    else:
        words = packed
    mask = (1 << bits) - 1
    shifts = range(0, 24 if bits == 3 else 8, bits)
    codes = torch.stack([words.bitwise_right_shift(shift) for shift in shifts], -1)
    return codes.bitwise_and_(mask).to(torch.uint8).flatten(-2)


def as_bytes(words: Tensor) -> Tensor:
    """[..., n] of whole numbers -> [..., bytes] uint8, in the order in which they are stored."""
    return words.contiguous().view(torch.uint8)
