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
    """Rows of a matrix, all of one type."""

    weight: Tensor
    """[..., rows, bytes of a row] uint8, or [..., rows, inputs] of a float dtype."""
    packing: str = ""
    """The GGUF type, or one of `CODE_BITS`; "" for plain numbers."""
    scales: Tensor | None = None
    """Scales of codes: [..., rows, groups] float16, bfloat16 or float32, see `codes_into`."""
    zeros: Tensor | None = None
    """Zero points of INT2 to INT8: [..., rows, groups] uint8; None: the middle code."""
    order: Tensor | None = None
    """[inputs] int64: input i of the stored rows is multiplied by activation order[i] (GPTQ's
    activation order, where inputs are stored sorted by group); None: in the same order."""

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
        """All tensors of this weight."""
        every = (self.weight, self.scales, self.zeros, self.order)
        return tuple(one for one in every if one is not None)

    def rows(self, some: slice | Tensor) -> PackedWeight:
        """Some of the rows, by slice or by numbers [count] int64."""
        scales = None if self.scales is None else self.scales[some]
        zeros = None if self.zeros is None else self.zeros[some]
        return replace(self, weight=self.weight[some], scales=scales, zeros=zeros)

    def to(self, device: torch.device) -> PackedWeight:
        """The same weight on `device`."""
        others = (self.scales, self.zeros, self.order)
        moved = (None if one is None else one.to(device) for one in others)
        return PackedWeight(self.weight.to(device), self.packing, *moved)

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """[..., rows, inputs] of `dtype`, with the inputs in the order of the activations."""
        if not self.packing:
            return self.weight.to(dtype)
        out = self.weight.new_empty((*self.weight.shape[:-1], self.inputs), dtype=dtype)
        self.unpack_into(out)
        return out

    def unpack_into(self, out: Tensor) -> None:
        """As `unpacked`, into `out` [..., rows, inputs], contiguous, of any float dtype.

        Raises:
            ValueError: the shape of `out`, of scales or of zeros does not match.
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
    """`part`, with codes of 2, 3 and 6 bits widened to the 4 or 8 bits that GPU kernels support."""
    wide = WIDER.get(part.packing)
    if wide is None:
        return part
    codes = unpack_bits(part.weight, CODE_BITS[part.packing])[..., : part.inputs]
    if part.zeros is None:
        codes = codes + (MIDDLE[wide] - MIDDLE[part.packing])
    return replace(part, weight=pack_bits(codes, CODE_BITS[wide]), packing=wide)
