"""Background prefill: one long prompt at a time is computed concurrently with steps of streams."""

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
"""Minimum number of steps shared with streams that the rest of a prompt would take, for it to be
computed in the background."""
WORTH_TOKENS: Final = 256
"""Minimum number of tokens left in such a prompt."""


class BackgroundPrompts:
    """Computes prompts concurrently with steps if the runner can, and copies them into their slots.

    Tokens that a slot already holds, such as a prefix shared with others, are copied and not
    recomputed. Meanwhile the slot is empty, with room reserved for the whole prompt. The last token
    is left for a step, which returns the logits after it. Prompts that fail here are computed by
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
        """The sequence for which memory is being allocated."""
        self._counted = 0
        """First tokens of the job that were copied or are already in `computed_tokens`."""
        self._failed: WeakSet[Sequence] = WeakSet()
        self.computed_tokens = 0
        """Tokens computed here, including those of prompts that were dropped."""

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is being computed, or is ending early."""
        return self._job is not None

    def holds(self, sequence: Sequence) -> bool:
        """Whether `sequence` is or soon will be computed here, so that steps proceed without it."""
        return sequence in (self._sequence, self._expected)

    def computed(self, sequence: Sequence) -> int:
        """Tokens of `sequence` that were computed here and are not in its slot yet."""
        return self._job.computed if self.holds(sequence) and self._job is not None else 0

    def left(self, sequence: Sequence) -> int:
        """Tokens of `sequence` that are still to be computed here; 0 if it is not here."""
        return sequence.total - 1 - self.computed(sequence) if self._sequence is sequence else 0

    def offer(
        self, sequences: Iterable[Sequence], allowance: Callable[[int], int], headroom: int
    ) -> None:
        """Start the first of `sequences` that is worth it.

        Args:
            sequences: running, with room reserved for all their tokens.
            allowance: how many tokens a step would compute, given the number of tokens before them.
            headroom: tokens that must stay free for others to grow, if the prompt needs more room
                than is reserved.
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
        """Whether a slot may replace its `held` tokens, which others may share, with cells of its
        own: there must be room, and no more may be copied than is computed.
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
        # Grow the pool now, while little has to be moved, rather than when the prompt is complete.
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
        except Exception:  # No memory or no thread: steps compute the prompt instead.
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
            # If there is less room than was counted, the scheduler makes some.
            kv.reserve(slot, sequence.total)

    def hurry(self, *, alone: bool) -> None:
        """Pass on whether the prompt has the machine to itself, because no sequence streams."""
        if self._job is not None:
            self._job.hurry(alone=alone)

    def collect(self) -> None:
        """Move a complete prompt into its slot; until then, report its progress."""
        job, sequence = self._job, self._sequence
        self._expected = None
        if job is None:
            return
        is_over, computed = job.over, job.computed
        self.computed_tokens += computed - self._counted
        self._counted = computed
        if not is_over:
            if sequence is not None:
                sequence.report_progress(computed)
            return
        self._job = self._sequence = None
        if sequence is None or sequence.slot is None:
            return
        state = job.result()
        tokens = sequence.tokens[: sequence.total - 1]
        if state is None or not self._kv.restore(sequence.slot, state, tokens):
            self._failed.add(sequence)
            sequence.computed = self._kv.open(
                *(sequence.slot, sequence.cacheable_tokens(), sequence.namespace),
                sequence.session_on_disk,
            )
            return
        sequence.computed = len(tokens)
        sequence.report_progress(sequence.computed)

    def drop(self, sequence: Sequence) -> None:
        """Cancel `sequence`, which has lost its slot."""
        if self._sequence is sequence and self._job is not None:
            self._job.cancel()
            self._sequence = None
