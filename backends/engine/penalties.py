"""Repetition, frequency and presence penalties over a window of the last tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.sampling import SamplingParams
from hearth.backends.engine.selection import Sparse

_FIRST_CAPACITY: Final = 256


def penalise(logits: NDArray[np.float32], seen: Sparse, params: SamplingParams) -> None:
    """Penalise `seen` tokens in place: repetition first (arXiv 1909.05858), then frequency and
    presence.
    """
    ids, counts = seen
    values = logits[ids]
    if params.repetition_penalty != 1.0:
        penalty = np.float32(params.repetition_penalty)
        values = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty != 0.0:
        values -= np.float32(params.frequency_penalty) * counts
    if params.presence_penalty != 0.0:
        values -= np.float32(params.presence_penalty)
    logits[ids] = values


class SeenTokens:
    """How often each token occurs among the last `window` tokens.

    Args:
        window: number of last tokens that count; -1: all, 0: none.
        tokens: the prompt.
    """

    def __init__(self, window: int, tokens: Sequence[int] = ()) -> None:
        self._window = window
        self._last: deque[int] = deque()
        self._place: dict[int, int] = {}
        self._ids = np.empty(_FIRST_CAPACITY, dtype=np.intp)
        self._counts = np.empty(_FIRST_CAPACITY, dtype=np.float32)
        start = max(0, len(tokens) - window) if window >= 0 else 0
        for token in tokens[start:]:
            self.add(token)

    def add(self, token: int) -> None:
        """Add the next token; O(1)."""
        if self._window == 0:
            return
        self._count(token)
        if self._window > 0:
            self._last.append(token)
            if len(self._last) > self._window:
                self._forget(self._last.popleft())

    def copy(self) -> SeenTokens:
        """An independent copy."""
        made = SeenTokens(self._window)
        made._last, made._place = self._last.copy(), self._place.copy()
        made._ids, made._counts = self._ids.copy(), self._counts.copy()
        return made

    def entries(self) -> Sparse | None:
        """Token ids in the window and how often each occurs; None if the window is empty. Valid
        until the next token is added.
        """
        used = len(self._place)
        return (self._ids[:used], self._counts[:used]) if used else None

    def _count(self, token: int) -> None:
        place = self._place.get(token)
        if place is not None:
            self._counts[place] += 1
            return
        place = len(self._place)
        if place == self._ids.size:
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
        self._place[token] = place
        self._ids[place] = token
        self._counts[place] = 1

    def _forget(self, token: int) -> None:
        place = self._place[token]
        self._counts[place] -= 1
        if self._counts[place]:
            return
        end = len(self._place) - 1
        moved = int(self._ids[end])
        self._ids[place] = moved
        self._counts[place] = self._counts[end]
        self._place[moved] = place
        del self._place[token]
