"""A small model of the same vocabulary that guesses what the large one will draw."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.generation import Generation
from hearth.backends.engine.runner import Row, Runner, StepPlan
from hearth.backends.engine.sampler import Sampler
from hearth.backends.engine.sequence import Sequence
from hearth.backends.errors import HearthError

log = logging.getLogger(__name__)

CATCH_UP_TOKENS: Final = 256
"""Known tokens that a call computes at most for all sequences that are behind, such as prompts;
they get their drafts when all is computed."""
FEW_TOKENS: Final = 32
"""Who is no further behind gets a draft in the same steps."""
_LAST_CALLS: Final = 8


class DraftModel:
    """Implements `hearth.backends.engine.speculation.Drafter` over a second runner.

    Its KV cache is managed like that of the large model, and only known tokens are committed to it:
    the few that were guessed are computed again with each further one. Draws have the seed of the
    sequence, so where both models nearly agree they mostly draw the same token. Penalties and
    grammars are left to the large model.

    Args:
        runner: of the draft model; its memory can roll back.
        vocab_size: tokens of the large model.
        clock: seconds, for `token_s`.
    """

    def __init__(
        self,
        runner: Runner,
        vocab_size: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.runner = runner
        self._cached = CachedRunner(runner)
        self._vocab_size = min(vocab_size, runner.info.vocab_size)
        self._clock = clock
        self._slots: dict[Sequence, int] = {}
        self._samplers: dict[Sequence, Sampler] = {}
        self._free = list(range(runner.info.max_sequences))
        self._seconds: deque[float] = deque(maxlen=_LAST_CALLS)

    @property
    def mode(self) -> Speculate:
        return "draft"

    @property
    def token_s(self) -> float:
        """See the protocol: of the fastest of the last calls."""
        return min(self._seconds, default=0.0)

    def warm_up(self) -> None:
        """Measure `token_s` before anything is drafted, in steps of one token that leave nothing:
        the first ones of a runner take longer.
        """
        slot, kv = self._free[-1], self._cached.kv
        kv.open(slot, [0])
        for _ in range(_LAST_CALLS):
            if not kv.reserve(slot, 1):
                break
            began = self._clock()
            self._cached.step(StepPlan((Row(slot, 0, [0], 1),)))
            self._seconds.append(self._clock() - began)
            kv.undo(slot, 1)
        kv.release(slot, keep=False)

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """See the protocol; none for sequences that are behind, or that there is no memory for."""
        try:
            ready = self._catch_up([one for one in lengths if self._enter(one)])
            began = self._clock()
            drafts: dict[Sequence, list[int]] = {sequence: [] for sequence in ready}
            growing = ready
            while growing:
                grown = self._extend(drafts, growing)
                growing = [one for one in grown if len(drafts[one]) < lengths[one]]
            depth = max(map(len, drafts.values()), default=0)
        except HearthError:
            log.exception("no drafts in this step")
            for sequence in lengths:
                self.forget(sequence)
            return {}
        if depth:
            self._seconds.append((self._clock() - began) / depth)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        slot = self._slots.pop(sequence, None)
        if slot is not None:
            del self._samplers[sequence]
            self._cached.kv.release(slot, keep=True)
            self._free.append(slot)

    @property
    def nbytes(self) -> int:
        """What its keys and values take of memory now."""
        stats = self._cached.kv.stats()
        held = stats.allocated_tokens * self.runner.info.kv_bytes_per_token
        return held + stats.window_bytes + stats.offloaded_bytes + self.runner.beside_bytes

    def _enter(self, sequence: Sequence) -> bool:
        """Have a slot for `sequence`, with what is known of it already; False if there is none."""
        if sequence not in self._slots:
            if not self._free or not isinstance(sequence, Generation):
                return False
            slot = self._free.pop()
            self._cached.kv.open(slot, sequence.tokens)
            while self._cached.kv.arriving(slot):
                self._cached.kv.tend()
            self._slots[sequence] = slot
            params = sequence.sampler.params
            self._samplers[sequence] = Sampler(
                replace(
                    params,
                    seed=sequence.sampler.seed,
                    logprobs=None,
                    repetition_penalty=1.0,
                    frequency_penalty=0.0,
                    presence_penalty=0.0,
                    dry_multiplier=0.0,
                )
            )
        return True

    def _catch_up(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Compute what is known of those that are behind; returns the others."""
        kv, ready, rows = self._cached.kv, [], []
        left = min(CATCH_UP_TOKENS, self.runner.info.max_batch_tokens)
        for sequence in sequences:
            slot = self._slots[sequence]
            held = kv.length(slot)
            behind = sequence.total - 1 - held
            if behind <= FEW_TOKENS:
                ready.append(sequence)
                continue
            count = min(behind, left)
            if count and kv.reserve(slot, held + count):
                rows.append(Row(slot, held, sequence.tokens[held : held + count], 0))
                left -= count
        if rows:
            self._cached.advance(StepPlan(tuple(rows)))
        return ready

    def _extend(self, drafts: dict[Sequence, list[int]], growing: list[Sequence]) -> list[Sequence]:
        """A further token for those `growing` that there is memory for; returns these."""
        kv, rows, grown = self._cached.kv, [], []
        left = self.runner.info.max_batch_tokens
        for sequence in growing:
            slot = self._slots[sequence]
            held = kv.length(slot)
            tokens = [*sequence.tokens[held:], *drafts[sequence]]
            if len(tokens) <= left and kv.reserve(slot, held + len(tokens)):
                left -= len(tokens)
                rows.append(Row(slot, held, tokens, 1))
                grown.append(sequence)
        if not rows:
            return []
        logits = self._cached.step(StepPlan(tuple(rows))).logits
        for sequence, row in zip(grown, rows, strict=True):
            known = len(row.tokens) - len(drafts[sequence])
            kv.commit(row.slot, row.tokens[:known], computed=len(row.tokens))
        for sequence, row in zip(grown, rows, strict=True):
            drawn = self._samplers[sequence].draw(
                logits[row.slot][-1][: self._vocab_size], sequence.total + len(drafts[sequence])
            )
            drafts[sequence].append(drawn.id)
        return grown
