"""Products with matrices of half precision on processors that have no instructions for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.device import multiplies

_FEW_ROWS: Final = {torch.bfloat16: 3, torch.float16: 1}
"""Up to so many rows torch reads the matrix as it is about as fast as memory gives it; beyond them
it computes in half precision, which such processors do number by number. Printed by
`benchmarks/linear.py`.
"""
_SLICE: Final = 3 << 17
"""Numbers of the matrix that are widened at a time: 1.5 megabytes, which stay in a core's cache."""
_SLICE_FOR_FEW: Final = 1 << 18
_FEW: Final = 32
"""Up to so many rows smaller slices are better, since there is less to do with each."""
_TILE: Final = 16
"""Rows of one product where the result must not depend on how many there are."""


def plain_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias, in the dtype of the weight.

    Args:
        x: [..., inputs], of a float dtype.
        weight: [outputs, inputs].
        bias: [outputs], of the weight's dtype.

    Returns:
        [..., outputs], of the dtype of `x`.
    """
    return functional.linear(x.to(weight.dtype), weight, bias).to(x.dtype)


def processor_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear`, in float32 where that is faster."""
    few = _FEW_ROWS.get(weight.dtype)
    if weight.dtype == torch.bfloat16 and x.numel() == x.shape[-1]:
        return row_linear(x, weight, bias)
    if few is None or multiplies(weight.device, weight.dtype) or x.numel() <= few * x.shape[-1]:
        return plain_linear(x, weight, bias)
    return widened_linear(x, weight, bias)


def row_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear` of one row: torch has a quicker way for a vector than for a matrix of one row.

    Args:
        x: [..., inputs], where all but the last are 1.
    """
    found = torch.mv(weight, x.reshape(-1).to(weight.dtype)).to(x.dtype)
    if bias is not None:
        found += bias
    return found.view(*x.shape[:-1], len(found))


def widened_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear` in float32, with the matrix widened slice by slice."""
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).float()
    numbers = _SLICE_FOR_FEW if len(rows) <= _FEW else _SLICE
    step = min(max(numbers // max(inputs, 1), 1), outputs)
    found = torch.empty((len(rows), outputs), dtype=torch.float32, device=x.device)
    # One for all: fresh memory costs more than to widen numbers into it.
    wide = torch.empty((step, inputs), dtype=torch.float32, device=x.device)
    for begin in range(0, outputs, step):
        end = min(begin + step, outputs)
        part = wide[: end - begin].copy_(weight[begin:end])
        torch.mm(rows, part.t(), out=found[:, begin:end])
    if bias is not None:
        found += bias
    return found.view(*x.shape[:-1], outputs).to(x.dtype)


def in_tiles(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` of the rows of `x` [rows, inputs], of which a row's result has the same bits
    whatever other rows there are: it gets tiles of a fixed number of rows, the last one filled up
    with zeros.
    """
    found = []
    for part in torch.split(x, _TILE):
        count = len(part)
        if count < _TILE:
            part = torch.cat([part, part.new_zeros((_TILE - count, part.shape[1]))])
        found.append(function(part)[:count])
    return torch.cat(found)
