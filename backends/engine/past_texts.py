"""Texts of past requests as a source of drafts: how a text that had the same tokens continued."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np

from hearth.backends.engine.ngram import LONGEST

SHORTEST_OF_OTHERS: Final = 6
"""Minimum number of matching tokens before a continuation from another text is proposed."""
HALF_TOKENS: Final = 1 << 15
"""Size of each of the two halves of the texts, in tokens."""
_END: Final = -1
"""Marks the end of each text."""
_HEADS: Final = 2 * HALF_TOKENS
_SHIFT: Final = 64 - (_HEADS - 1).bit_length()
_FACTOR: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class _Half:
    """Concatenated texts, and the last place of each run of `SHORTEST_OF_OTHERS` tokens."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self._heads = array("i", bytes(4 * _HEADS))
        """Hash of the tokens before a place -> the place; 0 if none."""

    @property
    def nbytes(self) -> int:
        return 4 * (len(self.tokens) + _HEADS)

    def add(self, text: array[int]) -> None:
        """Add a whole text."""
        start = len(self.tokens)
        self.tokens += text
        self.tokens.append(_END)
        count = len(text) - SHORTEST_OF_OTHERS
        if count < 1:
            return
        tokens = np.frombuffer(self.tokens, np.int32)[start:].astype(np.uint64)
        keys = np.zeros(count, np.uint64)
        for at in range(SHORTEST_OF_OTHERS):
            keys = keys * np.uint64(_FACTOR) + tokens[at : at + count]
        places = np.arange(count, dtype=np.int32) + (start + SHORTEST_OF_OTHERS)
        heads = np.frombuffer(self._heads, np.int32)
        heads[(keys * np.uint64(_FACTOR)) >> np.uint64(_SHIFT)] = places

    def find(self, key: int, known: Seq[int]) -> tuple[int, int]:
        """Like `NgramIndex.find`; `key` is the rolling hash of the last tokens of `known`."""
        place = self._heads[(key * _FACTOR & _MASK) >> _SHIFT]
        length = 0
        while length < min(place, LONGEST, len(known)) and (
            self.tokens[place - length - 1] == known[-length - 1]
        ):
            length += 1
        return (place, length) if length >= SHORTEST_OF_OTHERS else (0, 0)


class PastTexts:
    """The last texts.

    They are stored in two halves: when the younger one is full, it replaces the older one, which is
    dropped. Adding a text takes a few nanoseconds per token, and a look-up about a microsecond,
    independent of how much is held.
    """

    def __init__(self) -> None:
        self.halves: list[_Half] = []
        """The younger half first."""
        self._new: list[array[int]] = []
        """Texts that are not in a half yet; the next look-up moves them there."""

    @property
    def nbytes(self) -> int:
        return sum(half.nbytes for half in self.halves) + sum(4 * len(one) for one in self._new)

    def add(self, tokens: Seq[int], start: int) -> None:
        """Add a text that ended, of which the tokens from `start` on are new."""
        start = max(0, start - SHORTEST_OF_OTHERS, len(tokens) - HALF_TOKENS + 1)
        if len(tokens) - start > SHORTEST_OF_OTHERS:
            self._new.append(array("i", tokens[start:]))
            while sum(map(len, self._new)) > HALF_TOKENS:  # No look-up moved them to a half.
                del self._new[0]

    def find(self, known: Seq[int]) -> tuple[_Half, int, int] | None:
        """Find a text that contains the end of `known`: its half, the place there of the token that
        followed, and how many tokens matched.
        """
        for text in self._new:
            if not self.halves or len(self.halves[0].tokens) + len(text) >= HALF_TOKENS:
                self.halves = [_Half(), *self.halves[:1]]
            self.halves[0].add(text)
        self._new.clear()
        if not self.halves or len(known) < SHORTEST_OF_OTHERS:
            return None
        key = 0
        for token in known[-SHORTEST_OF_OTHERS:]:
            key = (key * _FACTOR + token) & _MASK
        for half in self.halves:
            place, length = half.find(key, known)
            if length and half.tokens[place] != _END:
                return half, place, length
        return None


class Follower:
    """Follows one text within the texts of others."""

    def __init__(self) -> None:
        self._half: _Half | None = None
        self._place = self._size = self._matched = 0

    def find(self, known: Seq[int], past: PastTexts, most: int) -> tuple[list[int], int]:
        """At most `most` tokens that may follow `known`, and how many tokens before them match;
        ([], 0) if none.

        Args:
            known: the tokens of the last call, followed by any number of new ones.
        """
        half = self._half
        if half is not None:
            new = array("i", known[self._size :])
            is_there = any(half is one for one in past.halves)
            if is_there and half.tokens[self._place : self._place + len(new)] == new:
                self._place += len(new)
                self._matched += len(new)
            else:
                half = None
        if half is None or half.tokens[self._place] == _END:
            self._half = None
            match = past.find(known)
            if match is None:
                return [], 0
            half, self._place, self._matched = match
        self._half, self._size = half, len(known)
        tokens = half.tokens[self._place : self._place + most].tolist()
        if _END in tokens:
            del tokens[tokens.index(_END) :]
        return tokens, min(self._matched, LONGEST)
