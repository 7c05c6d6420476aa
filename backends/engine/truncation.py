"""The truncation steps that narrow a pool of candidates.

A pool is [n] float logits with a finite maximum, in the order of their token ids. Each step returns
the ascending indices of the candidates that it keeps, at least one.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.selection import Indices, smallest_cover

Pool = NDArray[np.floating[Any]]

SMALLEST_TEMPERATURE: Final = 2.0**-126


def weights_of(pool: Pool, temperature: float = 1.0) -> Pool:
    """Unnormalised probabilities of `pool`, scaled so that the likeliest candidate has 1.

    Args:
        temperature: above 0; raised to float32's smallest normal number if it is below that.
    """
    weights: Pool = pool - pool.max()
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # -inf: the weight is 0
            weights /= max(temperature, SMALLEST_TEMPERATURE)
    np.exp(weights, out=weights)
    return weights


def nucleus(pool: Pool, top_p: float) -> Indices:
    """Top-p (arXiv 1904.09751): the fewest of the likeliest candidates that reach `top_p`."""
    weights = weights_of(pool)
    return smallest_cover(pool, weights, top_p * float(weights.sum()))


def typical(pool: Pool, typical_p: float) -> Indices:
    """Locally typical sampling (arXiv 2202.00666): the fewest candidates that reach `typical_p`.

    Candidates whose surprise is nearest to the entropy come first.
    """
    weights = weights_of(pool)
    total = float(weights.sum())
    surprise = math.log(total) - (pool - pool.max())
    present = weights > 0
    entropy = float((weights[present] * surprise[present]).sum()) / total
    return smallest_cover(-np.abs(surprise - entropy), weights, typical_p * total)


def likely(pool: Pool, min_p: float) -> Indices:
    """Min-p (arXiv 2407.01082): candidates with at least `min_p` times the highest probability."""
    return np.flatnonzero(pool >= pool.max() + math.log(min_p))


def without_top_choices(pool: Pool, threshold: float) -> Indices:
    """XTC (p-e-w, text-generation-webui pull request 6335).

    Of the candidates with probability `threshold` or more, all but the least likely are removed (of
    equals, the highest id stays); with fewer than two of them, nothing changes. Candidates of
    probability 0 are never top choices, even with a threshold of 0.
    """
    weights = weights_of(pool)
    top = np.flatnonzero((weights >= threshold * weights.sum()) & (weights > 0))
    if top.size < 2:
        return np.arange(pool.size)
    order = np.argsort(-pool[top], kind="stable")
    return np.delete(np.arange(pool.size), top[order[:-1]])
