"""Drafts by Medusa heads (arXiv 2401.10774): what follows a token, guessed from the last hidden
state that a step left, as a chain or as a tree of the likeliest continuations.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.drafts import Draft
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Drafter

CHOICES: Final = 4
"""Tokens of a head that a tree may have under one node."""
_LAST_CALLS: Final = 8

Guesses = Seq[Seq[tuple[float, int]]]
"""By head: (log probability, token) of its likeliest ones, the likeliest first."""


class Heads(Protocol):
    """Medusa heads of a model, on its device."""

    @property
    def count(self) -> int:
        """Heads, of which the first guesses the token after the one that is drawn next."""
        ...

    @property
    def nbytes(self) -> int: ...

    def guesses(self, hidden: Seq[Any], heads: int, choices: int) -> list[Guesses]:
        """For each of the states `hidden`, what the first `heads` heads say."""
        ...


@runtime_checkable
class TakesHeads(Protocol):
    """A runner that can have heads, and then gives hidden states with its steps."""

    def load_heads(self, path: Path) -> tuple[Heads, bool]:
        """And whether its steps take trees. Raises as `read_heads`."""
        ...


class HeadsDrafter(Drafter):
    """Guesses tokens by heads.

    Args:
        trees: whether steps take trees; otherwise a draft is the likeliest token of each head.
        clock: seconds, for `call_s`.
    """

    def __init__(
        self, heads: Heads, *, trees: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._heads = heads
        self._trees = trees
        self._clock = clock
        self._hidden: dict[Sequence, tuple[int, Any]] = {}
        """For each sequence, after how many tokens, and the state that the last was drawn from."""
        self._seconds: deque[float] = deque(maxlen=_LAST_CALLS)

    @property
    def mode(self) -> Speculate:
        return "medusa"

    @property
    def token_s(self) -> float:
        return 0.0

    @property
    def call_s(self) -> float:
        return min(self._seconds, default=0.0)

    @property
    def nbytes(self) -> int:
        return self._heads.nbytes

    @property
    def most(self) -> int | None:
        """Tokens of a draft at most; None: as many as may be."""
        return None if self._trees else self._heads.count

    def observe(self, sequence: Sequence, hidden: Any) -> None:
        """The last token of `sequence` was drawn from the state `hidden`."""
        self._hidden[sequence] = (sequence.total, hidden)

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether the state before its last token is known."""
        held = self._hidden.get(sequence)
        return held is not None and held[0] == sequence.total

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """As many tokens as given for each sequence, or fewer, of those that `can_draft`."""
        began = self._clock()
        heads = min(self._heads.count, max(lengths.values()))
        choices = CHOICES if self._trees else 1
        states = [self._hidden[sequence][1] for sequence in lengths]
        found = self._heads.guesses(states, heads, choices)
        each = zip(lengths.items(), found, strict=True)
        drafts = {sequence: tree_of(guesses, length) for (sequence, length), guesses in each}
        self._seconds.append(self._clock() - began)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        self._hidden.pop(sequence, None)


def tree_of(guesses: Guesses, most: int) -> Draft:
    """The `most` likeliest of the continuations that `guesses` allow, where a token's chance is
    that of its head, whatever came before it.

    A token is named by the ranks, in their heads, of those on the way to it. The likeliest child
    of a node comes before its others and after itself, so the heap holds what may be next.
    """
    heap: list[tuple[float, tuple[int, ...]]] = [(-guesses[0][0][0], (0,))]
    chosen: list[tuple[int, ...]] = []
    while heap and len(chosen) < most:
        cost, ranks = heapq.heappop(heap)
        chosen.append(ranks)
        depth, rank = len(ranks) - 1, ranks[-1]
        level = guesses[depth]
        if rank + 1 < len(level):
            more = level[rank][0] - level[rank + 1][0]
            heapq.heappush(heap, (cost + more, (*ranks[:-1], rank + 1)))
        if depth + 1 < len(guesses):
            heapq.heappush(heap, (cost - guesses[depth + 1][0][0], (*ranks, 0)))
    chosen.sort()  # Ancestors first, and the likeliest way in one piece.
    places = {ranks: place for place, ranks in enumerate(chosen, 1)}
    tokens = [guesses[len(ranks) - 1][ranks[-1]][1] for ranks in chosen]
    parents = [places.get(ranks[:-1], 0) for ranks in chosen]
    return Draft(tokens, parents=() if parents == list(range(len(parents))) else parents)
