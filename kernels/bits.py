"""Codes of a few bits in and out of bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def _together(bits: int) -> tuple[int, int]:
    """How many codes fill whole bytes, and how many bytes: 8 codes of 3 bits are 3 bytes."""
    return (8 // bits, 1) if 8 % bits == 0 else (24 // bits, 3)


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """Codes packed without gaps, the first one in the lowest bits of the first byte.

    Args:
        packed: [..., bytes] uint8, contiguous or not.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        [..., at least bytes · 8 / bits] uint8; more of 3 and 6 bits, for whole triples of bytes.
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
    """The reverse of `unpack_bits`.

    Args:
        codes: [..., codes] uint8, contiguous or not, below 1 << bits.
        bits: 2, 3, 4, 6 or 8.

    Returns:
        [..., bytes] uint8, with zeros at the end where codes do not fill whole bytes (triples of
        bytes, of 3 and 6 bits).
    """
    if bits == 8:
        return codes
    count, size = _together(bits)
    if missing := -codes.shape[-1] % count:
        codes = functional.pad(codes, (0, missing))
    places = torch.unflatten(codes, -1, (-1, count))
    bytes_of: list[Tensor] = []
    for start in range(0, 8 * size, 8):
        # Codes that begin in this byte, or end in it: what is beyond it is shifted out.
        first, *others = (at for at in range(count) if -bits < bits * at - start < 8)
        made = _shifted(places[..., first], bits * first - start)
        for at in others:
            made |= _shifted(places[..., at], bits * at - start)
        bytes_of.append(made)
    return bytes_of[0] if size == 1 else torch.stack(bytes_of, -1).flatten(-2)


def _shifted(codes: Tensor, by: int) -> Tensor:
    return codes << by if by >= 0 else codes >> -by


def as_bytes(words: Tensor) -> Tensor:
    """[..., n] of whole numbers -> [..., bytes] uint8, in the order in which they are stored."""
    return words.contiguous().view(torch.uint8)
