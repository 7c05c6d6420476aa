"""The part of a logits row that sampling usually needs, for runners whose logits are on a device:
the thousand largest instead of the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.selection import Indices


@dataclass(slots=True)  # Not frozen: one is made per token, and freezing costs a microsecond.
class RaceSpec:
    """How a token is drawn from a shortlist, for a device that guesses the result."""

    key: int
    """Key of the race's random numbers (`random_stream.random_bits`)."""
    temperature: float
    top_k: int
    """0: off."""
    top_p: float
    min_p: float


@dataclass(slots=True)  # Not frozen, like `RaceSpec`.
class ShortlistSpec:
    """The shortlist that a row requests (`Sampler.shortlist`)."""

    count: int
    """How many of the largest logits; with 1, `Shortlist.best` is enough."""
    ids: Indices
    """Tokens whose logits are adjusted, which must be included; may have duplicates."""
    race: RaceSpec | None = None
    """None: the likeliest token is taken, or the draw depends on more than a `RaceSpec` has."""


@dataclass(slots=True)  # Not frozen, like `ShortlistSpec`.
class Shortlist:
    """The largest raw logits of one row, and bounds on the others."""

    best: int
    """Id of the largest logit; of equals, the lowest id."""
    ids: Indices
    """[n]: token ids, ascending and unique."""
    values: NDArray[np.float32]
    """[n]: the logits of `ids`."""
    floor: float
    """No other logit is larger than this."""
    log_sum: float
    """The natural log of the sum of exp(logits) over the whole vocabulary, to one part in a
    million; NaN if a logit is NaN or infinite.
    """
    vocab_size: int
    row: Callable[[], NDArray[np.float32]]
    """Fetches the whole row, [vocab_size]; valid until the next step."""
