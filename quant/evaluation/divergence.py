"""Scores of a text by a model's logits, alone and compared with a reference, in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.quant.evaluation.errors import BadLogits, NotComparable

Logits = NDArray[np.float32]
"""[tokens, vocabulary]."""
_Floats = NDArray[np.float64]


@dataclass(slots=True)
class TokenScores:
    """Measurements of each scored token; without a reference the last three lists are empty."""

    losses: list[float] = field(default_factory=list)
    """Negative log probability of the token, in nats."""
    divergences: list[float] = field(default_factory=list)
    """Kullback-Leibler divergence of the model's distribution from the reference's, in nats:
    Σ p_ref · (ln p_ref - ln p).
    """
    same_top: list[float] = field(default_factory=list)
    """1 if both have the same most likely token, else 0."""
    shifts: list[float] = field(default_factory=list)
    """Δp: the token's probability by the model less its probability by the reference."""

    def add(self, logits: Logits, targets: NDArray[np.int64], reference: Logits | None) -> None:
        """Score more tokens.

        Args:
            logits: for each token, the logits after everything before it.
            targets: [tokens], the ids of the tokens.
            reference: the reference's logits for the same tokens.

        Raises:
            BadLogits: some logits are NaN or +infinity.
            NotComparable: `reference` is of another vocabulary.
        """
        own = log_softmax(logits)
        at = np.arange(len(targets)), targets
        self.losses += (-own[at]).tolist()
        if reference is None:
            return
        if reference.shape != logits.shape:
            raise NotComparable(
                f"The model's vocabulary has {logits.shape[1]:,} tokens, that of the reference "
                f"{reference.shape[1]:,}.",
                "Compare a model with one that it was made of.",
            )
        theirs = log_softmax(reference)
        chances = np.exp(theirs)
        # 0 · ln 0 is 0.
        ratios = np.subtract(theirs, own, out=np.zeros_like(own), where=chances > 0)
        self.divergences += np.einsum("tv,tv->t", chances, ratios).tolist()
        self.same_top += (own.argmax(1) == theirs.argmax(1)).astype(float).tolist()
        self.shifts += (np.exp(own[at]) - chances[at]).tolist()

    def facts(self) -> dict[str, Any]:
        """The scores as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


def log_softmax(logits: Logits) -> _Floats:
    """Log probabilities. Raises `BadLogits` for NaN, +infinity, and rows of only -infinity."""
    exact = logits.astype(np.float64)
    top = exact.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise BadLogits(
            "The model computed logits that are not finite numbers.",
            "The file may be damaged (`hearth show --verify`); try another quantization.",
        )
    exact -= top
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    return exact
