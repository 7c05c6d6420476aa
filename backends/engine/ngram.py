"""Drafts without a model: the tokens that followed the last time the sequence had the same end."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Final

SHORTEST: Final = 3
"""Minimum number of tokens that must match before a draft is proposed."""
LONGEST: Final = 32
"""Matches are not measured beyond this many tokens."""
MOST_PLACES: Final = 64
"""Maximum number of places that a look-up compares, most recent first."""
_ID_BITS: Final = 21
_KEY_MASK: Final = (1 << SHORTEST * _ID_BITS) - 1


class NgramIndex:
    """Finds the longest match of the end of a token sequence with an earlier part, incrementally.

    Places are chained by their last `SHORTEST` tokens, most recent first. Adding a token is O(1). A
    look-up makes one comparison for each place that ends in the same tokens, for at most
    `MOST_PLACES` of them. Among matches of equal length, up to `LONGEST`, the most recent one wins.
    """

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        """Key of the last `SHORTEST` tokens -> the most recent place after them. A place is the
        number of tokens before it.
        """
        self._before: list[int] = [0]
        """For each place, the previous place with the same last tokens; 0 if none."""
        self._key = 0

    def find(self, tokens: Seq[int]) -> tuple[int, int]:
        """The place of the token that may follow `tokens`, and how many tokens before it match;
        (0, 0) if none.

        Args:
            tokens: the tokens of the last call, followed by any number of new ones.
        """
        size = len(tokens)
        last, before, key = self._last, self._before, self._key
        for place in range(len(before), size):  # The token after the last one is unknown.
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
            # Only a longer match counts, which one comparison can rule out.
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
    """`most` tokens that may follow `tokens`: those from `place` on, repeated periodically."""
    period = len(tokens) - place
    return [tokens[place + ahead % period] for ahead in range(most)]
