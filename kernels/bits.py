"""Packs codes of a few bits into bytes and unpacks them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def _together(bits: int) -> tuple[int, int]:
    """The least number of codes that fill whole bytes, and of bytes: 8 codes of 3 bits fill 3."""
    return (8 // bits, 1) if 8 % bits == 0 else (24 // bits, 3)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Unpack codes stored without gaps, the first one in the lowest bits of the first byte.

    Args:
        packed: [..., bytes] uint8, contiguous or not.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        [..., at least bytes · 8 / bits] uint8; codes of 3 and 6 bits are padded to whole triples of
        bytes.
    """
    if bits == 8:
        return packed
    codes, size = _together(bits)
    words = packed
    if size == 3:
        packed = functional.pad(packed, (0, -packed.shape[-1] % 3))
        triples = torch.unflatten(packed, -1, (-1, 3)).to(torch.int32)
        words = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    shifted = torch.stack([words.bitwise_right_shift(bits * place) for place in range(codes)], -1)
    return shifted.bitwise_and_((1 << bits) - 1).to(torch.uint8).flatten(-2)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """The inverse of `unpack_bits`.

    Args:
        codes: [..., codes] uint8, contiguous or not, below 1 << bits.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        [..., bytes] uint8, padded with zeros to whole bytes, or, for 3 and 6 bits, to whole triples
        of bytes.
    """
    if bits == 8:
        return codes
    count, size = _together(bits)
    if missing := -codes.shape[-1] % count:
        codes = functional.pad(codes, (0, missing))
    places = torch.unflatten(codes, -1, (-1, count))
    bytes_of: list[Tensor] = []
    for start in range(0, 8 * size, 8):
        # Codes that begin or end in this byte; their bits outside of it are shifted out.
        first, *others = (at for at in range(count) if -bits < bits * at - start < 8)
        made = _shifted(places[..., first], bits * first - start)
        for at in others:
            made |= _shifted(places[..., at], bits * at - start)
        bytes_of.append(made)
    return bytes_of[0] if size == 1 else torch.stack(bytes_of, -1).flatten(-2)


def _shifted(codes: Tensor, by: int) -> Tensor:
    return codes << by if by >= 0 else codes >> -by


def as_bytes(words: Tensor) -> Tensor:
    """[..., n] integers -> [..., bytes] uint8, in memory order."""
    return words.contiguous().view(torch.uint8)
