"""Background prefill: one long prompt at a time is computed next to the steps of streams."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakSet

from hearth.backends.engine.kv.manager import KvManager
from hearth.backends.engine.runner import BackgroundPrompt, Runner, RunnerLost
from hearth.backends.engine.sequence import Sequence

log = logging.getLogger(__name__)

WORTH_STEPS: Final = 32
"""A prompt goes here if what is left of it would take so many steps together with those who
stream,"""
WORTH_TOKENS: Final = 256
"""and has so many tokens."""


class BackgroundPrompts:
    """Computes prompts next to the steps where the runner can, and brings them into their slots.

    What a slot holds already, such as a prefix that it shares with others, is copied and not
    computed again; its slot is empty meanwhile, and has room reserved for all of the prompt. The
    last token is left for a step, which gives the logits after it. What fails here is computed by
    steps.

    Args:
        done: called from any thread when a prompt is complete.
    """

    def __init__(self, runner: Runner, kv: KvManager, done: Callable[[], None]) -> None:
        self._prefill = runner.background if runner.info.keeps_past else None
        self._kv = kv
        self._done = done
        self._job: BackgroundPrompt | None = None
        self._sequence: Sequence | None = None
        self._expected: Sequence | None = None
        """For which memory is being made."""
        self._counted = 0
        """First tokens of the job that were copied, or are in `computed_tokens`."""
        self._failed: WeakSet[Sequence] = WeakSet()
        self.computed_tokens = 0
        """Also of prompts that come to nothing."""

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is computed, or is ending early."""
        return self._job is not None

    def holds(self, sequence: Sequence) -> bool:
        """Whether `sequence` is being computed here, or will be soon, so that steps go on without
        it.
        """
        return sequence in (self._sequence, self._expected)

    def computed(self, sequence: Sequence) -> int:
        """Tokens of `sequence` that are computed here and not in its slot yet."""
        return self._job.computed if self.holds(sequence) and self._job is not None else 0

    def left(self, sequence: Sequence) -> int:
        """Tokens of `sequence` that are still to be computed here; 0 if it is not here."""
        return sequence.total - 1 - self.computed(sequence) if self._sequence is sequence else 0

    def offer(
        self, sequences: Iterable[Sequence], allowance: Callable[[int], int], headroom: int
    ) -> None:
        """Begin with the first of `sequences` that is worth it.

        Args:
            sequences: that run, with room reserved for all their tokens.
            allowance: tokens that a step would compute behind so many others.
            headroom: tokens that others keep to grow, where it needs more room than is reserved.
        """
        if self._job is not None or self._prefill is None:
            return
        for sequence in sequences:
            left = sequence.pending - 1
            least = max(WORTH_TOKENS, WORTH_STEPS * allowance(sequence.computed))
            if left < least or sequence in self._failed or sequence.outputs(left):
                continue
            if sequence.streaming is not None:
                continue
            if self._may_copy(sequence.computed, left, headroom):
                self._begin(sequence)
                return

    def _may_copy(self, held: int, left: int, headroom: int) -> bool:
        """Whether a slot may give up the `held` tokens that it has, which others may share, for
        cells of its own: not where more would be moved than is computed.
        """
        if not held:
            return True
        return held <= left and self._kv.free_tokens() >= held + headroom

    def _begin(self, sequence: Sequence) -> None:
        slot, held = sequence.slot, sequence.computed
        assert slot is not None and self._prefill is not None
        kv, tokens = self._kv, sequence.tokens[: sequence.total - 1]
        if not self._prefill.room_for(len(tokens), held):
            return
        # The pool grows now, while little has to be moved, rather than when it is brought back.
        if not kv.has_memory(len(tokens) - held):
            self._expected = sequence if kv.is_growing else None
            return
        try:
            begun = kv.save(slot) if held else None
            if held and begun is None:
                return
            job = self._prefill.begin(tokens, begun, held, self._done)
        except RunnerLost:
            raise
        except Exception:  # No memory, or no thread, which steps can do without.
            log.exception("a prompt cannot be computed in the background")
            self._failed.add(sequence)
            return
        if job is None:
            return
        self._job, self._sequence, self._counted = job, sequence, held
        if held:
            kv.release(slot, keep=False)
            kv.open(slot, tokens[:1], sequence.namespace, sequence.session_on_disk)
            sequence.computed = 0
            # Should there be less room than was counted, the scheduler makes some.
            kv.reserve(slot, sequence.total)

    def hurry(self, *, alone: bool) -> None:
        """Say whether anybody streams beside it."""
        if self._job is not None:
            self._job.hurry(alone=alone)

    def collect(self) -> None:
        """Bring back what is complete; tell its reader how far it is otherwise."""
        job, sequence = self._job, self._sequence
        self._expected = None
        if job is None:
            return
        is_over, computed = job.over, job.computed
        self.computed_tokens += computed - self._counted
        self._counted = computed
        if not is_over:
            if sequence is not None:
                sequence.tell(computed)
            return
        self._job = self._sequence = None
        if sequence is None or sequence.slot is None:
            return
        state = job.result()
        tokens = sequence.tokens[: sequence.total - 1]
        if state is None or not self._kv.restore(sequence.slot, state, tokens):
            self._failed.add(sequence)
            sequence.computed = self._kv.open(
                *(sequence.slot, sequence.findable(), sequence.namespace),
                sequence.session_on_disk,
            )
            return
        sequence.computed = len(tokens)
        sequence.tell(sequence.computed)

    def drop(self, sequence: Sequence) -> None:
        """`sequence` has lost its slot: what is computed of it here is not wanted any more."""
        if self._sequence is sequence and self._job is not None:
            self._job.cancel()
            self._sequence = None
