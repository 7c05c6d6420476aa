"""Rows of a matrix as a file stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hearth.kernels.bits import pack_bits, unpack_bits
from hearth.kernels.blocks import block_of
from hearth.kernels.cuda.packings import WIDER
from hearth.kernels.dequantize import dequantize_into
from hearth.kernels.dequantize_codes import CODE_BITS, MIDDLE, codes_into, inputs_of


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """Some rows of a matrix, all stored alike."""

    weight: Tensor
    """[..., rows, bytes of a row] uint8, or [..., rows, inputs] of a float dtype."""
    packing: str = ""
    """The GGUF type, or one of `CODE_BITS`; "" for plain numbers."""
    scales: Tensor | None = None
    """Of codes: [..., rows, groups] float16, bfloat16 or float32, see `codes_into`."""
    zeros: Tensor | None = None
    """Of INT2 to INT8: [..., rows, groups] uint8, the code that stands for zero; None: the middle
    one."""
    order: Tensor | None = None
    """[inputs] int64: input i of the stored rows is number order[i] of what they are multiplied
    by (GPTQ's activation order, where inputs are stored sorted by group)."""

    @property
    def inputs(self) -> int:
        """Elements of a row. Raises `ValueError` for an unknown type."""
        if not self.packing:
            return self.weight.shape[-1]
        if self.packing in CODE_BITS:
            return inputs_of(self.packing, self.weight.shape[-1])
        elements, size = block_of(self.packing)
        return self.weight.shape[-1] // size * elements

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that it consists of."""
        every = (self.weight, self.scales, self.zeros, self.order)
        return tuple(one for one in every if one is not None)

    def rows(self, some: slice | Tensor) -> PackedWeight:
        """Some of its rows: those of a slice, or by number [count] int64."""
        scales = None if self.scales is None else self.scales[some]
        zeros = None if self.zeros is None else self.zeros[some]
        return replace(self, weight=self.weight[some], scales=scales, zeros=zeros)

    def to(self, device: torch.device) -> PackedWeight:
        """The same on `device`."""
        tensors = (self.weight, self.scales, self.zeros, self.order)
        moved = [None if one is None else one.to(device) for one in tensors]
        return PackedWeight(self.weight.to(device), self.packing, *moved[1:])

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """[..., rows, inputs], of `dtype`, the inputs in the order of what it is multiplied by."""
        if not self.packing:
            return self.weight.to(dtype)
        out = self.weight.new_empty((*self.weight.shape[:-1], self.inputs), dtype=dtype)
        self.unpack_into(out)
        return out

    def unpack_into(self, out: Tensor) -> None:
        """As `unpacked`: `out` [..., rows, inputs], contiguous, of any float dtype.

        Raises:
            ValueError: its shape is another, or that of scales or zeros is.
        """
        if not self.packing:
            out.copy_(self.weight)
        elif self.packing not in CODE_BITS:
            dequantize_into(self.packing, self.weight, out)
        elif self.scales is None:
            raise ValueError(f"codes of {self.packing} have no scales")
        elif self.order is None:
            codes_into(self.packing, self.weight, self.scales, self.zeros, out)
        else:
            stored = torch.empty_like(out)
            codes_into(self.packing, self.weight, self.scales, self.zeros, stored)
            out.index_copy_(-1, self.order, stored)


def widened(part: PackedWeight) -> PackedWeight:
    """`part`, with codes of 2, 3 and 6 bits in the 4 or 8 that kernels of GPUs know."""
    wide = WIDER.get(part.packing)
    if wide is None:
        return part
    codes = unpack_bits(part.weight, CODE_BITS[part.packing])[..., : part.inputs]
    if part.zeros is None:
        codes = codes + (MIDDLE[wide] - MIDDLE[part.packing])
    return replace(part, weight=pack_bits(codes, CODE_BITS[wide]), packing=wide)
