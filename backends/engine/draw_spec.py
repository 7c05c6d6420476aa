"""One draw of a token: what it depends on besides the logits, and what comes of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.selection import Indices

Sparse = tuple[Indices, NDArray[np.float32]]
"""Token ids, each once, and a number for each."""


@dataclass(slots=True)  # Not frozen: one a token is made, and freezing costs a microsecond.
class Drawn:
    """A token, and what the model itself thought of it where log probabilities were asked for."""

    id: int
    logprob: float | None = None
    """Natural log, under the raw logits."""
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the likeliest tokens, best first."""


@dataclass(slots=True)  # Not frozen, like `Drawn`.
class DrawSpec:
    """Everything that the draw of one token depends on besides the logits, so that it can be made
    where the logits are.

    Logits are adjusted by `bias`, `seen`, `repeated` and `banned`, in this order; then come the
    steps of `params`. The arrays are the sampler's own: they are valid until it accepts a token.
    """

    params: SamplingParams
    number: float
    """In [0, 1): picks the token. 0 where the draw is greedy."""
    is_xtc_active: bool
    """XTC acts on this token, if it finds two top choices."""
    bias: Sparse | None
    """What is added to logits; -inf for tokens that the bias bans."""
    seen: Sparse | None
    """How often tokens occur in the window of the repetition, frequency and presence penalties."""
    repeated: Sparse | None
    """What DRY subtracts."""
    banned: Collection[int]
    """Ids that may not be drawn, whatever their logits."""

    @property
    def is_greedy(self) -> bool:
        return self.params.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """Whether the draw is from anything but the raw logits."""
        return (
            self.bias is not None
            or self.seen is not None
            or self.repeated is not None
            or len(self.banned) > 0
        )
