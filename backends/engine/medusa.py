"""Drafts by Medusa heads (arXiv 2401.10774), which guess the next tokens from the last hidden state
of a step, as a chain or as a tree of the likeliest continuations.
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
"""Maximum number of children of a tree node; all of them come from the same head."""
_LAST_CALLS: Final = 8

Guesses = Seq[Seq[tuple[float, int]]]
"""For each head, (log probability, token) of its likeliest tokens, likeliest first."""


class Heads(Protocol):
    """Medusa heads of a model, on its device."""

    @property
    def count(self) -> int:
        """Number of heads. The first one guesses the token after the one that is drawn next."""
        ...

    @property
    def nbytes(self) -> int: ...

    def guesses(self, hidden: Seq[Any], heads: int, choices: int) -> list[Guesses]:
        """For each of the states `hidden`, the `choices` likeliest tokens of the first `heads`
        heads.
        """
        ...


@runtime_checkable
class TakesHeads(Protocol):
    """A runner that can load heads, and then returns hidden states with its steps."""

    def load_heads(self, path: Path) -> tuple[Heads, bool]:
        """Returns the heads, and whether steps accept trees. Raises the errors of `read_heads`."""
        ...


class HeadsDrafter(Drafter):
    """Guesses tokens with heads.

    Args:
        trees: drafts are trees; otherwise they are chains of the likeliest token of each head.
        clock: seconds, for `call_s`.
    """

    def __init__(
        self, heads: Heads, *, trees: bool, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._heads = heads
        self._trees = trees
        self._clock = clock
        self._last: tuple[StepPlan, Any] | None = None
        """The last step that returned hidden states, and those states."""
        self._rows: dict[int, tuple[Row, int]] = {}
        """By slot: the row of that step, and the index of its first state. Filled on first use."""
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
        """Bytes of the heads. Trees report 0, because the heads are shared with the drafter of
        chains and count once.
        """
        return 0 if self._trees else self._heads.nbytes

    @property
    def most(self) -> int | None:
        """Maximum number of tokens of a draft; None: no limit."""
        return None if self._trees else self._heads.count

    def observe(self, plan: StepPlan, hidden: Any) -> None:
        """See the protocol; valid until the next step."""
        self._last, self._rows = (plan, hidden), {}

    def can_draft(self, sequence: Sequence) -> bool:
        """Whether the hidden state that its last token was drawn from is known."""
        return self._state(sequence) is not None

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """See the protocol. All sequences must satisfy `can_draft`."""
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
        """Nothing to release: only the states of the last step are held."""

    def _state(self, sequence: Sequence) -> Any:
        """The hidden state that its last token was drawn from; None if unknown."""
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
    """The tree of the `most` likeliest continuations in `guesses`. The probability of a token is
    the one its head gives, regardless of the tokens before it.

    A node is identified by the ranks, within their heads, of the tokens on the path to it. A node
    is at least as likely as its first child, and a child at least as likely as its next sibling,
    so the heap always holds the next candidates.
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
    chosen.sort()  # Ancestors first, with the likeliest path contiguous.
    places = {ranks: place for place, ranks in enumerate(chosen, 1)}
    tokens = [guesses[len(ranks) - 1][ranks[-1]][1] for ranks in chosen]
    parents = [places.get(ranks[:-1], 0) for ranks in chosen]
    return Draft(tokens, parents=() if parents == list(range(len(parents))) else parents)
