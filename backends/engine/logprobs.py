"""Log probabilities under the model's own distribution: raw logits, before any sampling step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.events import TokenLogprob
from hearth.backends.engine.selection import largest
from hearth.backends.errors import InternalError


class Piece(Protocol):
    """The bytes of a token (`Tokenizer.piece`)."""

    def __call__(self, token_id: int, *, special: bool = False) -> bytes: ...


def log_normaliser(logits: NDArray[np.float32], position: int | None = None) -> float:
    """The natural log of the sum of exp(`logits`), which are [V] float32; `position` is for the
    error.

    Raises:
        InternalError: the sum is not finite.
    """
    peak = float(logits.max())
    if not math.isfinite(peak):
        raise not_finite(position)
    return peak + math.log(float(np.exp(logits - peak).sum()))


def not_finite(position: int | None = None) -> InternalError:
    """The error for logits that are NaN, or of which the largest is infinite."""
    where = "" if position is None else f" at position {position}"
    data = {} if position is None else {"position": position}
    return InternalError(
        f"The model produced logits that are not finite numbers{where}.",
        "The model file may be damaged: check its sha256, or try another quantization.",
        **data,
    )


def logprob_of(logits: NDArray[np.float32], token_id: int, normaliser: float) -> float:
    """The natural log probability of one token; `normaliser` comes from `log_normaliser`."""
    return min(0.0, float(logits[token_id]) - normaliser)


def top_logprobs(
    logits: NDArray[np.float32], count: int, normaliser: float
) -> tuple[tuple[int, float], ...]:
    """(id, natural log probability) of the `count` likeliest tokens, best first, ties to the lowest
    id.
    """
    ids = largest(logits, count)
    return tuple((int(token), logprob_of(logits, int(token), normaliser)) for token in ids)


def named(
    token_id: int, logprob: float, top: Iterable[tuple[int, float]], piece: Piece
) -> TokenLogprob:
    """A token and the likeliest tokens at its position, with their texts.

    Args:
        top: (id, natural log probability) of the likeliest tokens.
    """

    def text(ident: int) -> str:
        return piece(ident, special=True).decode(errors="replace")

    likeliest = tuple((ident, text(ident), value) for ident, value in top)
    return TokenLogprob(token_id, text(token_id), logprob, likeliest)
