"""What followed the last time that a sequence ended like this: drafts without a model."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Final

SHORTEST: Final = 3
"""Tokens that must match before anything is proposed."""
LONGEST: Final = 32
"""A match of as many tokens is as good as a longer one."""
MOST_PLACES: Final = 64
"""So many places are looked at, the most recent ones."""
_ID_BITS: Final = 21
_KEY_MASK: Final = (1 << SHORTEST * _ID_BITS) - 1


class NgramIndex:
    """The longest match of the end of a token sequence with an earlier part of it, incrementally.

    Places are chained by their last `SHORTEST` tokens, the most recent first, so that a token takes
    O(1) to add, and a look-up one comparison for each place that ends in the same tokens, of which
    it takes `MOST_PLACES`. Of
    matches of the same length, up to `LONGEST`, the most recent one counts.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        """By the last tokens: the most recent place after them, which is the number of tokens
        before it.
        """
        self._before: list[int] = [0]
        """For each place the one before with the same last tokens; 0: none."""
        self._key = 0

    def find(self, tokens: Seq[int]) -> tuple[int, int]:
        """The place of the token that may follow `tokens`, and how many matched before it; 0 and 0
        if none did.

        Args:
            tokens: those of the last call, and any number of further ones.
        """
        size = len(tokens)
        last, before, key = self._last, self._before, self._key
        for place in range(len(before), size):  # What follows the last token is not known.
            key = (key << _ID_BITS | tokens[place - 1]) & _KEY_MASK
            before.append(last.get(key, 0) if place >= SHORTEST else 0)
            last[key] = place
        self._key = key
        if size <= SHORTEST:
            return 0, 0
        place = last.get((key << _ID_BITS | tokens[-1]) & _KEY_MASK, 0)
        best, matched, places = 0, 0, MOST_PLACES
        while place and matched < LONGEST and places:
            places -= 1
            # Only a longer match counts: it begins with one comparison.
            if matched < place and tokens[place - matched - 1] == tokens[size - matched - 1]:
                length = 0
                while (
                    length < min(place, LONGEST)
                    and tokens[place - length - 1] == tokens[size - length - 1]
                ):
                    length += 1
                if length > matched:
                    best, matched = place, length
            place = before[place]
        return (best, matched) if matched >= SHORTEST else (0, 0)


def draft_from(tokens: Seq[int], place: int, most: int) -> list[int]:
    """`most` tokens that may follow `tokens`, as they follow `place`; what lies between repeats."""
    period = len(tokens) - place
    return [tokens[place + ahead % period] for ahead in range(most)]
