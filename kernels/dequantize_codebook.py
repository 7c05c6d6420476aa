"""Types whose four-bit codes select one of sixteen numbers: floats with two exponent bits and one
mantissa bit (MXFP4, NVFP4), and the sixteen fitted numbers of IQ4.

The functions have the signature described in `dequantize`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hearth.kernels.blocks import fields, halves, words16

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


@functools.cache
def _iq4_numbers(device: torch.device) -> Tensor:
    return torch.tensor(_IQ4, dtype=torch.int8, device=device)


def _fill_iq4(packed: Tensor, out: Tensor) -> None:
    """`packed`: [n, groups * 16] bytes; `out`: [n, groups * 32], in each group the low nibbles of
    the bytes, then the high ones.
    """
    codes = fields(torch.unflatten(packed, 1, (-1, 16)), (0, 4), 15, -2)
    chosen = _iq4_numbers(packed.device).index_select(0, codes.flatten().to(torch.int32))
    out.copy_(chosen.view(out.shape))


def _iq4_nl(blocks: Tensor, out: Tensor) -> None:
    _fill_iq4(blocks[:, 2:], out)
    out.mul_(halves(blocks, 0))


def _iq4_xs(blocks: Tensor, out: Tensor) -> None:
    _fill_iq4(blocks[:, 8:], out)
    low = fields(blocks[:, 4:8], (0, 4), 15, -1).flatten(1)
    high = fields(words16(blocks, 2, 1), range(0, 16, 2), 3, -1).flatten(1)
    scale = (low | high.bitwise_left_shift_(4)).to(torch.float32).sub_(32).mul_(halves(blocks, 0))
    out.view(-1, 8, 32).mul_(scale[..., None])


def _twice_e2m1(codes: Tensor) -> Tensor:
    """int8: twice the values of the codes 0 to 15: 0 1 2 3 4 6 8 12 and their negatives.

    The magnitudes are the maximum of three linear functions of the code.
    """
    size = codes.bitwise_and(7).view(torch.int8)
    middle = size * 2 - 4
    result = torch.maximum(size, middle)
    torch.maximum(result, middle.mul_(2).sub_(8), out=result)
    sign = codes.bitwise_right_shift(2).bitwise_and_(2).view(torch.int8).neg_().add_(1)
    return result.mul_(sign)


def _mxfp4(blocks: Tensor, out: Tensor) -> None:
    exponent = blocks[:, :1].to(torch.int32)
    # Half of 2 ** (exponent - 127), as the bits of a float; the two lowest are subnormal.
    small = torch.where(exponent == 0, 0x00200000, 0x00400000)
    scale = torch.where(exponent < 2, small, (exponent - 1).clamp_(min=0).bitwise_left_shift_(23))
    codes = fields(blocks[:, 1:], (0, 4), 15, 1).flatten(1)
    out.copy_(_twice_e2m1(codes)).mul_(scale.to(torch.int32).view(torch.float32))


def _nvfp4(blocks: Tensor, out: Tensor) -> None:
    scales = blocks[:, :4]
    exponent = scales.bitwise_right_shift(3).bitwise_and_(15).to(torch.int32)
    mantissa = scales.bitwise_and(7).to(torch.int32)
    # Half of an unsigned float with four exponent bits (bias 7) and three mantissa bits.
    normal = ((exponent + 119).bitwise_left_shift_(23) | mantissa.bitwise_left_shift(20)).view(
        torch.float32
    )
    scale = torch.where(exponent == 0, mantissa * 2.0**-10, normal)
    scale = torch.where(scales == 0x7F, 0.0, scale)
    codes = fields(torch.unflatten(blocks[:, 4:], 1, (4, 8)), (0, 4), 15, -2)
    out.view(-1, 4, 2, 8).copy_(_twice_e2m1(codes))
    out.view(-1, 4, 16).mul_(scale[..., None])


UNPACKERS = {"IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4, "NVFP4": _nvfp4}
