"""Who gets which tokens in the next step. There is no prefill phase and no decode phase:
`computed` chases `total`.
"""

from __future__ import annotations

from collections.abc import Iterator

from hearth.backends.engine.runner import Row, Runner, StepPlan
from hearth.backends.engine.sequence import Sequence


class Scheduler:
    """Admits sequences in order of priority and arrival, and plans steps over those that run.

    A sequence is admitted when a slot is free and the pool can hold every token that it may come
    to need, so a running one is never short of memory. The first that waits is never overtaken:
    nobody starves.
    """

    def __init__(self, runner: Runner) -> None:
        self._info = runner.info
        self._cache = runner.cache
        self._waiting: list[Sequence] = []
        self._running: dict[int, Sequence] = {}
        self._free_slots = list(reversed(range(runner.info.max_sequences)))
        self._reserved_tokens = 0

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Sequence]:
        """Every sequence that runs or waits."""
        return iter([*self._running.values(), *self._waiting])

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` wait for its turn."""
        self._waiting.append(sequence)
        self._waiting.sort(key=lambda waiting: -waiting.priority)

    def remove(self, sequence: Sequence) -> None:
        """Forget `sequence` and free what it holds, whatever its state."""
        if sequence.slot is None:
            self._waiting = [other for other in self._waiting if other is not sequence]
            return
        if self._running.pop(sequence.slot, None) is None:
            return
        self._cache.release(sequence.slot)
        self._free_slots.append(sequence.slot)
        self._reserved_tokens -= sequence.most_tokens

    def plan(self) -> StepPlan | None:
        """The next step: sequences that decode first, prefill with what is left of the chunk.
        None: nothing to do.

        Where a chunk has not even a token for each that decodes, they take turns.
        """
        self._admit()
        budget = self._info.chunk_tokens
        rows: list[Row] = []
        by_need = sorted(
            self._running.values(), key=lambda sequence: sequence.total - sequence.computed > 1
        )
        for sequence in by_need:
            need = sequence.total - sequence.computed
            count = min(need, budget)
            if count == 0 or sequence.slot is None:
                continue
            start = sequence.computed
            tokens = sequence.tokens[start : start + count]
            rows.append(Row(sequence.slot, start, tokens, wants_logits=count == need))
            budget -= count
        if len(rows) == self._info.chunk_tokens:
            served = {row.slot for row in rows}
            self._running = dict(sorted(self._running.items(), key=lambda item: item[0] in served))
        return StepPlan(tuple(rows)) if rows else None

    def advance(self, plan: StepPlan) -> list[tuple[Row, Sequence]]:
        """Note that `plan` was computed; returns its rows with their sequences."""
        done = []
        for row in plan.rows:
            sequence = self._running[row.slot]
            sequence.computed += len(row.tokens)
            done.append((row, sequence))
        return done

    def members(self, plan: StepPlan) -> list[Sequence]:
        """The sequences that `plan` computes tokens for."""
        return [self._running[row.slot] for row in plan.rows]

    def _admit(self) -> None:
        while self._waiting and self._free_slots:
            sequence = self._waiting[0]
            if self._reserved_tokens + sequence.most_tokens > self._info.pool_tokens:
                return
            slot = self._free_slots[-1]
            if not self._cache.reserve(slot, sequence.most_tokens):
                return
            self._free_slots.pop()
            self._waiting.pop(0)
            self._reserved_tokens += sequence.most_tokens
            self._running[slot] = sequence
            sequence.start(slot)
