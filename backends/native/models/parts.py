"""Building blocks of the decoder's modules: parameters without memory, matrices and the gate."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hearth.kernels.cuda.elementwise import silu_up
from hearth.kernels.cuda.matrix import has_triton
from hearth.kernels.table import LINEAR, LOGITS, WIDE_LINEAR, pick
from hearth.quant.families.config import Activation

_SLOPE = 1.702
_LIMIT = 7.0


def parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    """A parameter on `meta`: only a shape and a dtype until loading replaces it by a tensor."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


class Matrix(nn.Linear):
    """weight: [outputs, inputs]. Results have the dtype of the input, which may be wider."""

    is_wide = False
    """Results may exceed the range of the weight's dtype, so they are float32 throughout."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """[..., inputs] -> [..., outputs]; only [rows, inputs] if `is_wide`."""
        return multiply(input, self.weight, self.bias, is_wide=self.is_wide)


class Output(Protocol):
    """Computes logits: the output matrix, or the embedding if they are tied."""

    def wide(self, x: Tensor) -> Tensor:
        """[rows, width] of any float dtype -> [rows, vocabulary] float32."""

    def rows(self, ids: Tensor) -> Tensor:
        """[ids, width] float32: some rows of the matrix."""


class Table:
    """Implements `Output` for modules with a plain `weight` [vocabulary, width]."""

    weight: Tensor
    is_exact = False
    """Logits are float32 throughout: in faster products, rounding depends on the other rows."""

    def wide(self, x: Tensor) -> Tensor:
        """See the protocol."""
        product = LOGITS.reference if self.is_exact else pick(LOGITS, x.device)
        return product(x, self.weight)

    def rows(self, ids: Tensor) -> Tensor:
        """See the protocol."""
        return self.weight[ids].float()


class OutputMatrix(Table, Matrix):
    """An output matrix that is not tied to the embedding."""


def linear(
    inputs: int, outputs: int, bias: bool, dtype: torch.dtype, *, is_wide: bool = False
) -> Matrix:
    """A matrix on `meta`."""
    made = Matrix(inputs, outputs, bias, device="meta", dtype=dtype)
    made.requires_grad_(False)
    made.is_wide = is_wide
    return made


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, is_wide: bool) -> Tensor:
    """x · weightᵀ + bias, of the dtype of `x`.

    Args:
        is_wide: see `Matrix`; if set, x is [rows, inputs] float32.
    """
    if not is_wide:
        return pick(LINEAR, x.device)(x, weight, bias)
    product = pick(WIDE_LINEAR, x.device)(x, weight)
    return product if bias is None else product.add_(bias)


def gated(both: Tensor, activation: Activation) -> Tensor:
    """The hidden layer of a feed-forward.

    Args:
        both: [..., 2 · width], gate before up.

    Returns:
        [..., width].
    """
    if activation == "silu" and both.ndim == 2 and has_triton(both.device.type):
        return silu_up(both)
    gate, up = both.chunk(2, dim=-1)
    match activation:
        case "silu":
            return F.silu(gate).mul_(up)
        case "gelu_tanh":
            return F.gelu(gate, approximate="tanh").mul_(up)
        case "swiglu_clamped":
            gate, up = gate.clamp(max=_LIMIT), up.clamp(-_LIMIT, _LIMIT)
            return gate * torch.sigmoid(gate * _SLOPE) * (up + 1.0)
