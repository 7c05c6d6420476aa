"""A small model with the same vocabulary that guesses what the large model will draw."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import numpy as np

from hearth.backends.contract.sampling import Speculate
from hearth.backends.engine.cached_runner import CachedRunner
from hearth.backends.engine.drafts import Draft
from hearth.backends.engine.generation import Generation
from hearth.backends.engine.lookahead import Lookahead
from hearth.backends.engine.runner import Row, Runner, StepPlan
from hearth.backends.engine.sampler import Logits
from hearth.backends.engine.sequence import Sequence
from hearth.backends.engine.speculation import Drafter

CATCH_UP_TOKENS: Final = 256
"""Maximum number of known tokens, such as prompts, that a call computes for all sequences that are
behind; these get drafts once they have caught up."""
FEW_TOKENS: Final = 32
"""A sequence that is at most this many tokens behind gets a draft in the same steps."""
_LAST_CALLS: Final = 8


class DraftModel(Drafter):
    """Guesses tokens with a second runner.

    Its KV cache is managed like that of the large model, and only known tokens are committed to it:
    the few guessed tokens are recomputed with each further guess. Tokens are drawn as the sequence
    draws them (see `Lookahead`), with its penalties, grammar and seed, so where both models nearly
    agree they mostly draw the same token.

    Args:
        runner: of the draft model; its memory must be able to roll back.
        vocab_size: of the large model.
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
        self._vocab_size = vocab_size
        self._clock = clock
        self._slots: dict[Generation, int] = {}
        self._free = list(range(runner.info.max_sequences))
        self._seconds: deque[float] = deque(maxlen=_LAST_CALLS)

    @property
    def mode(self) -> Speculate:
        return "draft"

    @property
    def token_s(self) -> float:
        """See the protocol; taken from the fastest of the last calls."""
        return min(self._seconds, default=0.0)

    def warm_up(self) -> None:
        """Measure `token_s` before the first draft, in steps of one token that are rolled back: the
        first steps of a runner take longer.
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

    @property
    def catches_up(self) -> bool:
        """True: the text of a sequence is prefilled before its first draft."""
        return True

    def holds(self, sequence: Sequence) -> bool:
        """Whether `sequence` has a slot in the draft model."""
        return sequence in self._slots

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, Draft]:
        """See the protocol; sequences that are behind or find no memory get no draft."""
        ready = self._catch_up(self._entered(lengths))
        began = self._clock()
        guesses = {sequence: self._ahead(sequence) for sequence in ready}
        growing = ready
        while growing:
            grown = self._extend(guesses, growing)
            growing = [
                one
                for one in grown
                if not guesses[one].over and len(guesses[one].draft.tokens) < lengths[one]
            ]
        drafts: dict[Sequence, Draft] = {one: guesses[one].draft for one in ready}
        depth = max((len(draft.tokens) for draft in drafts.values()), default=0)
        if depth:
            self._seconds.append((self._clock() - began) / depth)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        slot = self._slots.pop(sequence, None) if isinstance(sequence, Generation) else None
        if slot is not None:
            self._cached.kv.release(slot, keep=_is_shared(sequence))
            self._free.append(slot)

    def clear(self) -> None:
        self._cached.kv.clear()

    @property
    def nbytes(self) -> int:
        """Bytes that its keys and values take now."""
        stats = self._cached.kv.stats()
        held = stats.allocated_tokens * self.runner.info.kv_bytes_per_token
        return held + stats.window_bytes + stats.offloaded_bytes + self.runner.beside_bytes

    def _entered(self, sequences: Iterable[Sequence]) -> list[Generation]:
        """Those of `sequences` that have a slot or get one now, filled from the cache."""
        entered = []
        for sequence in sequences:
            if not isinstance(sequence, Generation):
                continue
            if sequence in self._slots and self._held(sequence) == sequence.total:
                # A step of prompts alone came before the step of its last draft.
                self.forget(sequence)
            if sequence not in self._slots:
                if not self._free:
                    continue
                slot = self._free.pop()
                # `open` never looks up the last of the tokens it is given.
                shared = sequence.tokens if _is_shared(sequence) else sequence.tokens[:1]
                self._cached.kv.open(slot, shared)
                self._slots[sequence] = slot
                while self._cached.kv.arriving(slot):
                    self._cached.kv.tend()
            entered.append(sequence)
        return entered

    def _held(self, sequence: Generation) -> int:
        return self._cached.kv.length(self._slots[sequence])

    def _ahead(self, sequence: Generation) -> Lookahead:
        """The `Lookahead` that draws the draft of `sequence`."""
        return sequence.ahead()

    def _catch_up(self, sequences: Iterable[Generation]) -> list[Generation]:
        """Compute known tokens of the sequences that are behind; returns the others."""
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

    def _extend(
        self, guesses: Mapping[Generation, Lookahead], growing: list[Generation]
    ) -> list[Generation]:
        """Draft one more token for each of `growing` that finds memory; returns those sequences."""
        kv, rows, grown = self._cached.kv, [], []
        left = self.runner.info.max_batch_tokens
        for sequence in growing:
            slot = self._slots[sequence]
            held = kv.length(slot)
            tokens = [*sequence.tokens[held:], *guesses[sequence].draft.tokens]
            if len(tokens) <= left and kv.reserve(slot, held + len(tokens)):
                left -= len(tokens)
                rows.append(Row(slot, held, tokens, 1))
                grown.append(sequence)
        if not rows:
            return []
        logits = self._cached.step(StepPlan(tuple(rows))).logits
        for sequence, row in zip(grown, rows, strict=True):
            known = len(row.tokens) - len(guesses[sequence].draft.tokens)
            kv.commit(row.slot, row.tokens[:known], computed=len(row.tokens))
        for sequence, row in zip(grown, rows, strict=True):
            guesses[sequence].draw(self._fitted(logits[row.slot][-1]))
        return grown

    def _fitted(self, logits: Logits) -> Logits:
        """`logits` resized to the vocabulary of the large model; missing tokens are never drawn."""
        missing = self._vocab_size - logits.size
        if missing > 0:
            return np.pad(logits, (0, missing), constant_values=np.float32(-np.inf))
        return logits[: self._vocab_size]


def _is_shared(sequence: Sequence) -> bool:
    """Whether `sequence` may share prefixes with others in the draft model's cache."""
    return sequence.speculating is None or sequence.speculating.shares
