"""Codes of a few bits in and out of bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_IN_TRIPLES = (3, 6)
"""Bits of codes that whole triples of bytes hold."""


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Codes packed without gaps, the first one in the lowest bits of the first byte.

    Args:
        packed: [rows, bytes] uint8, contiguous or not.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        [rows, at least bytes · 8 / bits] uint8; more of 3 and 6 bits, for whole triples of bytes.
    """
    if bits == 8:
        return packed
    if bits in _IN_TRIPLES:
        packed = functional.pad(packed, (0, -packed.shape[-1] % 3))
        triples = torch.unflatten(packed, -1, (-1, 3)).to(torch.int32)
        words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    else:
        words = packed
    mask = (1 << bits) - 1
    shifts = range(0, 24 if bits in _IN_TRIPLES else 8, bits)
    codes = torch.stack([words.bitwise_right_shift(shift) for shift in shifts], -1)
    return codes.bitwise_and_(mask).to(torch.uint8).flatten(-2)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """The reverse of `unpack_bits`.

    Args:
        codes: [rows, codes] uint8.
        bits: 4, 6 or 8.

    Returns:
        [rows, bytes] uint8, with zeros at the end where codes are no multiple of 2 (4 bits) or 4.
    """
    if bits == 8:
        return codes
    together = 2 if bits == 4 else 4
    padded = functional.pad(codes, (0, -codes.shape[1] % together))
    if bits == 4:
        return padded[:, 0::2] | padded[:, 1::2] << 4
    one, two, three, four = (padded[:, place::4] for place in range(4))
    triples = torch.stack((one | two << 6, two >> 2 | three << 4, three >> 4 | four << 2), -1)
    return triples.flatten(-2)


def as_bytes(words: Tensor) -> Tensor:
    """[..., n] of whole numbers -> [..., bytes] uint8, in the order in which they are stored."""
    return words.contiguous().view(torch.uint8)
