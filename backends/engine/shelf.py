"""Prefixes that are kept outside the key-value memory, where they cost those who run nothing."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from hearth.backends.engine.radix import RadixIndex
from hearth.backends.engine.runner import SavedState


@dataclass(frozen=True, slots=True)
class Shelved:
    """A saved sequence and how much of a prompt it has."""

    state: SavedState
    tokens: list[int]
    """All that it holds."""
    common: int
    """How many of its first tokens the prompt has too."""


class Shelf:
    """Saved sequences by what they begin with, the least recently used going first. Only for
    memories that keep their past: what is found may be cut to what is common.
    """

    def __init__(self) -> None:
        self._index = RadixIndex()
        self._states: dict[int, SavedState] = {}
        """The least recently used first."""
        self._added = 0
        self.tokens = 0
        """Of all of them; what several share is there several times."""

    def __len__(self) -> int:
        return len(self._states)

    def match(self, tokens: Seq[int]) -> int:
        """How many of the first of `tokens` one of them has."""
        return next((length for length, _ in self._index.candidates(tokens)), 0)

    def find(self, tokens: Seq[int]) -> Shelved | None:
        """The one that has most of the first of `tokens`; it stays, and counts as used now."""
        for common, holder in self._index.candidates(tokens):
            state = self._states[holder] = self._states.pop(holder)
            return Shelved(state, self._index.tokens(holder), common)
        return None

    def add(self, tokens: Seq[int], state: SavedState) -> None:
        """Keep `state`, which holds `tokens`, and drop those of which it has all tokens."""
        holder = self._added
        self._added += 1
        self._index.extend(holder, tokens)
        for covered in list(self._index.covered(holder)):
            self._drop(covered)
        self._states[holder] = state
        self.tokens += len(tokens)

    def shrink(self, most_tokens: int) -> None:
        """Drop the least recently used until the rest has at most `most_tokens`."""
        while self.tokens > most_tokens:
            self._drop(next(iter(self._states)))

    def check_integrity(self) -> None:
        """Raises AssertionError where index, states and sizes contradict each other."""
        self._index.check_integrity()
        assert set(self._index) == self._states.keys(), "what is found is there"
        assert self.tokens == sum(map(self._index.length, self._states))

    def _drop(self, holder: int) -> None:
        self.tokens -= self._index.length(holder)
        self._index.remove(holder)
        del self._states[holder]
