"""Token ids of words met before: ordinary text repeats itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MOST_WORDS: Final = 65_536
_LONGEST_WORD_CHARS: Final = 64


class WordCache:
    """Remembers `encode(word)` for short words; starts again when it is full. Thread-safe: an entry
    is written once more with an equal value at worst.
    """

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, words: list[str]) -> list[int]:
        """Token ids of `words`, one after the other."""
        known = self._known
        ids: list[int] = []
        for word in words:
            found = known.get(word)
            if found is None:
                found = self._encode(word)
                if len(word) <= _LONGEST_WORD_CHARS:
                    if len(known) >= _MOST_WORDS:
                        known = self._known = {}
                    known[word] = found
            ids += found
        return ids
