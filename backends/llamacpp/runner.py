"""Executes the engine's plans with llama.cpp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hearth.backends.engine.runner import Row, RunnerInfo, StepPlan, StepResult
from hearth.backends.errors import Busy, HearthError, InternalError, InvalidParameter
from hearth.backends.llamacpp import threads as thread_counts
from hearth.backends.llamacpp.cache import LlamaCache
from hearth.backends.llamacpp.context import Batch, LlamaContext
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan
from hearth.backends.llamacpp.threads import ThreadChoice, measure_threads

_PROBE_TOKENS = 16
"""Size of the batch that prefill threads are measured with."""


class LlamaRunner:
    """Implements `hearth.backends.engine.runner.Runner`. Owns `model` and frees it in `close`.

    A step costs one `llama_decode` for all rows, prefill and decode mixed.

    Args:
        model: a loaded model.
        plan: from `plan_context`.
        threads: for one-token steps; None: measured now.
        batch_threads: for prefill; None: measured now.

    Raises:
        DoesNotFit: the first context could not be made.
        UnsupportedModel: an embedding model.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        *,
        threads: int | None = None,
        batch_threads: int | None = None,
    ) -> None:
        self._model = model
        self._plan = plan
        cores = thread_counts.usable_cores()
        self.threads = threads or cores
        self.batch_threads = batch_threads or cores
        self._info = RunnerInfo(
            vocab_size=model.facts.vocab_size,
            context=plan.context,
            pool_tokens=plan.pool_tokens,
            max_sequences=plan.sequences,
            chunk_tokens=plan.chunk_tokens,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            end_ids=model.facts.end_ids,
            can_roll_back=model.facts.can_roll_back,
            can_fork=model.facts.can_roll_back,
        )
        self._batch = Batch(model.library.api, plan.batch)
        logits = np.empty((plan.sequences, model.facts.vocab_size), np.float32)
        self._logits = list(logits)
        self._addresses = [row.ctypes.data for row in self._logits]
        self._cache = LlamaCache(self._make_context, plan, can_roll_back=model.facts.can_roll_back)
        try:
            self._warm_up(measure_decode=threads is None, measure_batch=batch_threads is None)
        except HearthError:
            self._cache.close()
            raise

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def cache(self) -> LlamaCache:
        return self._cache

    def step(self, plan: StepPlan) -> StepResult:
        """Compute `plan`; logits are copies that the next step overwrites.

        Raises:
            Busy: the pool has no room; nothing was computed.
            InvalidParameter: a token id is not in the vocabulary.
            InternalError: the plan does not continue what the slots hold, or llama.cpp failed;
                nothing of the plan counts. Where the memory cannot roll back, `lost_slots` in
                `data` are the slots that are empty now.
        """
        rows = plan.rows
        if not rows:
            return StepResult({})
        self._check(rows)
        cache = self._cache
        cache.make_room(plan.tokens)
        outputs = self._fill(rows)
        context = cache.context
        self._model.library.log.clear()
        code = context.decode(self._batch)
        if code:
            raise self._repaired(code, rows)
        for row in rows:
            cache.added(row.slot, len(row.tokens))
        logits = {}
        for slot, index in outputs:
            context.read_logits(index, self._addresses[slot])
            logits[slot] = self._logits[slot]
        return StepResult(logits)

    def close(self) -> None:
        """Free context and model. May be called twice."""
        self._cache.close()
        self._model.close()

    def _check(self, rows: tuple[Row, ...]) -> None:
        """Refuse, before C sees it, what llama.cpp would answer with an assertion or a broken
        sequence."""
        slots, total = set(), 0
        for row in rows:
            count = len(row.tokens)
            held = self._cache.length(row.slot)
            if count == 0 or row.start != held:
                raise InternalError(
                    f"A row of {count} tokens starts at {row.start}; slot {row.slot} holds {held}."
                )
            if held + count > self._plan.context:
                raise InternalError(
                    f"Slot {row.slot} would hold {held + count} tokens; "
                    f"the context is {self._plan.context}."
                )
            slots.add(row.slot)
            total += count
        if len(slots) != len(rows):
            raise InternalError("A plan names a slot twice.")
        if total > self._plan.chunk_tokens:
            raise InternalError(
                f"A plan has {total} tokens; {self._plan.chunk_tokens} is the most."
            )

    def _fill(self, rows: tuple[Row, ...]) -> list[tuple[int, int]]:
        try:
            outputs = self._batch.fill(rows)
            lowest, highest = self._batch.lowest_and_highest_token()
        except OverflowError as error:
            raise InvalidParameter(
                "token_ids", f"A token id is no 32-bit number: {error}"
            ) from error
        for token in (lowest, highest):
            if not 0 <= token < self._info.vocab_size:
                raise InvalidParameter(
                    "token_ids",
                    f"Token {token} is not in the vocabulary of {self._info.vocab_size:,}.",
                )
        return outputs

    def _repaired(self, code: int, rows: tuple[Row, ...]) -> HearthError:
        """The error for a failed decode, after undoing what llama.cpp may have kept of it."""
        said = self._model.library.log.said()
        if code == 1:
            return Busy(
                "llama.cpp found no room in the KV pool for this step.",
                "Try again when another request is done.",
                retry_after_s=1.0,
            )
        lost = [row.slot for row in rows if not self._cache.undo(row.slot)]
        return InternalError(
            f"llama_decode failed with {code}: {said or 'it gave no reason'}",
            "Load the model again; if it happens twice, `hearth doctor` may know why.",
            decode_code=code,
            lost_slots=lost,
        )

    def _make_context(self, cells: int) -> LlamaContext:
        return LlamaContext(self._model, self._plan, cells, self.threads, self.batch_threads)

    def _warm_up(self, *, measure_decode: bool, measure_batch: bool) -> None:
        """Touch every weight once, so that the first token is not the one that waits, and choose
        thread counts."""
        probe = min(_PROBE_TOKENS, self._plan.chunk_tokens, self._plan.context)
        self._probe(1)
        most = thread_counts.usable_threads()
        if measure_decode:
            self.threads = self._measured(self.threads, most, 1).threads
        if measure_batch and probe > 1:
            self.batch_threads = self._measured(self.batch_threads, most, probe).threads
        self._cache.context.set_threads(self.threads, self.batch_threads)

    def _measured(self, default: int, most: int, tokens: int) -> ThreadChoice:
        return measure_threads(
            self._probe_with(tokens), thread_counts.candidates(default, max(default, most))
        )

    def _probe_with(self, tokens: int) -> Callable[[int], None]:
        def step(count: int) -> None:
            self._cache.context.set_threads(count, count)
            self._probe(tokens)

        return step

    def _probe(self, tokens: int) -> None:
        """Compute `tokens` tokens in slot 0 and forget them."""
        first = self._model.facts.bos_id or 0
        self.step(StepPlan((Row(0, 0, [first] * tokens, wants_logits=True),)))
        self._cache.release(0)
