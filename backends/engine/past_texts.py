"""What other requests read and wrote, to guess from: how a text went on that had the same tokens.

Texts of one namespace are never looked at for another one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np

from hearth.backends.engine.ngram import LONGEST

SHORTEST_OF_OTHERS: Final = 6
"""Tokens that must match before what followed in another text is proposed."""
HALF_TOKENS: Final = 1 << 15
"""Tokens of texts that are held of each namespace, and up to as many older ones;"""
MOST_NAMESPACES: Final = 4
"""of the namespaces that were used last."""
_END: Final = -1
"""Follows each text."""
_HEADS: Final = 2 * HALF_TOKENS
_SHIFT: Final = 64 - (_HEADS - 1).bit_length()
_FACTOR: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class _Half:
    """Texts one after the other, and where each `SHORTEST_OF_OTHERS` tokens were last."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self._heads = array("i", bytes(4 * _HEADS))
        """By a hash of the tokens before it: a place; 0: none."""

    @property
    def nbytes(self) -> int:
        return 4 * (len(self.tokens) + _HEADS)

    def add(self, text: array[int]) -> None:
        """A whole text."""
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
        """As `NgramIndex.find`, of `key`, a sum of the last of `known`."""
        place = self._heads[(key * _FACTOR & _MASK) >> _SHIFT]
        length = 0
        while length < min(place, LONGEST, len(known)) and (
            self.tokens[place - length - 1] == known[-length - 1]
        ):
            length += 1
        return (place, length) if length >= SHORTEST_OF_OTHERS else (0, 0)


class PastTexts:
    """The last texts of one namespace.

    They are in two halves: when the younger one is full it takes the place of the older one, which
    is forgotten. A text takes a few nanoseconds a token to add, and a look-up about a microsecond
    however much is held.
    """

    def __init__(self) -> None:
        self.halves: list[_Half] = []
        """The younger one first."""
        self._new: list[array[int]] = []
        """Texts that are not in a half yet: the next look-up puts them there."""

    @property
    def nbytes(self) -> int:
        return sum(half.nbytes for half in self.halves) + sum(4 * len(one) for one in self._new)

    def add(self, tokens: Seq[int], start: int) -> None:
        """A text ended, of which the tokens from `start` on are new."""
        start = max(0, start - SHORTEST_OF_OTHERS, len(tokens) - HALF_TOKENS + 1)
        if len(tokens) - start > SHORTEST_OF_OTHERS:
            self._new.append(array("i", tokens[start:]))
            while sum(map(len, self._new)) > HALF_TOKENS:  # No request looks.
                del self._new[0]

    def find(self, known: Seq[int]) -> tuple[_Half, int, int] | None:
        """Where a text is that had the end of `known`: its half, the place there of what followed,
        and how many tokens matched.
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
    """Follows one text in those of others."""

    def __init__(self) -> None:
        self._half: _Half | None = None
        self._place = self._size = self._matched = 0

    def find(self, known: Seq[int], past: PastTexts, most: int) -> tuple[list[int], int]:
        """What may follow `known`, at most `most` tokens, and how many tokens matched before it;
        nothing and 0 if none did.

        Args:
            known: those of the last call, and any number of further ones.
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
            found = past.find(known)
            if found is None:
                return [], 0
            half, self._place, self._matched = found
        self._half, self._size = half, len(known)
        tokens = half.tokens[self._place : self._place + most].tolist()
        if _END in tokens:
            del tokens[tokens.index(_END) :]
        return tokens, min(self._matched, LONGEST)


class TextsByNamespace:
    """The texts of each namespace: the engine's."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, PastTexts] = OrderedDict()

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self._texts.values())

    def of(self, namespace: bytes) -> PastTexts | None:
        """None: there are none."""
        return self._texts.get(namespace)

    def add(self, namespace: bytes, tokens: Seq[int], start: int) -> None:
        """As `PastTexts.add`."""
        texts = self._texts.setdefault(namespace, PastTexts())
        self._texts.move_to_end(namespace)
        if len(self._texts) > MOST_NAMESPACES:
            self._texts.popitem(last=False)
        texts.add(tokens, start)

    def clear(self) -> None:
        """Forget all."""
        self._texts.clear()
