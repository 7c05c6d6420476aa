"""Packed matrices in the order in which Triton's kernels read them, made once when a model is
loaded.

A GGUF block keeps codes and scales together: 18, 34, 210 or 17 bytes, of which no load wider than
one or two bytes is aligned. Here each is a plane of its own, with as many bytes as in the file but
for the six-bit scales of Q4_K and Q5_K, which take a byte each (2.8 % and 2.3 % more):

- codes: [outputs, inputs / 8] int32, the code of input 8j + i in bits 4i to 4i + 3 of word j; or a
  byte each. A tile of 128 inputs reads 64 or 128 bytes of a row in one piece. Codes of five and six
  bits have the others in a second plane, of one or two bits for each input.
- scales: [groups, outputs], so that a tile reads those of its rows in one piece.

Codes of INT4, INT8, FP8 and NF4 are in this order already and stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from hearth.kernels.blocks import block_of
from hearth.kernels.cuda.packings import PACKINGS
from hearth.kernels.dequantize_codes import CODE_BITS, NF4, group_of, inputs_of

Value = Literal["int", "fp8", "e2m1", "nf4"]
"""What a code stands for."""
Scale = Literal["row", "group", "k", "k6", "e8m0"]
"""row: one for all inputs. group: one for each group. k: eight bits for scale and minimum of each
group, and two factors of 256 inputs; k6: the same without minima. e8m0: an exponent."""
_LEAST_GROUP: Final = 16


@dataclass(frozen=True, slots=True)
class Planes:
    """A matrix [outputs, inputs], or several of one shape: then planes have one more axis in
    front."""

    packing: str
    outputs: int
    inputs: int
    value: Value
    scale: Scale
    bits: int
    """Of a code."""
    zero: int
    """The code that stands for zero where there are no `zeros`."""
    group: int
    """Inputs that share a scale, a power of two; 0: all."""
    codes: Tensor
    """[outputs, inputs / 8] int32 or [outputs, inputs] uint8."""
    scales: Tensor
    """[groups, outputs], of any dtype."""
    high: Tensor | None = None
    """[outputs, inputs / 32] or [outputs, inputs / 16] int32: the fifth bits, or the fifth and
    sixth."""
    zeros: Tensor | None = None
    """[groups, outputs] uint8: what is subtracted from codes; of "k" the minima."""
    supers: Tensor | None = None
    """[inputs / 256, 1 or 2, outputs] float16: factors of scales, and of minima."""
    book: Tensor | None = None
    """[16] float32: what codes of NF4 stand for."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What it holds of memory."""
        every = (self.codes, self.scales, self.high, self.zeros, self.supers, self.book)
        return tuple(one for one in every if one is not None)

    @property
    def groups(self) -> int:
        return self.scales.shape[-2]

    @property
    def shape_class(self) -> tuple[object, ...]:
        """Equal where planes can be parts of one matrix, or matrices of one stack."""
        zeros = self.zeros is not None
        return (self.packing, self.inputs, self.group, self.scales.dtype, zeros)


def can_read(packing: str, inputs: int, groups: int) -> bool:
    """Whether there are planes for rows of `inputs` numbers.

    Args:
        groups: scales of a row, of codes.
    """
    if packing not in PACKINGS:
        return False
    if packing not in CODE_BITS:
        return inputs % block_of(packing)[0] == 0
    if CODE_BITS[packing] == 4 and inputs % 8:
        return False
    group = group_of(packing, inputs, groups)
    return groups == 1 or (group >= _LEAST_GROUP and group.bit_count() == 1)


def planes_of(
    packing: str, weight: Tensor, scales: Tensor | None = None, zeros: Tensor | None = None
) -> Planes:
    """The planes of rows as a file has them.

    Args:
        packing: one of `packings.PACKINGS`, for which `can_read` says yes.
        weight: [outputs, bytes of a row] uint8, on any device.
        scales, zeros: of codes, as of `packed.PackedWeight`.

    Raises:
        ValueError: there are no such planes, or codes have no scales.
    """
    outputs = len(weight)
    if packing in CODE_BITS:
        if scales is None:
            raise ValueError(f"codes of {packing} have no scales")
        return _of_codes(packing, weight, scales, zeros)
    if packing not in PACKINGS:
        raise ValueError(f"{packing} has no planes; the types are {', '.join(sorted(PACKINGS))}")
    elements, size = block_of(packing)
    blocks = weight.view(outputs, -1, size)
    inputs = blocks.shape[1] * elements

    def made(
        bits: int, group: int, codes: Tensor, scales: Tensor, scale: Scale = "group"
    ) -> Planes:
        value: Value = "e2m1" if scale == "e8m0" else "int"
        zero = 0 if scale in ("k", "e8m0") else 1 << bits - 1
        packed = _words(codes.reshape(outputs, inputs) & 15, 4) if bits < 8 else codes
        columns = scales.reshape(outputs, -1).t().contiguous()
        return Planes(packing, outputs, inputs, value, scale, bits, zero, group, packed, columns)

    match packing:
        case "Q4_0":
            return made(4, 32, _split_nibbles(blocks[..., 2:], 16), _halves(blocks, 0))
        case "MXFP4":
            return made(4, 32, _split_nibbles(blocks[..., 1:], 16), blocks[..., 0], "e8m0")
        case "Q8_0":
            # Counted from zero, so that they are what INT8 is.
            codes = (blocks[..., 2:] ^ 0x80).reshape(outputs, inputs)
            return made(8, 32, codes, _halves(blocks, 0))
        case "Q6_K":
            low = _split_nibbles(blocks[..., :128], 64)
            high = _fields(torch.unflatten(blocks[..., 128:192], -1, (2, 32)), 4, 2)
            one = made(6, 16, low, blocks[..., 192:208].view(torch.int8), "k6")
            supers = _halves(blocks, 208)
    if packing in ("Q4_K", "Q5_K"):
        sizes, minima = _six_bits(blocks[..., 4:16])
        first = 16 if packing == "Q4_K" else 48
        low = _split_nibbles(blocks[..., first:], 32)
        one = made(4 if packing == "Q4_K" else 5, 32, low, sizes, "k")
        one = replace(one, zeros=minima.reshape(outputs, -1).t().contiguous())
        high = _fields(blocks[..., 16:48], 8, 1)
        supers = _halves(blocks, 0, 2)
    factors = supers.permute(1, 2, 0).contiguous()
    if packing == "Q4_K":
        return replace(one, supers=factors)
    return replace(one, supers=factors, high=_words(high.reshape(outputs, inputs), one.bits - 4))


def joined(planes: list[Planes]) -> Planes:
    """One below the other, all of one `shape_class`."""
    if len(planes) == 1:
        return planes[0]
    first = planes[0]

    def cat(axis: int, tensors: list[Tensor | None]) -> Tensor | None:
        whole = [one for one in tensors if one is not None]
        return torch.cat(whole, axis) if whole else None

    codes, scales = (
        torch.cat([one.codes for one in planes]),
        torch.cat([one.scales for one in planes], 1),
    )
    return replace(
        first,
        outputs=sum(one.outputs for one in planes),
        codes=codes,
        scales=scales,
        high=cat(0, [one.high for one in planes]),
        zeros=cat(1, [one.zeros for one in planes]),
        supers=cat(2, [one.supers for one in planes]),
    )


def stacked(planes: list[Planes]) -> Planes:
    """Matrices of one shape and `shape_class`, with an axis for their number in front."""

    def stack(tensors: list[Tensor | None]) -> Tensor | None:
        whole = [one for one in tensors if one is not None]
        return torch.stack(whole) if whole else None

    return replace(
        planes[0],
        codes=torch.stack([one.codes for one in planes]),
        scales=torch.stack([one.scales for one in planes]),
        high=stack([one.high for one in planes]),
        zeros=stack([one.zeros for one in planes]),
        supers=stack([one.supers for one in planes]),
    )


def one_of(planes: Planes, number: int) -> Planes:
    """The matrix `number` of `stacked` ones, over the same memory."""
    some = (planes.high, planes.zeros, planes.supers)
    high, zeros, supers = (None if one is None else one[number] for one in some)
    return replace(
        planes,
        codes=planes.codes[number],
        scales=planes.scales[number],
        high=high,
        zeros=zeros,
        supers=supers,
    )


def _of_codes(packing: str, codes: Tensor, scales: Tensor, zeros: Tensor | None) -> Planes:
    outputs, inputs = len(codes), inputs_of(packing, codes.shape[-1])
    groups = scales.shape[-1]
    values: dict[str, tuple[Value, int, int]] = {
        "INT4": ("int", 4, 8),
        "INT8": ("int", 8, 128),
        "FP8": ("fp8", 8, 0),
        "NF4": ("nf4", 4, 0),
    }
    value, bits, zero = values[packing]
    book = None
    if value == "nf4":
        book = torch.tensor(NF4, dtype=torch.float32, device=codes.device)
    return Planes(
        packing,
        outputs,
        inputs,
        value,
        "row" if groups == 1 else "group",
        bits,
        zero,
        0 if groups == 1 else group_of(packing, inputs, groups),
        _int32(codes.contiguous()) if bits == 4 else codes.contiguous(),
        scales.t().contiguous(),
        zeros=None if zeros is None else zeros.t().contiguous(),
        book=book,
    )


def _int32(codes: Tensor) -> Tensor:
    """[..., bytes] uint8 as words. A view of a file may begin anywhere, words may not."""
    return (codes if codes.data_ptr() % 4 == 0 else codes.clone()).view(torch.int32)


def _halves(blocks: Tensor, start: int, count: int = 1) -> Tensor:
    """[outputs, blocks, count] float16, from byte `start` of each block on."""
    return blocks[..., start : start + 2 * count].contiguous().view(torch.float16)


def _split_nibbles(packed: Tensor, run: int) -> Tensor:
    """[..., codes] uint8 of bytes, of which each `run` have the codes of `run` inputs in their low
    halves and those of the next `run` in the high ones."""
    runs = torch.unflatten(packed, -1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), -2).flatten(-3)


def _fields(packed: Tensor, count: int, bits: int) -> Tensor:
    """[..., count · bytes] uint8: first the lowest `bits` of all bytes, then the next."""
    mask = (1 << bits) - 1
    return torch.stack([packed >> bits * at & mask for at in range(count)], -2).flatten(-2)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima [..., 8] uint8 of Q4_K and Q5_K, of six bits in twelve bytes."""
    first, second, mixed = torch.unflatten(packed, -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, (mixed & 15) | (first >> 2 & 48)), -1)
    minima = torch.cat((second & 63, (mixed >> 4) | (second >> 2 & 48)), -1)
    return scales, minima


def _words(codes: Tensor, bits: int) -> Tensor:
    """[outputs, inputs · bits / 32] int32: `bits` of each input, the first lowest."""
    of_byte = torch.unflatten(codes, -1, (-1, 8 // bits))
    packed = torch.zeros_like(of_byte[..., 0])
    for at in range(8 // bits):
        packed |= of_byte[..., at] << bits * at
    return packed.contiguous().view(torch.int32)
