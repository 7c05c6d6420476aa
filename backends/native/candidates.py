"""The steps of `hearth.backends.engine.truncation` for many rows at once, and the draw from what
they leave, in PyTorch.

numpy and a device round differently, so a step also says where that might matter: which rows are
so near to a boundary that numpy might decide otherwise. They are few, and the sampler draws them.

Rows are in ascending order of their token ids; what a step dropped has the value -inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Decision = tuple[Tensor, Tensor]
"""What is kept, [n, K] bool, and whether rounding might decide otherwise, [n, 1] bool."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How exactly a pool is computed, here and by the sampler in numpy."""

    dtype: torch.dtype
    is_rounded: bool
    """numpy computes in float32, so what is exact there is rounded likewise."""
    share: float
    """Sums of probabilities that differ by less, as a share of all, might be equal."""
    surprise: float
    """Likewise natural logs of probabilities."""
    level: float
    """Likewise logits, as a share of those that they are worked out from."""
    tiny: float
    """Probabilities below it might round to nothing."""

    def rounded(self, values: Tensor) -> Tensor:
        return values.float().to(self.dtype) if self.is_rounded else values


DOUBLE: Final = Precision(torch.float64, False, 1e-11, 1e-9, 0.0, 1e-290)
"""Both in float64."""
ROUNDED: Final = Precision(torch.float64, True, 1e-6, 2e-5, 1e-6, 1e-30)
"""The device in float64; numpy in float32, where an exponential is off by 3e-7 at most, and the sum
of a large vocabulary by 2e-7."""
SINGLE: Final = Precision(torch.float32, False, 1e-4, 3e-3, 1e-5, 1e-30)
"""The device in float32, as Apple's GPUs have no float64."""


def largest(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of each row, best first, ties to the lowest index.

    Args:
        values: [n, V] float32, without NaN.

    Returns:
        [n, min(count, V)] int64.
    """
    size = values.shape[-1]
    if count >= size:
        return values.sort(dim=-1, descending=True, stable=True).indices
    best = values.topk(count, dim=-1)
    # Of those that equal the last one, topk takes any: take the lowest instead.
    edge = best.values[:, -1:]
    above = (best.values > edge).sum(dim=-1, keepdim=True)
    backwards = -torch.arange(size, device=values.device, dtype=torch.float32)
    lowest = torch.where(values == edge, backwards, -math.inf).topk(count, dim=-1).indices
    ranks = torch.arange(count, device=values.device)
    of_equals = lowest.gather(-1, (ranks - above).clamp(min=0))
    ids = torch.where(ranks < above, best.indices, of_equals).sort(dim=-1).values
    order = values.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, order)


def weights_of(values: Tensor, precision: Precision, temperature: Tensor | None = None) -> Tensor:
    """Probabilities times a constant for each row: the likeliest has 1. [n, K]."""
    logs = precision.rounded(values - values.amax(dim=-1, keepdim=True))
    if temperature is not None:
        logs = precision.rounded(logs / temperature)
    return logs.exp()


def nucleus(values: Tensor, top_p: Tensor, precision: Precision) -> Decision:
    """Top-p: the fewest likeliest candidates that reach `top_p` [n, 1]."""
    weights = weights_of(values, precision)
    total = weights.sum(dim=-1, keepdim=True)
    order = values.sort(dim=-1, descending=True, stable=True).indices
    kept, _, is_near = _cover(weights, order, top_p * total, precision.share * total)
    return kept, is_near


def typical(values: Tensor, typical_p: Tensor, precision: Precision) -> Decision:
    """Locally typical: the fewest candidates, nearest to the entropy first, that reach
    `typical_p` [n, 1].
    """
    weights = weights_of(values, precision)
    total = weights.sum(dim=-1, keepdim=True)
    surprise = total.log() - (values - values.amax(dim=-1, keepdim=True))
    expected = torch.where(weights > 0, weights * surprise, 0.0)
    keys = -(surprise - expected.sum(dim=-1, keepdim=True) / total).abs()
    order = keys.sort(dim=-1, descending=True, stable=True).indices
    kept, last, is_near = _cover(weights, order, typical_p * total, precision.share * total)
    # Equal logits stay equal however they are rounded; others might change places.
    beside = (keys - keys.gather(-1, last)).abs() <= precision.surprise
    swaps = beside & (values != values.gather(-1, last))
    return kept, is_near | swaps.any(dim=-1, keepdim=True)


def likely(values: Tensor, log_min_p: Tensor, precision: Precision) -> Decision:
    """Min-p: those at most -`log_min_p` [n, 1] below the largest."""
    peak = values.amax(dim=-1, keepdim=True)
    level = peak + log_min_p
    distance = (values - level).abs().amin(dim=-1, keepdim=True)
    return values >= level, distance < precision.level * (peak.abs() - log_min_p)


def without_top_choices(values: Tensor, threshold: Tensor, precision: Precision) -> Decision:
    """XTC: of those with probability `threshold` [n, 1] or more, only the least likely stays."""
    weights = weights_of(values, precision)
    level = threshold * weights.sum(dim=-1, keepdim=True)
    is_top = (weights >= level) & (weights > 0)
    least = torch.where(is_top, values, math.inf).amin(dim=-1, keepdim=True)
    places = torch.arange(values.shape[-1], device=values.device)
    stays = torch.where(is_top & (values == least), places, -1).amax(dim=-1, keepdim=True)
    is_near = ((weights - level).abs() < precision.share * level).any(dim=-1, keepdim=True)
    return ~is_top | (places == stays), is_near | (level < precision.tiny)


def pick(weights: Tensor, numbers: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    """Where the running sum of each row passes `numbers` [n, 1] of its total.

    Returns:
        Indices [n, 1] int64, and whether rounding might decide otherwise, [n, 1] bool.
    """
    sums = weights.cumsum(dim=-1)
    total = sums[:, -1:]
    goal = numbers * total
    index = (sums <= goal).sum(dim=-1, keepdim=True)
    index = torch.minimum(index, (sums < total).sum(dim=-1, keepdim=True))
    is_near = (sums - goal).abs().amin(dim=-1, keepdim=True) <= precision.share * total
    return index, is_near


def _cover(
    weights: Tensor, order: Tensor, target: Tensor, tolerance: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The first in `order` [n, K] whose weights reach `target` [n, 1]: which they are, [n, K] bool,
    the last of them, [n, 1], and whether a sum is within `tolerance` of the target, [n, 1] bool.
    """
    sums = weights.gather(-1, order).cumsum(dim=-1)
    before = (sums < target).sum(dim=-1, keepdim=True).clamp(max=weights.shape[-1] - 1)
    ranks = torch.arange(weights.shape[-1], device=weights.device)
    kept = torch.zeros_like(weights, dtype=torch.bool)
    kept.scatter_(-1, order, (ranks <= before).expand_as(kept))
    is_near = (sums - target).abs().amin(dim=-1, keepdim=True) <= tolerance
    return kept, order.gather(-1, before), is_near
