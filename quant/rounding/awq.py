"""AWQ: channels that activations make important are scaled up before rounding, and the weights that
produce the activations are scaled down by as much (arXiv 2306.00978; AutoAWQ's
`quantize/quantizer.py`).

Scales belong to the inputs of all matrices that read the same activations. They are folded into
the preceding weights: a norm, or the rows of a matrix (`fold_into_rows`: up before down, values
before the output of attention).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.rounding.grid import (
    Grid,
    Levels,
    check,
    fit,
    in_groups,
    round_plain,
    rounded,
    row_slices,
)

_RATIOS: Final = 20
_CLIP_STEPS: Final = 10
_MOST_CLIPPED: Final = 0.5
"""Share of a range: AutoAWQ tries ten shares, from the full range down to just above this."""


class Activations:
    """Mean magnitudes of the inputs of some matrices, summed up batch by batch, and a sample of
    rows.

    Args:
        inputs: number of inputs of the matrices.
        sample: number of rows to keep. Each row is kept with the same probability, which depends
            on the seed and the row number only, not on how rows are divided into batches.
    """

    def __init__(self, inputs: int, *, sample: int = 512, seed: int = 0) -> None:
        self.inputs = inputs
        self.most = sample
        self.rows = 0
        """Number of rows in all batches."""
        self._total = torch.zeros(inputs)
        self._generator = torch.Generator().manual_seed(seed)
        self.sample = torch.empty((0, inputs))
        """[at most `most`, inputs] float32, in the order of arrival."""
        self._keys = torch.empty(0, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """
        Args:
            x: [..., inputs] of any float dtype, on any device.

        Raises:
            ValueError: rows have another length.
        """
        if x.shape[-1] != self.inputs:
            raise ValueError(f"rows of {self.inputs:,} inputs, not {x.shape[-1]:,}")
        rows = x.reshape(-1, self.inputs)
        self._total += rows.abs().sum(0, dtype=torch.float32).cpu()
        self.rows += len(rows)
        keys = torch.rand(len(rows), dtype=torch.float64, generator=self._generator)
        every = torch.cat((self._keys, keys))
        kept = every.argsort(stable=True)[: self.most].sort().values
        old, new = kept[kept < len(self._keys)], kept[kept >= len(self._keys)] - len(self._keys)
        chosen = rows[new.to(rows.device)].to("cpu", torch.float32)
        self.sample = torch.cat((self.sample[old], chosen))
        self._keys = every[kept]

    @property
    def mean_abs(self) -> Tensor:
        """[inputs] float32: the mean of |x|."""
        return self._total / max(self.rows, 1)


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of inputs, and the errors with and without them."""

    values: Tensor
    """[inputs] float32, positive: weights are multiplied by them, activations divided."""
    ratio: float
    """The power of the activations; 0 with all values one means that no scaling is better."""
    error: float
    """Mean squared error of the outputs."""
    plain_error: float
    """Mean squared error of the outputs without scaling."""


def search_scales(
    weights: Sequence[Tensor],
    x_sample: Tensor,
    grid: Grid,
    *,
    mean_abs: Tensor | None = None,
    tie: Callable[[Tensor], Tensor] | None = None,
) -> Scales:
    """The scales with which the outputs change least when `weights` are rounded.

    It tries s = a^r / m^(1-r) and s = a^r for twenty values of r, where a is the mean magnitude of
    an input, and m the mean magnitude of its weights relative to the largest of their groups. It
    also tries no scaling, so the result is never worse than that.

    Args:
        weights: [outputs, inputs] each: all matrices that are multiplied by the same activations
            and are rounded. Matrices that are not rounded, such as a router, are only scaled.
        x_sample: [rows, inputs] of these activations, on the device of the weights.
        grid: the grid that the weights are rounded to.
        mean_abs: [inputs], of more rows than the sample has; by default that of the sample.
        tie: turns any scales into ones that can be folded, see `tied_heads`.

    Raises:
        CannotQuantize: as in `round_plain`, or activations are not finite.
    """
    for weight in weights:
        check(weight, grid)
    x = x_sample.reshape(-1, x_sample.shape[-1]).to(torch.float32)
    means = x.abs().mean(0) if mean_abs is None else mean_abs.to(x)
    exact = [weight.to(torch.float32) for weight in weights]
    wanted = _products(x, exact)
    if not bool(torch.isfinite(means).all() and torch.isfinite(wanted).all()):
        raise CannotQuantize(
            "The activations for these tensors hold what is no finite number.",
            "Calibrate in float32 or bfloat16.",
        )

    def error(values: Tensor) -> float:
        products = _products(x, [rounded(one * values, grid).div_(values) for one in exact])
        return float((products - wanted).square().mean())

    ones = torch.ones_like(means)
    plain = error(ones)
    best = Scales(ones, 0.0, plain, plain)
    shares = _weight_shares(exact, grid)
    for step in range(_RATIOS):
        ratio = step / _RATIOS
        for with_weights in (True, False):
            if ratio == 0 and not with_weights:
                continue
            values = means.pow(ratio)
            if with_weights:
                values = values / (shares.pow(1 - ratio) + 1e-4)
            values = _centred(values)
            if tie is not None:
                values = tie(values)
            loss = error(values)
            if loss < best.error:
                best = Scales(values, ratio, loss, plain)
    return best


def _products(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """[rows, outputs]: the outputs of all `weights`, concatenated."""
    return torch.cat([x @ one.t() for one in weights], 1)


def _centred(values: Tensor) -> Tensor:
    """Scales normalized around one; one where the result is not positive and finite."""
    values = values.clamp(min=1e-4)
    values = values / (values.max() * values.min()).sqrt()
    return torch.where(torch.isfinite(values) & (values > 0), values, 1.0)


def _weight_shares(weights: Sequence[Tensor], grid: Grid) -> Tensor:
    """[inputs] float32: the mean over all rows of |w|, relative to the largest of its group."""
    total = torch.zeros_like(weights[0][0])
    for weight in weights:
        for some in row_slices(weight, grid):
            groups = in_groups(weight[some].abs(), grid)
            shares = groups / (groups.amax(-1, keepdim=True) + 1e-6)
            total += shares.flatten(1)[:, : len(total)].sum(0)
    return total / sum(len(weight) for weight in weights)


def search_clip(weight: Tensor, x_sample: Tensor, grid: Grid) -> Tensor:
    """The magnitudes to clip weights to before rounding, with which the product with each group of
    inputs changes least.

    Args:
        weight: [outputs, inputs], scaled.
        x_sample: [rows, inputs], divided by the scales.

    Returns:
        [outputs, groups] float32, for `round_awq`. Each applies to the weights that share a scale;
        with scopes "tensor" and "block", to one row of them.

    Raises:
        CannotQuantize: as in `round_plain`.
    """
    check(weight, grid)
    x = x_sample.reshape(-1, weight.shape[1]).to(weight.device, torch.float32)
    levels = fit(weight.to(torch.float32), grid) if grid.scope in ("tensor", "block") else None
    groups = in_groups(x, grid).transpose(0, 1)
    # Σ (Δ · x)² = Δ (Σ x xᵀ) Δᵀ for each group; the moments are [groups, group, group].
    moments = groups.transpose(1, 2) @ groups
    clips = grid.numbers_of(weight)
    for some in row_slices(weight, grid):
        own = None if levels is None else levels.rows(some)
        clips[some] = _best_clip(weight[some].to(torch.float32), moments, grid, own)
    return clips


def _best_clip(weight: Tensor, moments: Tensor, grid: Grid, levels: Levels | None) -> Tensor:
    """[rows, groups]: the best clips of scaled rows [rows, inputs] float32. Levels are fitted to
    the clipped weights, unless `levels` are given, which are shared with other rows.
    """
    largest = in_groups(weight.abs(), grid).amax(-1)
    best, least = largest, torch.full_like(largest, torch.inf)
    for step in range(_CLIP_STEPS):
        clip = largest * (1 - step * _MOST_CLIPPED / _CLIP_STEPS)
        clipped = _clipped(weight, clip, grid)
        values = (levels or fit(clipped, grid)).values(clipped)
        change = in_groups(values.sub_(weight), grid).transpose(0, 1)
        error = (change @ moments).mul_(change).sum(-1).t()
        best, least = torch.where(error < least, clip, best), torch.minimum(error, least)
    return best


def _clipped(weight: Tensor, clip: Tensor, grid: Grid) -> Tensor:
    """[rows, inputs] float32: `weight` clamped between -`clip` and `clip`, [rows, groups]."""
    bound = clip[:, :, None]
    return in_groups(weight, grid).clamp(-bound, bound).flatten(1)[:, : weight.shape[1]]


def round_awq(weight: Tensor, grid: Grid, clip: Tensor) -> PackedWeight:
    """Clip `weight` and round it to nearest.

    Args:
        weight: [outputs, inputs], scaled.
        clip: the result of `search_clip`.
    """
    check(weight, grid)
    return round_plain(_clipped(weight.to(torch.float32), clip, grid), grid)


# Folding.


def fold_into_rows(weight: Tensor, scales: Tensor) -> Tensor:
    """A matrix that precedes scaled ones, with its rows divided by the scales.

    Args:
        weight: [outputs, inputs]; as many of its last rows are divided as there are scales (the
            values in a matrix of queries, keys and values).
        scales: [divided outputs]: the factors of the next matrix's inputs; for values they come
            from `of_kv_heads`.
    """
    divisor = torch.ones(len(weight), dtype=torch.float32, device=weight.device)
    divisor[len(weight) - len(scales) :] = scales.to(divisor)
    return (weight.to(torch.float32) / divisor[:, None]).to(weight.dtype)


def tied_heads(scales: Tensor, heads: int, kv_heads: int) -> Tensor:
    """Scales for the inputs of attention's output matrix that can be folded into the values: the
    geometric mean over the heads that share values.

    Args:
        scales: [heads · width of a head].
    """
    own = scales.view(kv_heads, heads // kv_heads, -1)
    return own.log().mean(1, keepdim=True).exp().expand_as(own).reshape(-1)


def of_kv_heads(scales: Tensor, heads: int, kv_heads: int) -> Tensor:
    """[kv_heads · width of a head]: the divisors of the rows of the values' matrix.

    Args:
        scales: [heads · width of a head], tied.
    """
    return scales.view(kv_heads, heads // kv_heads, -1)[:, 0].reshape(-1)
