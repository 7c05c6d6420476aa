"""Products with packed matrices: the reference, which unpacks a slice of rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.device import multiplies

_SLICE_BYTES = 64 << 20
_SLICE_BYTES_CPU = 4 << 20
"""Most bytes of plain weights that exist at a time; on a processor they stay in its cache."""


def sliced_linear(x: Tensor, outputs: int, unpack: Callable[[slice, Tensor], None]) -> Tensor:
    """x · weightᵀ, a slice of the weight at a time.

    Args:
        x: [..., inputs] float32, float16 or bfloat16.
        outputs: rows of the weight.
        unpack: called with some rows and [rows, inputs] to fill with their numbers.

    Returns:
        [..., outputs], of the dtype of `x`. Weights are rounded to that dtype before they are
        multiplied; where the processor has no instructions for it, all is computed in float32
        and the result is rounded.
    """
    inputs = x.shape[-1]
    dtype = arithmetic_dtype(x.device, x.dtype)
    wide = x.to(dtype)
    most = _SLICE_BYTES_CPU if x.device.type == "cpu" else _SLICE_BYTES
    step = min(outputs, max(1, most // max(1, inputs * dtype.itemsize)))
    room = wide.new_empty((step, inputs))
    found = x.new_empty((*x.shape[:-1], outputs))
    for start in range(0, outputs, step):
        rows = slice(start, min(start + step, outputs))
        weight = room[: rows.stop - start]
        unpack(rows, weight)
        found[..., rows] = functional.linear(wide, weight)
    return found


def arithmetic_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What activations of `dtype` are multiplied as."""
    return dtype if multiplies(device, dtype) else torch.float32
