"""A matrix of the decoder that float32 is multiplied with, kept in half precision."""

from __future__ import annotations

from torch import Tensor, nn

from hearth.kernels.half_matrix import HalfMatrix


class HalfLinear(nn.Module):
    """In the place of a `Matrix` on a processor without instructions for half precision.

    Args:
        bias: [outputs], of any float dtype.
    """

    bias: Tensor | None

    def __init__(self, matrix: HalfMatrix, bias: Tensor | None = None) -> None:
        super().__init__()
        self.matrix = matrix
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs], of the dtype of `x`."""
        found = self.matrix.times(x.reshape(-1, self.matrix.inputs).float())
        if self.bias is not None:
            found += self.bias
        return found.view(*x.shape[:-1], self.matrix.outputs).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.matrix.inputs}, {self.matrix.outputs}"
