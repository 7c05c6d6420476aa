"""HQQ: scales and zero points that suit most weights rather than the largest ones, without data
(half-quadratic quantization, Badri and Shaji 2023; `hqq/core/optimize.py`).

The rounding error is split into a sparse part for outliers, and the rest. Two steps alternate:
the sparse part is shrunk in the norm of power 0.7, and levels are fitted to the rest. Zero points
remain whole codes, as `PackedWeight` requires, so scales are fitted as well. Errors are measured in
steps of the grid, so that the magnitude of the weights does not matter. Of all levels found from
three starts, each group gets those with the least squared error, which never exceeds that of
`round_plain`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.errors import BadGrid
from hearth.quant.rounding.grid import (
    Grid,
    Levels,
    check,
    in_groups,
    levels_of,
    row_slices,
)

_STARTS: Final = (1.0, 0.9, 0.8)
"""Shares of the range of a group to start from."""
_STEPS: Final = 3
_NORM: Final = 0.7
_BETA: Final = 2.0
_GROWTH: Final = 1.01
"""Growth of beta per step."""


def round_hqq(weight: Tensor, grid: Grid) -> PackedWeight:
    """Round each weight to the nearest of the levels fitted to its group.

    Args:
        weight: [outputs, inputs] of any float dtype, on any device.
        grid: of scope "row" or "group".

    Raises:
        BadGrid: `grid` is of another scope.
        CannotQuantize: as in `round_plain`.
    """
    if grid.scope not in ("row", "group"):
        raise BadGrid(
            f"Scales of a {grid.scope} are not fitted: choose those of rows or groups.",
            field="scope",
        )
    check(weight, grid)
    scales = grid.numbers_of(weight)
    zeros = None if grid.symmetric else torch.empty_like(scales, dtype=torch.uint8)
    for some in row_slices(weight, grid):
        own = _fitted(weight[some].to(torch.float32), grid)
        scales[some] = own.scales.to(torch.float32)
        if zeros is not None and own.zeros is not None:
            zeros[some] = own.zeros
    return Levels(grid, scales.to(grid.scale_dtype), zeros).encode(weight)


def _fitted(weight: Tensor, grid: Grid) -> Levels:
    """Fitted levels of `weight`, some rows [rows, inputs] float32."""
    groups = in_groups(weight, grid)
    low, high = groups.amin(-1).clamp_(max=0), groups.amax(-1).clamp_(min=0)
    best = levels_of(low, high, grid)
    least = torch.full_like(low, torch.inf)
    for share in _STARTS:
        levels, beta = levels_of(low * share, high * share, grid), _BETA
        for _ in range(_STEPS):
            scales = levels.scales.to(torch.float32)
            zeros = None if levels.zeros is None else levels.zeros.to(torch.float32)[:, :, None]
            ratios = groups / scales[:, :, None]
            values = grid.values(ratios.clone(), zeros)
            changes = ratios - values
            error = changes.square().sum(-1).mul_(scales.square())
            is_better = error < least
            least = torch.where(is_better, error, least)
            best = _where(is_better, levels, best)
            targets = ratios.sub_(_shrunk(changes, beta))
            if zeros is not None:
                values += zeros
                zeros = (values - targets).mean(-1, keepdim=True).round_().clamp_(0, grid.most)
                values -= zeros
            factors = (targets * values).sum(-1) / values.square().sum(-1)
            levels = _scaled(levels, scales * factors, zeros)
            beta *= _GROWTH
    return best


def _shrunk(changes: Tensor, beta: float) -> Tensor:
    """The sparse part of `changes` (in steps): magnitudes less |x|^(p - 1) / β, at least 0."""
    sizes = changes.abs()
    return sizes.sub_((sizes + 1e-8).pow_(_NORM - 1).div_(beta)).relu_().copysign_(changes)


def _scaled(levels: Levels, scales: Tensor, zeros: Tensor | None) -> Levels:
    """`levels` with `zeros`, and with `scales` (float32) where these are positive and finite."""
    wanted = scales.to(levels.scales.dtype)
    is_good = torch.isfinite(wanted) & (wanted > 0)
    kept = torch.where(is_good, wanted, levels.scales)
    own = None if zeros is None else zeros[:, :, 0].to(torch.uint8)
    return replace(levels, scales=kept, zeros=own)


def _where(condition: Tensor, one: Levels, other: Levels) -> Levels:
    """Levels of `one` where `condition` [rows, groups] holds, else of `other`."""
    zeros = None
    if one.zeros is not None and other.zeros is not None:
        zeros = torch.where(condition, one.zeros, other.zeros)
    return Levels(one.grid, torch.where(condition, one.scales, other.scales), zeros)
