"""Random numbers that are a function of where they are used, so that nothing but the seed matters.

Counter-based: Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11)
with the key (seed, stream) and the counter (position, 0, 0, 0). The number at a position is the
same in every batch, after preemption, and whichever runner made the draws before it.

Tokens are drawn by a race: each has an exponential number E of (seed, position, token id), and the
largest p / E wins, which is token t with probability p(t). Where the law changes a little, as
between a model and its draft, the winner mostly stays: two laws whose total variation distance is d
agree with probability (1 - d) / (1 + d) or more (arXiv 2009.06114).
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DRAW: Final = 0
"""The stream that picks the token."""
XTC: Final = 1
"""The stream that decides whether XTC acts."""

CHOICE: Final = 2
"""The stream that seeds of further choices come from."""

REDRAW: Final = 3
"""The stream that picks another token where a grammar does not allow the first."""

GUESS: Final = 4
"""The stream that picks drafted tokens, with rejection sampling;"""
ACCEPT: Final = 5
"""the one that decides whether they are accepted,"""
RECOVER: Final = 6
"""and the one that picks a token where they are not."""

SEED_LIMIT: Final = 2**64
_BLOCK: Final = 64
"""Ids whose least exponential number is drawn for all of them."""
_FEW: Final = 1024
"""Races of more tokens are narrowed first."""
_HEAD: Final = 0.1
"""Of the largest weight: those that have as much bound what can win."""
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def uniform(seed: int, position: int, stream: int = DRAW) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: in [0, 2**64).
        position: index of the token that is drawn, in [0, 2**64).
        stream: independent numbers for the same position, in [0, 2**64).
    """
    return float(_bits(seed, position, stream) >> 11) * 2.0**-53


def race(
    weights: NDArray[np.floating[Any]],
    seed: int,
    position: int,
    stream: int = DRAW,
    ids: NDArray[np.intp] | None = None,
) -> int:
    """The place of the winner of the race: place i with probability `weights`[i] / their sum.

    Args:
        weights: [n], zero or more each, the largest about 1.
        seed, position, stream: as for `uniform`.
        ids: [n], the token ids of `weights`; None: 0 to n - 1.
    """
    key = np.uint64(race_key(seed, position, stream))
    if weights.size <= _FEW:
        near = np.arange(weights.size)
    else:
        # A good one bounds what can win: mostly the least number of its block rules a token out.
        heads = np.flatnonzero(weights > _HEAD * weights.max())[:_FEW]
        numbers = _exponentials(heads if ids is None else ids[heads], key)
        best = float((weights[heads] / numbers).max()) * (1.0 - 1e-9)
        last = weights.size - 1 if ids is None else int(ids.max())
        floors = best * _block_minima(_hashes(np.arange(last // _BLOCK + 1), ~key))
        if ids is None:
            peaks = np.maximum.reduceat(weights, np.arange(0, weights.size, _BLOCK))
            blocks = np.flatnonzero(floors <= peaks)
            near = np.add.outer(blocks * _BLOCK, np.arange(_BLOCK)).ravel()
            near = near[near < weights.size]
        else:
            near = np.flatnonzero(floors[ids // _BLOCK] <= weights)
    numbers = _exponentials(near if ids is None else ids[near], key)
    return int(near[(weights[near] / numbers).argmax()])


def race_key(seed: int, position: int, stream: int = DRAW) -> int:
    """What the exponential numbers of a race depend on, besides token ids: 64 bits."""
    return _bits(seed, position, stream)


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request with `seed`: the seed itself for the first."""
    return seed if index == 0 else _bits(seed, index, CHOICE)


def fresh_seed() -> int:
    """An unpredictable seed for a request that gave none."""
    return secrets.randbelow(SEED_LIMIT)


def _bits(seed: int, position: int, stream: int) -> int:
    """64 random bits: the first word of a Philox block."""
    key = np.array((seed, stream), dtype=np.uint64)
    return int(np.random.Philox(key=key, counter=position).random_raw())


def _hashes(ids: NDArray[np.intp], key: np.uint64) -> NDArray[np.uint64]:
    """[n] 64 random bits for each id: the id-th numbers of SplitMix64 (Steele et al., "Fast
    splittable pseudorandom number generators", OOPSLA'14) with the state `key`.
    """
    mixed = ids.astype(np.uint64)
    mixed += np.uint64(1)
    mixed *= _GAMMA
    mixed += key
    mixed ^= mixed >> np.uint64(30)
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _exponentials(ids: NDArray[np.intp], key: np.uint64) -> NDArray[np.float64]:
    """[n] independent exponential numbers of mean 1, above 0, for each id.

    The least of a block of ids is drawn, and whose it is; an exponential number has no memory, so
    each of the others is that and a further one.
    """
    block = _hashes(ids // _BLOCK, ~key)
    further = _logarithms(_hashes(ids, key))
    further[block % np.uint64(_BLOCK) == ids % _BLOCK] = 0.0
    further += _block_minima(block)
    return further


def _block_minima(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    minima = _logarithms(hashes)
    minima /= _BLOCK
    return minima


def _logarithms(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """[n] exponential numbers of mean 1, above 0, from the upper 52 bits each."""
    numbers = (hashes >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= -(2.0**-52)
    np.log1p(numbers, out=numbers)
    return np.negative(numbers, out=numbers)
