"""Merging the characters of a word into tokens, best pair first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

Priority = Callable[[str, str], float | None]
"""Of joining two neighbours, the smallest first; None where they cannot be joined."""

_GONE: Final = -1


def merged(parts: list[str], priority: Priority) -> list[str]:
    """`parts` with neighbours joined until no pair can be: the pair of the smallest priority first,
    of equal ones the leftmost. O(n log n).
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
