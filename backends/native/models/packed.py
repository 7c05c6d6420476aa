"""Modules over packed matrices, for inference only: linear, experts and embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hearth.kernels.cuda.elementwise import RoundedRows
from hearth.kernels.cuda.matrix import TritonMatrix
from hearth.kernels.packed import GroupedLinear, Prepared


class _Packed(nn.Module):
    """Registers the tensors of a matrix as buffers, so that they are counted."""

    def __init__(self, matrix: Prepared | GroupedLinear) -> None:
        super().__init__()
        self.matrix = matrix
        for index, tensor in enumerate(matrix.tensors):
            self.register_buffer(f"packed_{index}", tensor, persistent=False)

    def extra_repr(self) -> str:
        return f"{self.matrix.inputs}, {self.matrix.outputs}, {self.matrix.kind}"


class PackedLinear(_Packed):
    """x · Wᵀ + b, where W stays packed.

    Args:
        bias: [outputs], of any float dtype.

    Raises:
        ValueError: the bias has another length.
    """

    matrix: Prepared
    bias: Tensor | None

    def __init__(self, matrix: Prepared, bias: Tensor | None = None) -> None:
        super().__init__(matrix)
        if bias is not None and bias.shape != (matrix.outputs,):
            raise ValueError(f"a bias of {tuple(bias.shape)} for {matrix.outputs:,} outputs")
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor | RoundedRows) -> Tensor:
        """[..., inputs] -> [..., outputs], of the dtype of `x`."""
        if isinstance(x, RoundedRows):
            assert isinstance(self.matrix, TritonMatrix)
            return self._with_bias(self.matrix.rounded_matmul(x))
        return self._with_bias(self.matrix.matmul(x))

    def takes_rounded(self, rows: int, dtype: torch.dtype) -> bool:
        """Whether `forward` would round `rows` rows of `dtype`, and takes them already rounded."""
        matrix = self.matrix
        return isinstance(matrix, TritonMatrix) and matrix.takes_rounded(rows, dtype)

    def wide(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs] float32: logits."""
        if isinstance(self.matrix, TritonMatrix):
            return self._with_bias(self.matrix.wide_matmul(x))
        return self._with_bias(self.matrix.matmul(x.float()))

    def rows(self, ids: Tensor) -> Tensor:
        """[ids, inputs] float32: some rows of W."""
        return self.matrix.rows(ids, torch.float32)

    def _with_bias(self, found: Tensor) -> Tensor:
        return found if self.bias is None else found.add_(self.bias)


class PackedExperts(_Packed):
    """Replaces an `ExpertMatrix` whose weights stay packed.

    Args:
        bias: [experts, outputs], of any float dtype.
    """

    matrix: GroupedLinear
    bias: Tensor | None

    def __init__(self, matrix: GroupedLinear, bias: Tensor | None = None) -> None:
        super().__init__(matrix)
        self.register_buffer("bias", bias)
        self.stays_on_device = matrix.on_card is not None

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """As `ExpertMatrix`."""
        product = self.matrix.matmul(rows, offsets)
        if self.bias is None:
            return product
        counts = offsets.diff().to(rows.device)
        return product.add_(self.bias.repeat_interleave(counts, 0, output_size=len(rows)))


class PackedEmbedding(_Packed):
    """A table of vectors that stays packed: rows are gathered first and then unpacked.

    If the output matrix is tied to it, a `PackedLinear` over the same matrix computes logits.

    Args:
        dtype: of the vectors that `forward` returns.
    """

    matrix: Prepared

    def __init__(self, matrix: Prepared, dtype: torch.dtype) -> None:
        super().__init__(matrix)
        self.dtype = dtype

    def forward(self, ids: Tensor) -> Tensor:
        """[...] int64 -> [..., inputs]."""
        return self.matrix.rows(ids.flatten(), self.dtype).view(*ids.shape, self.matrix.inputs)
