"""Products with plain matrices, and in half precision on CPUs without instructions for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.cpu.library import CpuLibrary, cpu_library
from hearth.kernels.cuda import few_rows
from hearth.kernels.device import multiplies

DTYPE_NAMES: Final = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_CPU: Final = torch.device("cpu")
_FEW_ROWS: Final = {torch.bfloat16: 3, torch.float16: 1}
"""Up to this many rows torch reads the matrix about as fast as memory allows; with more it computes
in half precision, which such CPUs do number by number. Printed by `benchmarks/linear.py`.
"""
_MOST_ROWS: Final = 16
"""Most rows that the kernels of `kernels/cpu` multiply by a matrix of half precision; torch is
faster with more. Printed by the same script.
"""
_SLICE: Final = 3 << 17
"""Numbers of the matrix that are widened at a time: 1.5 megabytes, which fit a core's cache."""
_SLICE_FOR_FEW: Final = 1 << 18
_FEW: Final = 32
"""Up to this many rows smaller slices are faster, because less is computed with each."""
_SLICE_BYTES: Final = 64 << 20
"""Bytes of a widened slice on other devices."""
_NEAR: Final = 12.0
"""Logits this far below the largest, with less than e⁻¹² of its probability, may be rounded."""
_SMALL: Final = 2.0
"""So may logits up to this size: by 2⁻⁸ at most, which changes a probability by under 0.4 %."""
_SHARE_NEAR: Final = 8
"""If more than one logit in this many must not be rounded, all are computed again."""
_TILE: Final = 16
"""Rows of a product whose result must not depend on the number of rows."""


@dataclass(frozen=True, slots=True)
class Route:
    """How a product with a matrix is computed, for users."""

    by: str
    """The library and instructions that multiply."""
    activations: str
    """Type of the activations in the product: int8, fp8, bf16, f16 or f32."""
    reason: str


def float_lanes(instructions: str) -> str:
    """The instructions that multiply float32, for a set of instructions."""
    return {"plain": "C, float32", "avx2": "AVX2, FMA"}.get(instructions, "AVX-512, FMA")


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
    """`plain_linear`, by the kernels of `kernels/cpu` or in float32 where that is faster. The
    kernels do not support gradients.
    """
    match _processor_way(x.numel() // x.shape[-1], weight.dtype, x.shape[-1]):
        case "kernels" if weight.is_contiguous() and not (x.requires_grad or weight.requires_grad):
            return few_rows_linear(x, weight, bias)
        case "row" | "kernels" if x.numel() == x.shape[-1]:
            return row_linear(x, weight, bias)
        case "widened":
            return widened_linear(x, weight, bias)
    return plain_linear(x, weight, bias)


def linear_route(rows: int, dtype: torch.dtype, device: torch.device, inputs: int) -> Route:
    """How the function of `table.pick` multiplies `rows` by a plain matrix of `dtype`."""
    name = DTYPE_NAMES[dtype]
    way = _processor_way(rows, dtype, inputs) if device.type == "cpu" else "plain"
    if way == "kernels":
        library = cpu_library()
        assert library is not None
        taken = library.taken_with(dtype, inputs)
        lanes = "AVX-512, VDPBF16PS" if taken == dtype else float_lanes(library.instructions)
        return Route(lanes, DTYPE_NAMES[taken], "few rows read the matrix as it is")
    if way == "widened":
        return Route(
            "PyTorch, slices widened to f32",
            "f32",
            f"the processor has no instructions for {name}",
        )
    if way == "row":
        return Route("PyTorch, matrix by vector", name, "one row reads the matrix as it is")
    return Route("PyTorch", name, f"the matrix is in {name}")


def _processor_way(
    rows: int, dtype: torch.dtype, inputs: int
) -> Literal["kernels", "row", "plain", "widened"]:
    """How a plain matrix of `dtype` is multiplied on a CPU."""
    if _library_for(rows, dtype, inputs) is not None:
        return "kernels"
    few = _FEW_ROWS.get(dtype)
    if dtype == torch.bfloat16 and rows == 1:
        return "row"
    is_quick = few is None or rows <= few or multiplies(_CPU, dtype)
    return "plain" if is_quick else "widened"


def _library_for(rows: int, dtype: torch.dtype, inputs: int) -> CpuLibrary | None:
    """The library, if it multiplies `rows` by a plain half-precision matrix faster than torch."""
    library = cpu_library() if dtype in _FEW_ROWS and rows <= _MOST_ROWS else None
    if library is None or library.instructions == "plain":
        return None
    if library.taken_with(dtype, inputs) == dtype:
        return library
    is_quick = dtype == torch.float16 and (rows == 1 or multiplies(_CPU, dtype))
    return None if is_quick or inputs % 16 else library


def few_rows_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear` by the kernels of `kernels/cpu`, whose sums are float32.

    Args:
        x: [..., inputs], no more rows than `_library_for` allows.
        weight: [outputs, inputs], contiguous.
    """
    inputs = x.shape[-1]
    rows = x.reshape(-1, inputs)
    library = _library_for(len(rows), weight.dtype, inputs)
    assert library is not None
    taken = library.taken_with(weight.dtype, inputs)
    product = library.multiply_plain(weight, rows.to(taken).contiguous())
    if bias is not None:
        product += bias
    return product.to(x.dtype).view(*x.shape[:-1], len(weight))


def row_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear` of one row: in torch a vector is faster than a matrix of one row.

    Args:
        x: [..., inputs], where all other dimensions are 1.
    """
    product = torch.mv(weight, x.reshape(-1).to(weight.dtype)).to(x.dtype)
    if bias is not None:
        product += bias
    return product.view(*x.shape[:-1], len(product))


def wide_linear(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ in float32 for any dtype of the weight. A row's result depends on the number of
    rows, but not on the other rows.

    Args:
        x: [rows, inputs], of a float dtype.
        weight: [outputs, inputs], of a float dtype.

    Returns:
        [rows, outputs] float32.
    """
    if weight.dtype == torch.float32:
        return functional.linear(x.float(), weight)
    return widened_linear(x.float(), weight)


def cuda_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear` on NVIDIA GPUs: few rows by a kernel that is started early and does not
    support gradients."""
    rows = x.reshape(-1, x.shape[-1])
    if x.dtype != weight.dtype or not _is_for_few(rows, weight):
        return plain_linear(x, weight, bias)
    product = x.new_empty((len(rows), len(weight)))
    few_rows.multiply(weight, rows, product)
    if bias is not None:
        product += bias
    return product.view(*x.shape[:-1], len(weight))


def cuda_wide_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`wide_linear` of `x` rounded to the weight's dtype; sums stay in float32."""
    if weight.dtype == torch.float32:
        return functional.linear(x.float(), weight)
    half = x.to(weight.dtype)
    if not _is_for_few(half, weight):
        return wide_product(half, weight)
    product = half.new_empty((len(half), len(weight)), dtype=torch.float32)
    few_rows.multiply(weight, half, product)
    return product


def _is_for_few(x: Tensor, weight: Tensor) -> bool:
    is_aligned = weight.is_contiguous() and weight.data_ptr() % 16 == 0
    has_gradients = x.requires_grad or weight.requires_grad
    return is_aligned and not has_gradients and few_rows.can_multiply(weight.shape[1], x)


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """x · weightᵀ [rows, outputs] float32 of two matrices of the same dtype."""
    if x.is_cuda and x.dtype != torch.float32:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return torch.mm(x.float(), weight.float().t())


def processor_logits(x: Tensor, weight: Tensor) -> Tensor:
    """`wide_linear` for logits: on CPUs torch has no half-precision product with a float32 result,
    and widening the matrix takes several times as long as reading it. So logits are computed in
    half precision, and those beyond ±2 that are less than 12 below their row's largest are computed
    again in float32.
    """
    library = _library_for(len(x), weight.dtype, x.shape[1])
    if library is not None and weight.is_contiguous():
        rows = x if x.dtype == library.taken_with(weight.dtype, x.shape[1]) else x.float()
        return library.multiply_plain(weight, rows.contiguous())
    few = _FEW_ROWS.get(weight.dtype)
    is_quick = multiplies(weight.device, weight.dtype)
    if few is None or (len(x) > few and not is_quick):
        return wide_linear(x, weight)
    half = x.to(weight.dtype)
    rounded = processor_linear(half, weight)
    logits = rounded.float()
    matters = (logits > logits.amax(1, keepdim=True) - _NEAR) & (logits.abs() > _SMALL)
    near = matters.any(0).nonzero().flatten()
    if len(near) * _SHARE_NEAR > len(weight):
        if not is_quick:
            return wide_linear(x, weight)
        # Adds the rounding error: oneDNN subtracts `rounded` before it rounds.
        return logits.add_(torch.addmm(rounded, half, weight.t(), beta=-1))
    logits[:, near] = functional.linear(x.float(), weight[near].float())
    return logits


def widened_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`plain_linear` in float32, with the matrix widened slice by slice."""
    outputs, inputs = weight.shape
    rows = x.reshape(-1, inputs).float()
    numbers = _SLICE_FOR_FEW if len(rows) <= _FEW else _SLICE
    if x.device.type != "cpu":
        numbers = _SLICE_BYTES // torch.float32.itemsize
    step = min(max(numbers // max(inputs, 1), 1), outputs)
    product = torch.empty((len(rows), outputs), dtype=torch.float32, device=x.device)
    # Allocated once: new memory costs more than widening numbers into it.
    wide = torch.empty((step, inputs), dtype=torch.float32, device=x.device)
    for begin in range(0, outputs, step):
        end = min(begin + step, outputs)
        part = wide[: end - begin].copy_(weight[begin:end])
        torch.mm(rows, part.t(), out=product[:, begin:end])
    if bias is not None:
        product += bias
    return product.view(*x.shape[:-1], outputs).to(x.dtype)


def in_tiles(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` applied to `x` [rows, inputs] so that a row's result has the same bits whatever
    the other rows: in tiles of a fixed number of rows, the last one padded with zeros.
    """
    results = []
    for part in torch.split(x, _TILE):
        count = len(part)
        if count < _TILE:
            part = torch.cat([part, part.new_zeros((_TILE - count, part.shape[1]))])
        results.append(function(part)[:count])
    return torch.cat(results)


def in_groups(function: Callable[[int, Tensor], Tensor], x: Tensor, offsets: Tensor) -> Tensor:
    """`function` applied to each non-empty group of rows, the results concatenated.

    Args:
        function: called with the number of a group and its rows.
        x: [rows, inputs], sorted by group; at least one row.
        offsets: [groups + 1] int64, on the CPU: the first row of each group, and the number of all
            rows.
    """
    parts = torch.split_with_sizes(x, offsets.diff().tolist())
    return torch.cat([function(group, part) for group, part in enumerate(parts) if len(part)])
