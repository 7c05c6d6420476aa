"""Random numbers that are a function of where they are used, so that nothing but the seed matters.

Counter-based: Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11)
with the key (seed, stream) and the counter (position, 0, 0, 0). The number at a position is the
same in every batch, after preemption, and whichever runner made the draws before it.
"""

from __future__ import annotations

import secrets
from typing import Final

import numpy as np

DRAW: Final = 0
"""The stream that picks the token."""
XTC: Final = 1
"""The stream that decides whether XTC acts."""

CHOICE: Final = 2
"""The stream that seeds of further choices come from."""

REDRAW: Final = 3
"""The stream that picks another token where a grammar does not allow the first."""

SEED_LIMIT: Final = 2**64


def uniform(seed: int, position: int, stream: int = DRAW) -> float:
    """A number in [0, 1) with 53 random bits.

    Args:
        seed: in [0, 2**64).
        position: index of the token that is drawn, in [0, 2**64).
        stream: independent numbers for the same position, in [0, 2**64).
    """
    key = np.array((seed, stream), dtype=np.uint64)
    bits = int(np.random.Philox(key=key, counter=position).random_raw())
    return float(bits >> 11) * 2.0**-53


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request with `seed`: the seed itself for the first."""
    if index == 0:
        return seed
    key = np.array((seed, CHOICE), dtype=np.uint64)
    return int(np.random.Philox(key=key, counter=index).random_raw())


def fresh_seed() -> int:
    """An unpredictable seed for a request that gave none."""
    return secrets.randbelow(SEED_LIMIT)
