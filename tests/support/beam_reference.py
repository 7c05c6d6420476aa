"""Beam search by recomputing everything: the reference for the engine's beam search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

Hypothesis = tuple[float, list[int]]


def brute_force(
    logits: Callable[[list[list[int]]], Sequence[NDArray[np.float32]]],
    prompt: Sequence[int],
    width: int,
    most: int,
    *,
    ends: Collection[int] = (),
    length_penalty: float = 1.0,
    early_stopping: bool | str = False,
) -> list[list[int]]:
    """The tokens of the best `width` hypotheses of at most `most` tokens, without the end token,
    the best first.

    Args:
        logits: [V] after each of several texts.
    """
    going: list[Hypothesis] = [(0.0, [])]
    ended: list[Hypothesis] = []
    for length in range(1, most + 1):
        ranked: list[Hypothesis] = []
        rows = logits([[*prompt, *tokens] for _, tokens in going])
        for (score, tokens), row in zip(going, rows, strict=True):
            logprobs = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
            likeliest = np.argsort(-logprobs, kind="stable")[: width * (2 + len(ends))]
            ranked += [(score + float(logprobs[t]), [*tokens, int(t)]) for t in likeliest]
        ranked.sort(key=lambda one: -one[0])
        going = []
        for rank, (score, tokens) in enumerate(ranked):
            is_end = tokens[-1] in ends
            if is_end or length == most:
                if rank < width:
                    ended.append((score / length**length_penalty, tokens[: len(tokens) - is_end]))
            elif len(going) < width:
                going.append((score, tokens))
            if rank > width * (1 + max(1, len(ends))):
                break
        ended = sorted(ended, key=lambda one: -one[0])[:width]
        if length == most or not going:
            break
        if len(ended) == width:
            reach = most if early_stopping == "never" and length_penalty > 0 else length
            best = max(score for score, _ in going) / reach**length_penalty
            if early_stopping is True or best <= ended[-1][0]:
                break
    return [tokens for _, tokens in ended]
