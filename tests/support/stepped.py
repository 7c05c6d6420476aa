"""Sequences driven by hand over a runner, without scheduler or sampler: greedy, and with every row
of logits kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hearth.backends.engine.runner import Row, Runner, StepPlan


class Stepped:
    """A greedy sequence in `slot`. Tokens are known first and computed later.

    Args:
        keep_logits: keep a copy of each row of logits, by the number of tokens before it.
    """

    def __init__(
        self, runner: Runner, slot: int, prompt: Sequence[int], *, keep_logits: bool = False
    ) -> None:
        self.slot = slot
        self.prompt = list(prompt)
        self.tokens = list(prompt)
        self.found = self.computed = runner.cache.open(slot, self.tokens)
        self.logits: dict[int, np.ndarray] | None = {} if keep_logits else None

    @property
    def new(self) -> list[int]:
        """The tokens generated so far."""
        return self.tokens[len(self.prompt) :]

    def row(self, most: int) -> Row:
        """Its next row, of at most `most` tokens."""
        some = self.tokens[self.computed : self.computed + most]
        ends = self.computed + len(some) == len(self.tokens)
        return Row(self.slot, self.computed, some, outputs=int(ends))

    def take(self, row: Row, logits: np.ndarray | None) -> None:
        """Record that `row` was computed."""
        self.computed += len(row.tokens)
        if logits is not None:
            if self.logits is not None:
                self.logits[self.computed] = logits[0].copy()
            self.tokens.append(int(np.argmax(logits[0])))


def advance(runner: Runner, sessions: Sequence[Stepped], count: int, chunk: int = 512) -> None:
    """Advance all sessions together until each has generated `count` tokens; a step's `chunk` is
    shared evenly.
    """
    while waiting := [session for session in sessions if len(session.new) < count]:
        arrived = runner.cache.tend()
        for session in waiting:
            session.found += arrived.get(session.slot, 0)
            session.computed += arrived.get(session.slot, 0)
        waiting = [session for session in waiting if not runner.cache.arriving(session.slot)]
        if not waiting:
            continue
        share = max(1, min(chunk, runner.info.max_batch_tokens) // len(waiting))
        rows = tuple(session.row(share) for session in waiting)
        for row in rows:
            assert runner.cache.reserve(row.slot, row.start + len(row.tokens))
        logits = runner.step(StepPlan(rows)).logits
        for session, row in zip(waiting, rows, strict=True):
            session.take(row, logits.get(session.slot))
