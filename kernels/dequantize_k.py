"""The K types: blocks of 256 weights, in sub-blocks of 16 or 32 with small scales of their own.

The functions have the signature described in `dequantize`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hearth.kernels.blocks import fields, halves


def _q2_k(blocks: Tensor, out: Tensor) -> None:
    scales = blocks[:, :16]
    scale = scales.bitwise_and(15) * halves(blocks, 80)
    minimum = scales.bitwise_right_shift(4) * halves(blocks, 82)
    packed = torch.unflatten(blocks[:, 16:80], 1, (2, 32))
    out.view(-1, 2, 4, 32).copy_(fields(packed, (0, 2, 4, 6), 3, -2))
    out.view(-1, 16, 16).mul_(scale[..., None]).sub_(minimum[..., None])


def _q3_k(blocks: Tensor, out: Tensor) -> None:
    low = fields(blocks[:, 96:104], (0, 4), 15, 1).flatten(1)
    high = fields(blocks[:, 104:108], (0, 2, 4, 6), 3, 1).flatten(1)
    scale = (low | high.bitwise_left_shift_(4)).to(torch.float32).sub_(32).mul_(halves(blocks, 108))
    packed = torch.unflatten(blocks[:, 32:96], 1, (2, 32))
    codes = fields(packed, (0, 2, 4, 6), 3, -2).flatten(1, 2)
    # The third bits are stored as one plane per sub-block of 32; 4 is subtracted from all codes.
    planes = fields(blocks[:, :32], range(8), 1, 1).bitwise_left_shift_(2)
    out.view(-1, 8, 32).copy_(codes.bitwise_or_(planes))
    out.view(-1, 16, 16).sub_(4).mul_(scale[..., None])


def _scales_and_minima(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """([n, 8, 1], [n, 8, 1]) float32: scales and minima of the sub-blocks of 32 in Q4_K and Q5_K.
    Stored as two half-precision factors, then twice eight numbers of six bits.
    """
    # Fields first, so that each is one long contiguous piece.
    first, second, mixed = blocks[:, 4:16].t().contiguous().view(3, 4, -1)
    high = mixed.bitwise_right_shift(4)
    scales = torch.cat(
        (first & 63, mixed.bitwise_and(15) | first.bitwise_right_shift(2).bitwise_and_(48))
    )
    minima = torch.cat((second & 63, high | second.bitwise_right_shift(2).bitwise_and_(48)))
    factors = halves(blocks, 0, 2)
    scale = (scales.t() * factors[:, :1]).contiguous()
    minimum = (minima.t() * factors[:, 1:]).contiguous()
    return scale[..., None], minimum[..., None]


def _q4_k(blocks: Tensor, out: Tensor) -> None:
    packed = torch.unflatten(blocks[:, 16:], 1, (4, 32))
    pairs = out.view(-1, 4, 2, 32)
    pairs[:, :, 0].copy_(packed.bitwise_and(15))
    pairs[:, :, 1].copy_(packed.bitwise_right_shift(4))
    scale, minimum = _scales_and_minima(blocks)
    out.view(-1, 8, 32).mul_(scale).sub_(minimum)


def _q5_k(blocks: Tensor, out: Tensor) -> None:
    packed = torch.unflatten(blocks[:, 48:], 1, (4, 32))
    codes = fields(packed, (0, 4), 15, -2).flatten(1, 2)
    # Bit j of byte i is the fifth bit of element i of sub-block j.
    fifths = fields(blocks[:, 16:48], range(8), 1, 1).bitwise_left_shift_(4)
    groups = out.view(-1, 8, 32)
    groups.copy_(codes.bitwise_or_(fifths))
    scale, minimum = _scales_and_minima(blocks)
    groups.mul_(scale).sub_(minimum)


def _q6_k(blocks: Tensor, out: Tensor) -> None:
    low = fields(torch.unflatten(blocks[:, :128], 1, (2, 64)), (0, 4), 15, -2)
    high = fields(torch.unflatten(blocks[:, 128:192], 1, (2, 32)), (0, 2, 4, 6), 3, -2)
    codes = high.bitwise_left_shift_(4).view(low.shape).bitwise_or_(low)
    out.copy_(codes.flatten(1)).sub_(32)
    scale = blocks[:, 192:208].view(torch.int8) * halves(blocks, 208)
    out.view(-1, 16, 16).mul_(scale[..., None])


UNPACKERS = {"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
