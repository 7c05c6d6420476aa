"""Selecting the largest few of many numbers without sorting them all."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]
Floats = NDArray[np.floating[Any]]
Sparse = tuple[Indices, NDArray[np.float32]]
"""Unique token ids, and a number for each."""

FIRST_LOOK: Final = 1024
"""How many of the best are sorted before the search widens."""
_BLOCKS_PER_PICK: Final = 4
_ROWS_WORTH_BLOCKS: Final = 4


def largest(values: Floats, count: int) -> Indices:
    """Indices of the `count` largest of `values` [n], largest first, ties to the lowest index.

    The `count`-th largest of the maxima of disjoint blocks is a lower bound of the `count`-th
    largest value, so only the few values at or above it are sorted: O(n) with a very small factor.
    """
    total = values.size
    if count >= total:
        return np.argsort(-values, kind="stable")
    if count <= 0:
        return np.empty(0, dtype=np.intp)
    width = max(_BLOCKS_PER_PICK * count, 1024)
    rows = total // width
    heads = values
    if rows >= _ROWS_WORTH_BLOCKS:
        heads = values[: rows * width].reshape(rows, width).max(axis=0)
    bound = np.partition(heads, heads.size - count)[heads.size - count]
    near = np.flatnonzero(values >= bound)
    order = np.argsort(-values.take(near), kind="stable")[:count]
    return near.take(order)


def smallest_cover(keys: Floats, weights: Floats, target: float) -> Indices:
    """Indices (ascending) of the fewest items, largest key first, whose weights reach `target`.

    Ties go to the lowest index. At least one item is taken, and all of them if their sum stays
    below `target`. The best 1,024 are looked at first; if they fall short, a weighted quickselect
    finds the last key that is needed.

    Args:
        keys: [n], the sort key: items are taken largest key first.
        weights: [n], non-negative.
        target: above 0.
    """
    best = largest(keys, FIRST_LOOK)
    sums = np.cumsum(weights[best], dtype=np.float64)
    if best.size == keys.size or sums[-1] >= target:
        return np.sort(best[: _first_reaching(sums, target)])
    return _select_cover(keys, weights, target)


def _first_reaching(sums: NDArray[np.float64], target: float) -> int:
    return int(np.searchsorted(sums, target, side="left")) + 1


def _select_cover(keys: Floats, weights: Floats, target: float) -> Indices:
    taken: list[Indices] = []
    missing = target
    rest: Indices = np.arange(keys.size)
    while rest.size > FIRST_LOOK:
        rest_keys = keys.take(rest)
        middle = rest.size // 2
        pivot = np.partition(rest_keys, middle)[middle]
        higher = rest_keys > pivot
        above = rest.take(np.flatnonzero(higher))
        mass = float(weights.take(above).sum(dtype=np.float64))
        if mass >= missing:
            rest = above
            continue
        taken.append(above)
        missing -= mass
        if above.size:
            rest = rest.take(np.flatnonzero(~higher))
            continue
        # `pivot` is the largest key left: all items with this key come before the others.
        level = rest.take(np.flatnonzero(rest_keys == pivot))
        mass = float(weights.take(level).sum(dtype=np.float64))
        if mass >= missing:
            rest = level
            break
        taken.append(level)
        missing -= mass
        rest = rest.take(np.flatnonzero(rest_keys < pivot))
    rest = rest.take(np.argsort(-keys.take(rest), kind="stable"))
    sums = np.cumsum(weights.take(rest), dtype=np.float64)
    taken.append(rest[: _first_reaching(sums, missing)])
    return np.sort(np.concatenate(taken))
