"""Log probabilities under the model's own distribution: of the raw logits, before all steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.selection import largest


def log_normaliser(logits: NDArray[np.float32]) -> float:
    """The natural log of the sum of exp(`logits`); `logits` [V] float32 with a finite maximum."""
    peak = logits.max()
    total = float(np.exp(logits - peak).sum())
    return float(peak) + math.log(total)


def logprob_of(logits: NDArray[np.float32], token_id: int, normaliser: float) -> float:
    """The natural log probability of one token; `normaliser` as `log_normaliser` gives it."""
    return min(0.0, float(logits[token_id]) - normaliser)


def top_logprobs(
    logits: NDArray[np.float32], count: int, normaliser: float
) -> tuple[tuple[int, float], ...]:
    """(id, natural log probability) of the `count` likeliest, best first, ties to the lowest id."""
    ids = largest(logits, count)
    return tuple((int(token), logprob_of(logits, int(token), normaliser)) for token in ids)
