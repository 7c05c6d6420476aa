"""Reference for products with packed matrices: unpacks a slice of rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.device import multiplies

_SLICE_BYTES = 64 << 20
_SLICE_BYTES_CPU = 4 << 20
"""Most bytes of unpacked weights at a time; on a CPU they stay in its cache."""


def sliced_linear(x: Tensor, outputs: int, unpack: Callable[[slice, Tensor], None]) -> Tensor:
    """x · weightᵀ, a slice of the weight at a time.

    Args:
        x: [..., inputs] float32, float16 or bfloat16.
        outputs: number of rows of the weight.
        unpack: called with a slice of rows and a tensor [rows, inputs] to fill with them.

    Returns:
        [..., outputs], of the dtype of `x`. Weights are rounded to that dtype before they are
        multiplied; if the device has no instructions for it, everything is computed in float32
        and the result is rounded.
    """
    inputs = x.shape[-1]
    dtype = arithmetic_dtype(x.device, x.dtype)
    wide = x.to(dtype)
    most = _SLICE_BYTES_CPU if x.device.type == "cpu" else _SLICE_BYTES
    step = min(outputs, max(1, most // max(1, inputs * dtype.itemsize)))
    room = wide.new_empty((step, inputs))
    product = x.new_empty((*x.shape[:-1], outputs))
    for start in range(0, outputs, step):
        rows = slice(start, min(start + step, outputs))
        weight = room[: rows.stop - start]
        unpack(rows, weight)
        product[..., rows] = functional.linear(wide, weight)
    return product


def arithmetic_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which activations of `dtype` are multiplied."""
    return dtype if multiplies(device, dtype) else torch.float32
