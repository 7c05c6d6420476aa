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
from hearth.backends.engine.runner import Row, StepPlan
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
        trees: a draft is a tree; else the likeliest token of each head.
        clock: seconds, for `call_s`.
    """

    def __init__(
        self, heads: Heads, *, trees: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._heads = heads
        self._trees = trees
        self._clock = clock
        self._last: tuple[StepPlan, Any] | None = None
        """The last step that gave hidden states, and these,"""
        self._rows: dict[int, tuple[Row, int]] = {}
        """and by slot the rows of it, and where their states are; once that was asked for."""
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
        """Those of the heads count once, where they draft both ways."""
        return 0 if self._trees else self._heads.nbytes

    @property
    def most(self) -> int | None:
        """Tokens of a draft at most; None: as many as may be."""
        return None if self._trees else self._heads.count

    def observe(self, plan: StepPlan, hidden: Any) -> None:
        """See the protocol; valid until the next step."""
        self._last, self._rows = (plan, hidden), {}

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether the state that its last token was drawn from is known."""
        return self._state(sequence) is not None

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """As many tokens as given for each sequence, or fewer, of those that `can_draft`."""
        began = self._clock()
        heads = min(self._heads.count, max(lengths.values()))
        choices = CHOICES if self._trees else 1
        states = [self._state(sequence) for sequence in lengths]
        guesses = self._heads.guesses(states, heads, choices)
        each = zip(lengths.items(), guesses, strict=True)
        drafts = {sequence: tree_of(one, length) for (sequence, length), one in each}
        self._seconds.append(self._clock() - began)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Nothing is held but states of the last step."""

    def _state(self, sequence: Sequence) -> Any:
        """What its last token was drawn from; None: that is not known."""
        if self._last is None or sequence.slot is None:
            return None
        plan, hidden = self._last
        if not self._rows:
            at = 0
            for row in plan.rows:
                self._rows[row.slot] = row, at
                at += row.outputs
        held = self._rows.get(sequence.slot)
        if held is None or not held[0].outputs:
            return None
        row, at = held
        known = row.start + sequence.dropped + len(row.tokens) - row.drafts
        path = row.path(sequence.tokens[known:])
        if known + len(path) + 1 != sequence.total:
            return None
        return hidden[at + row.outputs - 1 - row.drafts + (path[-1] if path else 0)]


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
