"""Packed matrices in the order in which the kernels read them, created once when a model is loaded.

A GGUF block stores codes and scales together: in 18, 34, 210 or 17 bytes, so that only loads of one
or two bytes are aligned. Here codes and scales are separate planes, with as many bytes as in the
file, except that the six-bit scales of Q4_K and Q5_K take a byte each (2.8 % and 2.3 % more):

- codes: in blocks of 128 inputs, the last one padded, each a run of words. The halves of a word
  contain the codes of adjacent inputs, so that one operation unpacks two: with B bits per code,
  field f, counted from the lowest, of half i of word w is input 32f + 2w + i (B = 4),
  64f + 2w + i (B = 8), or 32(f mod 4) + 2(4B (f div 4) + w) + i (B = 1, 2). Codes of five and six
  bits have their upper bits in a second plane, of one or two bits. A block is contiguous for eight
  rows together; codes of eight bits are contiguous by row, because PyTorch multiplies them as they
  are. Integers of eight bits are signed.
- scales: [groups, outputs], so that a tile reads the scales of its rows in one piece; for groups
  shorter than a block [blocks · words, outputs], where the words contain the scales of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.bits import unpack_bits
from hearth.kernels.blocks import block_of
from hearth.kernels.cuda.packings import PACKINGS
from hearth.kernels.dequantize_codes import CODE_BITS, NF4, group_of, inputs_of

Value = Literal["int", "fp8", "e2m1", "nf4"]
"""The kind of number that a code represents."""
Scale = Literal["row", "group", "k", "k6", "e8m0"]
"""row: one scale for all inputs. group: one per group. k: a byte each for scale and minimum of a
group, and two factors per 256 inputs; k6: the same without minima. e8m0: an exponent per group."""
BLOCK: Final = 128
"""Inputs of a block of codes."""
TOGETHER: Final = 8
"""Rows whose words of a block are stored together, for codes of less than eight bits."""
NUMBERS: Final = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.uint8: "uint8",
}
_LEAST_GROUP: Final = 16
_SLICE: Final = 1 << 24
"""Codes that are packed into words at a time."""


@dataclass(frozen=True, slots=True)
class Planes:
    """A matrix [outputs, inputs], or several of one shape, whose planes have an additional first
    axis."""

    packing: str
    outputs: int
    inputs: int
    value: Value
    scale: Scale
    bits: int
    """Bits of a code."""
    zero: int
    """The zero point if there are no `zeros`; for "k" the middle code."""
    group: int
    """Inputs that share a scale, a power of two; 0: all."""
    codes: Tensor
    """[outputs, 32 · blocks] int32 for eight bits; for others [outputs padded to a multiple of 8,
    16 · blocks]."""
    scales: Tensor
    """[groups, outputs] of any dtype, or [blocks · words, outputs] int32."""
    number: str
    """The dtype of scales, by its name in Triton."""
    high: Tensor | None = None
    """Like `codes`, with 4 or 8 words per block: the fifth bits, or the fifth and sixth."""
    zeros: Tensor | None = None
    """Zero points, or the minima for "k": uint8, in the layout of the scales."""
    supers: Tensor | None = None
    """[inputs / 256, 1 or 2, outputs] float16: factors of scales, and of minima."""
    book: Tensor | None = None
    """[16] float32: the values of NF4 codes."""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that it keeps in memory."""
        every = (self.codes, self.scales, self.high, self.zeros, self.supers, self.book)
        return tuple(one for one in every if one is not None)

    @property
    def groups(self) -> int:
        """Rows of the planes of scales and zeros: groups, or words of groups."""
        return self.scales.shape[-2]

    @property
    def shape_class(self) -> tuple[object, ...]:
        """Equal for planes that can be joined to one matrix or stacked."""
        zeros = self.zeros is not None
        return (self.packing, self.inputs, self.group, self.number, zeros)


def can_read(packing: str, inputs: int, groups: int) -> bool:
    """Whether there are planes for rows of `inputs` numbers.

    Args:
        groups: scales of a row, for codes.
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
    """The planes of rows as stored in a file.

    Args:
        packing: one of `packings.PACKINGS`, for which `can_read` is true.
        weight: [outputs, bytes of a row] uint8, on any device.
        scales, zeros: for codes, as in `packed_weight.PackedWeight`.

    Raises:
        ValueError: the packing is not supported, or codes have no scales.
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
        zero = 0 if scale == "e8m0" else 1 << bits - 1
        some = codes.reshape(outputs, inputs)
        packed = _words(some, 8) if bits == 8 else _words(some & 15, 4)
        of_groups, number = _of_groups(scales.reshape(outputs, -1), group), NUMBERS[scales.dtype]
        return Planes(
            packing, outputs, inputs, value, scale, bits, zero, group, packed, of_groups, number
        )

    match packing:
        case "Q4_0":
            return made(4, 32, _split_nibbles(blocks[..., 2:], 16), _halves(blocks, 0))
        case "MXFP4":
            return made(4, 32, _split_nibbles(blocks[..., 1:], 16), blocks[..., 0], "e8m0")
        case "Q8_0":
            return made(8, 32, blocks[..., 2:].reshape(outputs, inputs), _halves(blocks, 0))
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
        one = replace(one, zeros=_of_groups(minima.reshape(outputs, -1), 32))
        high = _fields(blocks[..., 16:48], 8, 1)
        supers = _halves(blocks, 0, 2)
    factors = supers.permute(1, 2, 0).contiguous()
    if packing == "Q4_K":
        return replace(one, supers=factors)
    return replace(one, supers=factors, high=_words(high.reshape(outputs, inputs), one.bits - 4))


def joined(planes: list[Planes]) -> Iterator[Planes]:
    """The same rows, with adjacent planes of the same `shape_class` joined where possible."""
    some = [planes[0]]
    for one in planes[1:]:
        is_whole = some[-1].bits == 8 or some[-1].outputs % TOGETHER == 0
        if one.shape_class != some[-1].shape_class or not is_whole:
            yield _together(some)
            some = []
        some.append(one)
    yield _together(some)


def _together(planes: list[Planes]) -> Planes:
    """Planes of the same `shape_class`, joined along their outputs."""
    if len(planes) == 1:
        return planes[0]
    return replace(_made(planes, torch.cat), outputs=sum(one.outputs for one in planes))


def stacked(planes: list[Planes]) -> Planes:
    """Matrices of one shape and `shape_class`, stacked along a new first axis."""
    return _made(planes, lambda tensors, _: torch.stack(tensors))


def one_of(planes: Planes, number: int) -> Planes:
    """The matrix `number` of stacked matrices, sharing their memory."""
    return _made([planes], lambda tensors, _: tensors[0][number])


def _made(planes: list[Planes], join: Callable[[list[Tensor], int], Tensor]) -> Planes:
    """`planes` with `join` applied to each kind of plane and its axis of outputs."""
    axes = {"codes": 0, "high": 0, "scales": 1, "zeros": 1, "supers": 2}
    tensors = {name: [getattr(one, name) for one in planes] for name in axes}
    changed: dict[str, Any] = {
        name: join(some, axes[name]) for name, some in tensors.items() if some[0] is not None
    }
    return replace(planes[0], **changed)


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
    group = 0 if groups == 1 else group_of(packing, inputs, groups)
    if packing == "FP8" and not group:
        scales = scales.float()  # As PyTorch's scaled products require.
    unpacked = unpack_bits(codes, bits)[:, :inputs]
    if packing == "INT8":
        unpacked = unpacked ^ 0x80
    return Planes(
        packing,
        outputs,
        inputs,
        value,
        "group" if group else "row",
        bits,
        zero,
        group,
        _words(unpacked, bits),
        _of_groups(scales, group),
        NUMBERS[scales.dtype],
        zeros=None if zeros is None else _of_groups(zeros, group),
        book=book,
    )


def _of_groups(numbers: Tensor, group: int) -> Tensor:
    """Scales or zeros [outputs, groups] as a plane; see `Planes.scales`."""
    if not group or group >= BLOCK:
        return numbers.t().contiguous()
    outputs, groups = numbers.shape
    blocks = -(-groups * group // BLOCK)
    count = BLOCK // group
    size = -(-count * numbers.itemsize // 4) * 4 // numbers.itemsize
    filled = numbers.new_zeros((outputs, blocks * count))
    filled[:, :groups] = numbers
    words = numbers.new_zeros((outputs, blocks, size))
    words[..., :count] = filled.view(outputs, blocks, count)
    return words.view(outputs, -1).view(torch.int32).t().contiguous()


def _halves(blocks: Tensor, start: int, count: int = 1) -> Tensor:
    """[outputs, blocks, count] float16, from byte `start` of each block."""
    return blocks[..., start : start + 2 * count].contiguous().view(torch.float16)


def _split_nibbles(packed: Tensor, run: int) -> Tensor:
    """[..., codes] uint8 from bytes, where each `run` bytes contain the codes of `run` inputs in
    their low halves and those of the next `run` inputs in the high halves."""
    runs = torch.unflatten(packed, -1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), -2).flatten(-3)


def _fields(packed: Tensor, count: int, bits: int) -> Tensor:
    """[..., count · bytes] uint8: the lowest `bits` of all bytes, then the next, and so on."""
    mask = (1 << bits) - 1
    return torch.stack([packed >> bits * at & mask for at in range(count)], -2).flatten(-2)


def _six_bits(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima [..., 8] uint8 of Q4_K and Q5_K, from six bits each in twelve bytes."""
    first, second, mixed = torch.unflatten(packed, -1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, (mixed & 15) | (first >> 2 & 48)), -1)
    minima = torch.cat((second & 63, (mixed >> 4) | (second >> 2 & 48)), -1)
    return scales, minima


def _words(codes: Tensor, bits: int) -> Tensor:
    """Codes [outputs, inputs] uint8 of `bits` bits as `Planes.codes` or `Planes.high`."""
    outputs, inputs = codes.shape
    blocks, size = -(-inputs // BLOCK), 4 * bits
    rows = 1 if bits == 8 else TOGETHER
    slots, runs = (2, 1) if bits == 8 else (4, 4 // bits)
    groups = -(-outputs // rows)
    words = torch.zeros((groups, blocks, rows, size), dtype=torch.int32, device=codes.device)
    step = max(1, _SLICE // max(inputs, 1) // rows)
    for start in range(0, groups, step):
        some = codes[start * rows : (start + step) * rows]
        part = words[start : start + step]
        missing = len(part) * rows - len(some)
        some = functional.pad(some, (0, blocks * BLOCK - inputs, 0, missing))
        fields = some.view(len(part), rows, blocks, slots, runs, size, 2)
        for slot, run, half in product(range(slots), range(runs), range(2)):
            field = fields[:, :, :, slot, run, :, half].transpose(1, 2).to(torch.int32)
            part |= field << 16 * half + bits * (slot + slots * run)
    return words.view(groups * rows, blocks * size)
