"""Means of what was measured token by token, with standard errors.

What neighbouring tokens say is correlated, so the standard error is taken over blocks of up to 64
consecutive scored tokens of one window, as that of a ratio of their sums: with blocks `b` of `n_b`
tokens, `N` tokens in all and `B` blocks,

    error² = B / (B - 1) · Σ_b (Σ_{i in b} (x_i - mean))² / N²

(W. G. Cochran, Sampling Techniques, 3rd edition, section 9A.) With one block there is none: NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

BLOCK_TOKENS: Final = 64
_FEWEST_BLOCKS: Final = 16
_CERTAIN: Final = 3.0
"""Standard errors that a difference must exceed to count as one."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its standard error, both in the same unit."""

    value: float
    error: float

    @property
    def is_below_zero(self) -> bool:
        """By more than three standard errors."""
        return self.value < -_CERTAIN * self.error

    def facts(self) -> dict[str, float | None]:
        """As JSON values, which know no infinity."""
        return {"value": _finite(self.value), "error": _finite(self.error)}

    @classmethod
    def read(cls, facts: dict[str, Any]) -> Estimate:
        """What `facts` gave. Raises `LookupError`, `TypeError` or `ValueError` for others."""
        value, error = facts["value"], facts["error"]
        return cls(math.inf if value is None else float(value), float(error or 0))


def block_tokens(tokens: int) -> int:
    """Most tokens of a block where `tokens` were scored: 64, or fewer so that there are 16."""
    return max(1, min(BLOCK_TOKENS, tokens // _FEWEST_BLOCKS))


def blocks_of(counts: Sequence[int]) -> list[int]:
    """The lengths of the blocks of windows of which `counts` tokens were scored each; no block
    crosses from window to window.
    """
    most = block_tokens(sum(counts))
    return [min(most, count - at) for count in counts for at in range(0, count, most)]


def mean(values: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """The mean of `values`, in the order in which `blocks` divide them.

    Raises:
        ValueError: the blocks do not have as many tokens as there are values, or there are none.
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
    """The mean of `after` less that of `before`, paired: what is hard for both cancels out, so that
    it is known far better than either mean.

    Raises:
        ValueError: they are not of the same tokens, or as `mean`.
    """
    return mean([b - a for a, b in zip(before, after, strict=True)], blocks)


def perplexity(losses: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """e to the mean of `losses`, negative log probabilities in nats; infinite where a token was
    impossible, or as good as.
    """
    return _exp(mean(losses, blocks))


def relative_perplexity(
    before: Sequence[float], after: Sequence[float], blocks: Sequence[int]
) -> Estimate:
    """The relative change of perplexity, paired. Raises as `difference`."""
    found = _exp(difference(before, after, blocks))
    return Estimate(found.value - 1, found.error)


def root_mean_square(values: Sequence[float], blocks: Sequence[int]) -> Estimate:
    """The root of the mean square of `values`; its error is that of the mean square by the slope of
    the root.
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
