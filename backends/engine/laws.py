"""Distributions ("laws") that tokens are drawn from, and the residual after a rejected draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.selection import Indices


@dataclass(slots=True)
class Law:
    """A distribution over tokens; tokens that are not listed have probability 0."""

    ids: Indices
    """[n]: ascending."""
    chances: NDArray[np.float64]
    """[n]: above 0; their sum is 1."""

    @classmethod
    def of(cls, weights: NDArray[np.floating[Any]], ids: Indices | None = None) -> Law:
        """A law in proportion to `weights` [n], which are non-negative and not all zero.

        Args:
            ids: [n], ascending; None: 0 to n - 1.
        """
        kept = np.flatnonzero(weights > 0)
        chances = weights[kept].astype(np.float64)
        return cls(kept if ids is None else ids[kept], chances / chances.sum())

    def chance(self, token: int) -> float:
        """The probability of `token`."""
        place = int(np.searchsorted(self.ids, token))
        is_there = place < self.ids.size and self.ids[place] == token
        return float(self.chances[place]) if is_there else 0.0

    def at(self, uniform: float) -> int:
        """The token that a `uniform` number in [0, 1) selects."""
        place = int(np.searchsorted(self.chances.cumsum(), uniform, side="right"))
        return int(self.ids[min(place, self.ids.size - 1)])


def residual(law: Law, guess: Law) -> Law:
    """norm(max(`law` - `guess`, 0)): the law of the token after a draft from `guess` was rejected
    (arXiv 2211.17192, algorithm 1); `law` itself where rounding leaves nothing.
    """
    dense = np.zeros(1 + max(law.ids[-1], guess.ids[-1]))
    dense[guess.ids] = guess.chances
    left = np.maximum(law.chances - dense[law.ids], 0.0)
    return Law.of(left, law.ids) if left.any() else law


def certain(token: int) -> Law:
    """The law that has all probability on `token`."""
    return Law(np.array([token], dtype=np.intp), np.ones(1))
