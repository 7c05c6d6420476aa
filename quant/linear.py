"""Layers whose weights stay in GGUF's blocks: a linear one, and an embedding.

Both are inference only. Which types are worth it is said in `STAYS_PACKED`; anything else is
unpacked when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hearth.kernels.blocks import block_of
from hearth.kernels.table import DEQUANTIZE, LINEAR, PACKED_LINEAR, pick
from hearth.quant.stored import STAYS_PACKED

__all__ = ["STAYS_PACKED", "QuantEmbedding", "QuantLinear", "Rows"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a matrix, all stored alike."""

    weight: Tensor
    """[..., rows, bytes of a row] uint8, or [..., rows, inputs] of a float dtype."""
    packing: str = ""
    """The GGUF type; "" for plain numbers."""

    @property
    def inputs(self) -> int:
        """Elements of a row. Raises `ValueError` for an unknown type."""
        if not self.packing:
            return self.weight.shape[-1]
        elements, size = block_of(self.packing)
        return self.weight.shape[-1] // size * elements

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """[..., rows, inputs], of `dtype`."""
        if not self.packing:
            return self.weight.to(dtype)
        return pick(DEQUANTIZE, self.weight.device)(self.packing, self.weight, dtype)

    def times(self, x: Tensor) -> Tensor:
        """x · rowsᵀ for x [..., inputs]: [..., rows], of the dtype of `x`. Two dimensions only."""
        if not self.packing:
            return pick(LINEAR, x.device)(x, self.weight, None)
        return pick(PACKED_LINEAR, x.device)(x, self.packing, self.weight)


class _Packed(nn.Module):
    """Holds `Rows` as buffers, so that they move with the module; their dtypes stay as they are."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        super().__init__()
        if not parts or len({part.inputs for part in parts}) != 1:
            raise ValueError(
                "rows of a matrix have one length, not "
                + (", ".join(f"{part.inputs:,}" for part in parts) or "none")
            )
        self._packings = tuple(part.packing for part in parts)
        for index, part in enumerate(parts):
            self.register_buffer(f"rows_{index}", part.weight)
        self.in_features = parts[0].inputs
        self.out_features = sum(part.weight.shape[-2] for part in parts)

    @property
    def parts(self) -> tuple[Rows, ...]:
        """What the matrix is made of, one part below the other."""
        return tuple(
            Rows(self.get_buffer(f"rows_{index}"), packing)
            for index, packing in enumerate(self._packings)
        )

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """The whole matrix: [..., out_features, in_features]."""
        return torch.cat([part.unpacked(dtype) for part in self.parts], -2)

    def extra_repr(self) -> str:
        kinds = "+".join(packing or "plain" for packing in self._packings)
        return f"{self.in_features}, {self.out_features}, {kinds}"


class QuantLinear(_Packed):
    """x · Wᵀ + b, where W stays packed. The parts of W may be of different types: queries and keys
    in Q4_K over values in Q6_K.
    """

    bias: Tensor | None

    def __init__(self, parts: Sequence[Rows], bias: Tensor | None = None) -> None:
        """
        Args:
            parts: the rows of W from the top on, [rows, ...] each.
            bias: [outputs], of any float dtype.

        Raises:
            ValueError: rows have different lengths, or the bias has another length.
        """
        super().__init__(parts)
        if bias is not None and bias.shape != (self.out_features,):
            raise ValueError(f"a bias of {tuple(bias.shape)} for {self.out_features:,} outputs")
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in_features]. Returns [..., out_features], of the dtype of `x`."""
        parts = self.parts
        result = parts[0].times(x)
        if len(parts) > 1:
            result = torch.cat([result, *(part.times(x) for part in parts[1:])], -1)
        return result if self.bias is None else result.add_(self.bias)


class QuantEmbedding(_Packed):
    """A table of vectors that stays packed; rows are gathered first and unpacked then. Where it is
    the output matrix too, a `QuantLinear` over the same rows is that.
    """

    def __init__(self, table: Rows, dtype: torch.dtype) -> None:
        """
        Args:
            table: [tokens, ...].
            dtype: of the vectors that `forward` gives.
        """
        super().__init__((table,))
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        """ids: [...] int64. Returns [..., in_features]."""
        (table,) = self.parts
        rows = table.weight.index_select(0, ids.flatten())
        return Rows(rows, table.packing).unpacked(self.dtype).view(*ids.shape, self.in_features)
