"""The IQ1, IQ2 and IQ3 types: codes select rows of a fixed grid, with separately stored signs.

The grids are gguf-py's. The functions have the signature described in `dequantize`.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hearth.kernels.blocks import fields, halves, signs_of, words16, words32

_DELTA = 0.125
_EVEN_SIGNS = (0, 7, 14, 21)


@functools.cache
def _grid(packing: str, device: torch.device) -> Tensor:
    """[codes, 4 or 8] float32: the numbers that each code selects."""
    import gguf.quants

    kind = getattr(gguf.quants, packing)
    kind.init_grid()
    return torch.from_numpy(kind.grid.reshape(kind.grid_shape).copy()).to(device)


@functools.cache
def _even_signs(device: torch.device) -> Tensor:
    """[128, 8] float32: seven stored signs, and an eighth that makes the number of -1 even."""
    import gguf.quants

    stored = torch.frombuffer(bytearray(gguf.quants.IQ2_XXS.ksigns), dtype=torch.uint8)
    return signs_of(stored).to(device)


def _fill(packing: str, codes: Tensor, signs: Tensor, out: Tensor) -> None:
    """Fill `out` [n, 256] with the grid's rows for `codes` [n, ...] int32 times `signs` [.., 8]."""
    rows = _grid(packing, codes.device).index_select(0, codes.flatten())
    torch.mul(rows.view(-1, 8), signs.view(-1, 8), out=out.view(-1, 8))


def _signs_in_words(words: Tensor) -> Tensor:
    """[n * 4, 8] signs from [n] words that contain four groups of seven signs each."""
    return _even_signs(words.device).index_select(0, fields(words, _EVEN_SIGNS, 127, -1).flatten())


def _iq2_xxs(blocks: Tensor, out: Tensor) -> None:
    pairs = words32(blocks, 2, 16).view(-1, 8, 2)
    codes = pairs[..., :1].contiguous().view(torch.uint8).to(torch.int32)
    words = pairs[..., 1].contiguous()
    _fill("IQ2_XXS", codes, _signs_in_words(words), out)
    out.view(-1, 8, 32).mul_(_word_scales(blocks, words).mul_(0.25)[..., None])


def _iq3_xxs(blocks: Tensor, out: Tensor) -> None:
    words = words32(blocks, 66, 8)
    _fill("IQ3_XXS", blocks[:, 2:66].to(torch.int32), _signs_in_words(words), out)
    out.view(-1, 8, 32).mul_(_word_scales(blocks, words).mul_(0.5)[..., None])


def _word_scales(blocks: Tensor, words: Tensor) -> Tensor:
    """[n, 8]: the block's scale times (the four highest bits of each word plus a half)."""
    steps = words.bitwise_right_shift(28).bitwise_and_(15).to(torch.float32).add_(0.5)
    return steps.mul_(halves(blocks, 0))


def _iq2_xs(blocks: Tensor, out: Tensor) -> None:
    words = words16(blocks, 2, 32)
    signs = _even_signs(blocks.device).index_select(0, words.bitwise_right_shift(9).flatten())
    _fill("IQ2_XS", words.bitwise_and(511), signs, out)
    out.view(-1, 16, 16).mul_(_nibble_scales(blocks, 66, 8).mul_(0.25)[..., None])


def _iq2_s(blocks: Tensor, out: Tensor) -> None:
    high = fields(blocks[:, 66:74], (0, 2, 4, 6), 3, -1).flatten(1).to(torch.int32)
    codes = high.bitwise_left_shift_(8).bitwise_or_(blocks[:, 2:34])
    _fill("IQ2_S", codes, signs_of(blocks[:, 34:66]), out)
    out.view(-1, 16, 16).mul_(_nibble_scales(blocks, 74, 8).mul_(0.25)[..., None])


def _nibble_scales(blocks: Tensor, start: int, count: int) -> Tensor:
    """[n, 2 * count]: the block's scale times (each nibble of `count` bytes plus a half)."""
    steps = fields(blocks[:, start : start + count], (0, 4), 15, -1).flatten(1)
    return steps.to(torch.float32).add_(0.5).mul_(halves(blocks, 0))


def _iq3_s(blocks: Tensor, out: Tensor) -> None:
    high = fields(blocks[:, 66:74], range(8), 1, -1).flatten(1).to(torch.int32)
    codes = high.bitwise_left_shift_(8).bitwise_or_(blocks[:, 2:66])
    _fill("IQ3_S", codes, signs_of(blocks[:, 74:106]), out)
    steps = fields(blocks[:, 106:110], (0, 4), 15, -1).flatten(1)
    scale = steps.to(torch.float32).mul_(2).add_(1).mul_(halves(blocks, 0))
    out.view(-1, 8, 32).mul_(scale[..., None])


def _iq1_s(blocks: Tensor, out: Tensor) -> None:
    words = words16(blocks, 34, 8)
    high = fields(words, (0, 3, 6, 9), 7, -1).flatten(1)
    codes = high.bitwise_left_shift_(8).bitwise_or_(blocks[:, 2:34])
    rows = _grid("IQ1_S", blocks.device).index_select(0, codes.flatten())
    negative = words.bitwise_right_shift(15).to(torch.float32)
    delta = negative.mul_(-2 * _DELTA).add_(_DELTA)
    torch.add(rows.view(-1, 8, 32), delta[..., None], out=out.view(-1, 8, 32))
    steps = words.bitwise_right_shift(12).bitwise_and_(7).to(torch.float32).mul_(2).add_(1)
    out.view(-1, 8, 32).mul_(steps.mul_(halves(blocks, 0))[..., None])


def _iq1_m(blocks: Tensor, out: Tensor) -> None:
    halved = fields(blocks[:, 32:48], (0, 4), 15, -1).flatten(1).to(torch.int32)
    codes = halved.bitwise_and(7).bitwise_left_shift_(8).bitwise_or_(blocks[:, :32])
    rows = _grid("IQ1_M", blocks.device).index_select(0, codes.flatten())
    negative = halved.bitwise_right_shift_(3).to(torch.float32)
    delta = negative.mul_(-2 * _DELTA).add_(_DELTA)
    torch.add(rows.view(-1, 32, 8), delta[..., None], out=out.view(-1, 32, 8))
    words = words16(blocks, 48, 4)
    steps = fields(words, (0, 3, 6, 9), 7, -1).flatten(1).to(torch.float32).mul_(2).add_(1)
    out.view(-1, 16, 16).mul_(steps.mul_(_scattered_half(words))[..., None])


def _scattered_half(words: Tensor) -> Tensor:
    """[n, 1] float32: the half-precision number in the four highest bits of four words."""
    top = words.bitwise_and(0xF000)
    bits = top[:, :1].bitwise_right_shift(12)
    for index, shift in ((1, 8), (2, 4), (3, 0)):
        bits = bits | top[:, index : index + 1].bitwise_right_shift(shift)
    return bits.to(torch.int16).view(torch.float16).to(torch.float32)


UNPACKERS = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
