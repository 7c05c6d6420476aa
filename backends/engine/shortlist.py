"""The part of a row of logits that a sample needs as a rule, for runners whose logits are on a
device: a thousand of the largest instead of a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.selection import Indices


@dataclass(slots=True)  # Not frozen: one a token is made, and freezing costs a microsecond.
class RaceSpec:
    """How a token is drawn from a shortlist, for a device that guesses which it will be."""

    key: int
    """Of the race's random numbers (`random_stream.race_key`)."""
    temperature: float
    top_k: int
    """0: it is off."""
    top_p: float
    min_p: float


@dataclass(slots=True)  # Not frozen, like `RaceSpec`.
class ShortlistSpec:
    """What a row asks for (`Sampler.shortlist`)."""

    count: int
    """How many of the largest logits; with 1, `Shortlist.best` is enough."""
    ids: Indices
    """Tokens whose logits are adjusted, which must be among them; may repeat."""
    race: RaceSpec | None = None
    """None: the likeliest token is taken, or what is drawn depends on more."""


@dataclass(slots=True)  # Not frozen, like `ShortlistSpec`.
class Shortlist:
    """The largest logits of one row, as the model gave them, and what is known of the others."""

    best: int
    """Id of the largest logit; of equals the lowest."""
    ids: Indices
    """[n]: ascending, each once."""
    values: NDArray[np.float32]
    """[n]: their logits."""
    floor: float
    """No other logit is larger."""
    log_sum: float
    """The natural log of the sum of exp(logits) of the whole vocabulary, to one part in a million;
    NaN where a logit is NaN or infinite.
    """
    vocab_size: int
    row: Callable[[], NDArray[np.float32]]
    """Fetches the whole row, [vocab_size]; valid until the next step."""
