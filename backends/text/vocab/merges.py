"""Cuts text into pieces that merge independently, merges them into tokens, and caches the ids."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable
from typing import Final

SPACE_MARK: Final = "▁"
BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""The text of a token for a byte."""
Priority = Callable[[str, str], float | None]
"""Priority of joining two neighbours, smallest first; None if they cannot be joined."""

_INNER: Final = re.compile(f"[^{SPACE_MARK}](?={SPACE_MARK})")
_GONE: Final = -1
_MOST_WORDS: Final = 65_536
_LONGEST_WORD_CHARS: Final = 64


class Chunks:
    """Cuts text before the marks that begin a word.

    Merging never joins two characters that are adjacent in no token, so a cut between a character
    and a mark that follows it in no token does not change the result.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        """`tokens`: all tokens that merging may produce."""
        joined = {char for token in tokens for char in _INNER.findall(token)}
        inside = "".join(map(re.escape, sorted(joined)))
        goes_on = f"(?:(?<=[{inside}]){SPACE_MARK}+[^{SPACE_MARK}]*)*" if inside else ""
        self._chunk = re.compile(f"{SPACE_MARK}*[^{SPACE_MARK}]+{goes_on}|{SPACE_MARK}+", re.DOTALL)

    def cut(self, text: str) -> list[str]:
        """The pieces of `text`, which add up to `text`."""
        return self._chunk.findall(text)


def merged(parts: list[str], priority: Priority) -> list[str]:
    """`parts` with neighbours joined until no pair can be: the pair with the smallest priority
    first, the leftmost of equal ones. O(n log n).
    """
    size = len(parts)
    if size == 1:
        return parts
    parts = list(parts)
    following = list(range(1, size + 1))
    before = list(range(-1, size - 1))
    queue: list[tuple[float, int, int, int]] = []

    def consider(left: int, right: int) -> None:
        rank = priority(parts[left], parts[right])
        if rank is not None:
            heapq.heappush(queue, (rank, left, right, len(parts[left]) + len(parts[right])))

    for left in range(size - 1):
        consider(left, left + 1)
    while queue:
        _, left, right, length = heapq.heappop(queue)
        first, second = parts[left], parts[right]
        if not first or not second or len(first) + len(second) != length:
            continue
        parts[left], parts[right] = first + second, ""
        after = following[left] = following[right]
        if after < size:
            before[after] = left
            consider(left, after)
        if before[left] != _GONE:
            consider(before[left], left)
    return [part for part in parts if part]


class WordCache:
    """Caches `encode(word)` for short words; cleared when full. Thread-safe: at worst an entry is
    written twice with equal values.
    """

    def __init__(self, encode: Callable[[str], tuple[int, ...]]) -> None:
        self._encode = encode
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, words: list[str]) -> list[int]:
        """Token ids of `words`, one after the other."""
        known = self._known
        ids: list[int] = []
        for word in words:
            word_ids = known.get(word)
            if word_ids is None:
                word_ids = self._encode(word)
                if len(word) <= _LONGEST_WORD_CHARS:
                    if len(known) >= _MOST_WORDS:
                        known = self._known = {}
                    known[word] = word_ids
            ids += word_ids
        return ids
