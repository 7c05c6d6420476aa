"""Means of per-token measurements, with standard errors.

Measurements of neighbouring tokens are correlated. The standard error is therefore computed over
blocks of up to 64 consecutive scored tokens of one window, as that of a ratio of the blocks' sums:
with blocks `b` of `n_b` tokens, `N` tokens in all and `B` blocks,

    error² = B / (B - 1) · Σ_b (Σ_{i in b} (x_i - mean))² / N²

(W. G. Cochran, Sampling Techniques, 3rd edition, section 9A.) With a single block it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

BLOCK_TOKENS: Final = 64
_FEWEST_BLOCKS: Final = 16
_CERTAIN: Final = 3.0
"""Number of standard errors that a difference must exceed to be significant."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error, both in the same unit."""

    value: float
    error: float

    @property
    def is_below_zero(self) -> bool:
        """Whether the value is below zero by more than three standard errors."""
        return self.value < -_CERTAIN * self.error

    def facts(self) -> dict[str, float | None]:
        """The estimate as JSON values; None for numbers that are not finite."""
        return {"value": _finite(self.value), "error": _finite(self.error)}

    @classmethod
    def read(cls, facts: dict[str, Any]) -> Estimate:
        """The estimate from the result of `facts`. Raises `LookupError`, `TypeError` or
        `ValueError` for anything else.
        """
        value, error = facts["value"], facts["error"]
        return cls(math.inf if value is None else float(value), float(error or 0))


def block_tokens(tokens: int) -> int:
    """Maximum length of a block if `tokens` were scored: 64, or less to get at least 16 blocks."""
    return max(1, min(BLOCK_TOKENS, tokens // _FEWEST_BLOCKS))


def blocks_of(counts: Sequence[int]) -> list[int]:
    """The lengths of the blocks, given the number of scored tokens of each window; no block spans
    two windows.
    """
    most = block_tokens(sum(counts))
    return [min(most, count - at) for count in counts for at in range(0, count, most)]


def mean(values: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """The mean of `values`, which `blocks` divide in their order.

    Raises:
        ValueError: the blocks do not add up to the number of values, or there are no values.
    """
    if not values or sum(blocks) != len(values):
        raise ValueError(f"{len(values)} values do not fill blocks of {sum(blocks)}")
    average = math.fsum(values) / len(values)
    if len(blocks) < 2 or not math.isfinite(average):
        return Estimate(average, math.nan)
    squares, at = [], 0
    for count in blocks:
        squares.append(math.fsum(value - average for value in values[at : at + count]) ** 2)
        at += count
    variance = math.fsum(squares) * len(blocks) / (len(blocks) - 1) / len(values) ** 2
    return Estimate(average, math.sqrt(variance))


def difference(before: Sequence[float], after: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """The mean of `after` less that of `before`, paired by token: variation that both share cancels
    out, so the difference is far more precise than either mean.

    Raises:
        ValueError: the numbers of tokens differ, or as in `mean`.
    """
    return mean([b - a for a, b in zip(before, after, strict=True)], blocks)


def perplexity(losses: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """e to the power of the mean of `losses` (negative log probabilities in nats); infinite if a
    token had a probability of zero or nearly zero.
    """
    return _exp(mean(losses, blocks))


def relative_perplexity(
    before: Sequence[float], after: Sequence[float], blocks: Sequence[int]
) -> Estimate:
    """The relative change of perplexity, paired by token. Raises the errors of `difference`."""
    ratio = _exp(difference(before, after, blocks))
    return Estimate(ratio.value - 1, ratio.error)


def root_mean_square(values: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """The root mean square of `values`; its error is that of the mean square times the derivative
    of the root.
    """
    square = mean([value * value for value in values], blocks)
    root = math.sqrt(square.value)
    return Estimate(root, square.error / (2 * root) if root else 0.0)


def _exp(power: Estimate) -> Estimate:
    try:
        value = math.exp(power.value)
    except OverflowError:
        return Estimate(math.inf, math.nan)
    return Estimate(value, value * power.error)


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
