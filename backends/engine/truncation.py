"""The steps that narrow a pool of candidates.

A pool is [n] float logits with a finite maximum, in the order of their token ids. Each step returns
the ascending indices of the candidates that it keeps: at least one.
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
    """Probabilities of `pool` times a constant: the likeliest has 1.

    Args:
        temperature: above 0; float32's smallest normal number stands for anything below it.
    """
    weights: Pool = pool - pool.max()
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # -inf: the weight is 0
            weights /= max(temperature, SMALLEST_TEMPERATURE)
    np.exp(weights, out=weights)
    return weights


def nucleus(pool: Pool, top_p: float) -> Indices:
    """Top-p (arXiv 1904.09751): the fewest likeliest candidates that reach `top_p`."""
    weights = weights_of(pool)
    return smallest_cover(pool, weights, top_p * float(weights.sum()))


def typical(pool: Pool, typical_p: float) -> Indices:
    """Locally typical (arXiv 2202.00666): the fewest candidates that reach `typical_p`.

    Those whose surprise is nearest to the entropy come first.
    """
    weights = weights_of(pool)
    total = float(weights.sum())
    surprise = math.log(total) - (pool - pool.max())
    present = weights > 0
    entropy = float((weights[present] * surprise[present]).sum()) / total
    return smallest_cover(-np.abs(surprise - entropy), weights, typical_p * total)


def likely(pool: Pool, min_p: float) -> Indices:
    """Min-p (arXiv 2407.01082): those with at least `min_p` of the likeliest one's probability."""
    return np.flatnonzero(pool >= pool.max() + math.log(min_p))


def without_top_choices(pool: Pool, threshold: float) -> Indices:
    """XTC (p-e-w, text-generation-webui pull request 6335).

    Of the candidates with probability `threshold` or more, all but the least likely go (of equals
    the highest id stays); with fewer than two of them, nothing changes. What cannot be drawn is no
    top choice, with a threshold of 0 either.
    """
    weights = weights_of(pool)
    top = np.flatnonzero((weights >= threshold * weights.sum()) & (weights > 0))
    if top.size < 2:
        return np.arange(pool.size)
    order = np.argsort(-pool[top], kind="stable")
    return np.delete(np.arange(pool.size), top[order[:-1]])
