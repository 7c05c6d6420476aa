"""The lane beside the steps, where one long prompt at a time is computed while others stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

from hearth.backends.engine.runner import Runner, SidePrefill
from hearth.backends.engine.sequence import Sequence

WORTH_STEPS: Final = 32
"""A prompt goes here if it would take so many steps together with those who stream,"""
WORTH_TOKENS: Final = 256
"""and has so many tokens."""


class SideLane:
    """Computes prompts beside the steps where the runner can, and brings them into their slots.

    The last token of a prompt is left for a step, which gives the logits after it. What fails here
    is computed by steps.

    Args:
        done: called from any thread when a prompt is complete.
    """

    def __init__(self, runner: Runner, done: Callable[[], None]) -> None:
        self._runner = runner
        self._done = done
        self._job: SidePrefill | None = None
        self._sequence: Sequence | None = None
        self._failed: WeakSet[Sequence] = WeakSet()
        self.computed_tokens = 0
        """By all prompts that were brought back."""

    def holds(self, sequence: Sequence) -> bool:
        """Whether `sequence` is being computed here, so that steps go on without it."""
        return self._sequence is sequence

    def computed(self, sequence: Sequence) -> int:
        """Tokens of `sequence` that are computed here and not in its slot yet."""
        return self._job.computed if self.holds(sequence) and self._job is not None else 0

    def offer(self, sequences: Iterable[Sequence], allowance: int) -> None:
        """Begin with the first of `sequences` that is worth it.

        Args:
            allowance: tokens that a step would compute of it.
        """
        if self._job is not None or not self._runner.info.keeps_past:
            return
        least = max(WORTH_TOKENS, WORTH_STEPS * allowance)
        for sequence in sequences:
            count = sequence.total - 1
            is_fresh = sequence.computed == 0 and sequence not in self._failed
            if is_fresh and count >= least and not sequence.outputs(count):
                self._job = self._runner.prefill_beside(sequence.tokens[:count], self._done)
                self._sequence = sequence if self._job is not None else None
                return

    def hurry(self, *, alone: bool) -> None:
        """Say whether anybody streams beside it."""
        if self._job is not None:
            self._job.hurry(alone=alone)

    def collect(self) -> None:
        """Bring back what is complete; tell its reader how far it is otherwise."""
        job, sequence = self._job, self._sequence
        if job is None:
            return
        if not job.over:
            if sequence is not None:
                sequence.tell(job.computed)
            return
        self._job = self._sequence = None
        if sequence is None or sequence.slot is None:
            return
        state = job.result()
        tokens = sequence.tokens[: sequence.total - 1]
        if state is None or not self._runner.cache.restore(sequence.slot, state, tokens):
            self._failed.add(sequence)
            return
        sequence.computed = len(tokens)
        self.computed_tokens += len(tokens)
        sequence.tell(sequence.computed)

    def drop(self, sequence: Sequence) -> None:
        """`sequence` has lost its slot: what is computed of it here is not wanted any more."""
        if self._sequence is sequence and self._job is not None:
            self._job.cancel()
            self._sequence = None
