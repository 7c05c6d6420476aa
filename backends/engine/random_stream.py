"""Random numbers as a function of where they are used, so that they depend only on the seed.

Counter-based: Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11)
with the key (seed, stream) and the counter (position, 0, 0, 0). The number at a position is the
same in every batch, after preemption, and with any runner for the draws before it.

Tokens are drawn by a race: each token has an exponential random number E of (seed, position, token
id), and the largest p / E wins, which is token t with probability p(t). If the law changes a
little, as between a model and its draft model, the winner mostly stays the same: two laws with
total variation distance d agree with probability (1 - d) / (1 + d) or more (arXiv 2009.06114).
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
"""The stream for the seeds of further choices."""

REDRAW: Final = 3
"""The stream that picks another token if the grammar does not allow the first."""

GUESS: Final = 4
"""The stream that picks drafted tokens, with rejection sampling."""
ACCEPT: Final = 5
"""The stream that decides whether drafted tokens are accepted."""
RECOVER: Final = 6
"""The stream that picks a token where a drafted one was rejected."""

SEED_LIMIT: Final = 2**64
_BLOCK: Final = 64
"""Number of ids per block; the smallest exponential number of a block is drawn as one number."""
_FEW: Final = 1024
"""Races of more tokens than this are narrowed first."""
_HEAD: Final = 0.1
"""Tokens above this fraction of the largest weight give a bound that narrows the race."""
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def uniform(seed: int, position: int, stream: int = DRAW) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: in [0, 2**64).
        position: index of the drawn token, in [0, 2**64).
        stream: selects independent numbers for the same position, in [0, 2**64).
    """
    return float(random_bits(seed, position, stream) >> 11) * 2.0**-53


def random_bits(seed: int, position: int, stream: int = DRAW) -> int:
    """64 random bits: the first word of a Philox block. With the token ids they determine the
    exponential numbers of a race.
    """
    key = np.array((seed, stream), dtype=np.uint64)
    return int(np.random.Philox(key=key, counter=position).random_raw())


def race(
    weights: NDArray[np.floating[Any]],
    seed: int,
    position: int,
    stream: int = DRAW,
    ids: NDArray[np.intp] | None = None,
) -> int:
    """The index of the winner of the race: index i with probability `weights`[i] / their sum.

    Args:
        weights: [n], non-negative, the largest about 1.
        seed, position, stream: as for `uniform`.
        ids: [n], the token ids of `weights`; None: 0 to n - 1.
    """
    key = np.uint64(random_bits(seed, position, stream))
    if weights.size <= _FEW:
        near = np.arange(weights.size)
    else:
        # A good result bounds what can win: most tokens are ruled out by their block's minimum.
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


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request with `seed`: the seed itself for the first."""
    return seed if index == 0 else random_bits(seed, index, CHOICE)


def fresh_seed() -> int:
    """An unpredictable seed for a request that specified none."""
    return secrets.randbelow(SEED_LIMIT)


def _hashes(ids: NDArray[np.intp], key: np.uint64) -> NDArray[np.uint64]:
    """[n] 64 random bits for each id: the id-th number of SplitMix64 (Steele et al., "Fast
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
    """[n] independent exponential numbers of mean 1, above 0, one for each id.

    The minimum of each block of ids is drawn, and which id has it. The exponential distribution is
    memoryless, so every other number of the block is that minimum plus an independent one.
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
    """[n] exponential numbers of mean 1, above 0, each from the upper 52 bits of a hash."""
    numbers = (hashes >> np.uint64(12)).astype(np.float64)
    numbers += 0.5
    numbers *= -(2.0**-52)
    np.log1p(numbers, out=numbers)
    return np.negative(numbers, out=numbers)
