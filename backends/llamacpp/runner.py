"""Executes the engine's plans with llama.cpp."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hearth.backends.contract.checks import check_token_ids
from hearth.backends.engine.kv.manager import KvLimits
from hearth.backends.engine.runner import Interrupted, Row, RunnerInfo, StepPlan, StepResult
from hearth.backends.errors import (
    Busy,
    HearthError,
    InternalError,
    InvalidParameter,
)
from hearth.backends.llamacpp.attention_choice import Attention, choice_of, with_flash
from hearth.backends.llamacpp.background_prefill import LlamaBackground
from hearth.backends.llamacpp.context import ABORTED, Batch, LlamaContext
from hearth.backends.llamacpp.embedder import Embedder, TextRunner
from hearth.backends.llamacpp.interrupt import Interrupt
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import TILE, ContextPlan
from hearth.backends.llamacpp.store import LlamaStore
from hearth.backends.machine.memory import touched_allocations
from hearth.backends.machine.thread_pace import ThreadPace
from hearth.backends.machine.threads import fastest_threads, usable_cores

log = logging.getLogger(__name__)

_KEPT_WHILE_RUNNING = 0
"""Cells of kept prefixes that stay in the pool while sequences run: on a processor each row of a
step pays for all cells up to the last one in use."""
_MIXED_TOKENS = 48
"""Most tokens of a mixed step: from 64 tokens on, flash attention on processors works in tiles, and
a tile with rows of several sequences goes through the cells of all of them."""
_PROBE_TOKENS = 16
"""Tokens of the batch that prefill threads are measured with."""


class LlamaRunner(TextRunner):
    """Implements `hearth.backends.engine.runner.Runner`. Owns `model` and frees it in `close`.

    A step costs one `llama_decode` for all rows, prefill and decode mixed.

    Args:
        model: a loaded model.
        plan: from `plan_context`.
        threads: for one-token steps; None to measure now, and to adapt to the load of other
            programs.
        batch_threads: for prefill; None to measure now.
        has_rank_head: whether the file has the tensors that `rank` needs (`facts.has_rank_head`).
        attention: costs of both kinds of attention, to use the better one at any time; `plan` is
            then for attention without flash, which needs more memory. None to follow the plan.
        fingerprint: of the model's files; saved states with another fingerprint are refused.
        no_streaming: see `RunnerInfo`, as far as known from the file.

    Attributes:
        model: the loaded weights, for a second context next to the runner's own (`backends/bench`).
        store: the sequences, by the ids that are handles of rows.

    Raises:
        DoesNotFit: the first context could not be made.
        UnsupportedModel: as `LlamaContext`.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        *,
        threads: int | None = None,
        batch_threads: int | None = None,
        has_rank_head: bool = False,
        attention: Attention | None = None,
        fingerprint: str = "",
        no_streaming: str = "",
    ) -> None:
        self.model = model
        self._plan = plan
        self._choice = choice_of(attention, plan, model.facts)
        self.background: LlamaBackground | None = None
        self._taken = 0
        """Threads that steps leave to background work."""
        self._interrupt = Interrupt()
        self._pace: ThreadPace | None = None
        self._step_s: float | None = None
        """Seconds of the fastest one-token step with `threads`, if measured."""
        cores = usable_cores()
        self.threads = threads or cores
        self.batch_threads = batch_threads or cores
        self._batch = Batch(model.library.api, plan.batch)
        by_channel = self.plan.flash_attention == 0
        with touched_allocations():
            self.store = LlamaStore(
                self._make_context,
                plan,
                model.facts,
                by_channel=by_channel,
                fingerprint=repr(
                    (
                        fingerprint,
                        model.library.version,
                        plan.ggml_types,
                        plan.least_cells > 0,
                        plan.rope,
                    )
                ).encode(),
                beside_bytes=lambda: self.beside_bytes,
                make_way=self._make_way,
            )
        self._embedder = texts = Embedder(
            model,
            plan,
            self.batch_threads,
            self._interrupt,
            lambda: self.store.texts_left_bytes,
            has_rank_head=has_rank_head,
        )
        self.limits = KvLimits(
            slots=plan.slots,
            pool_tokens=plan.pool_tokens,
            context=plan.context,
            kept_tokens=plan.kept_tokens,
            kept_while_running=None if model.on_gpu else _KEPT_WHILE_RUNNING,
            part_tokens=plan.part_tokens,
        )
        self.info = RunnerInfo(
            vocab_size=model.facts.vocab_size,
            context=plan.context,
            pool_tokens=plan.pool_tokens,
            max_sequences=plan.slots,
            max_batch_tokens=plan.max_batch_tokens,
            max_outputs=plan.max_outputs,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            end_ids=model.facts.end_ids,
            keeps_past=self.store.keeps_past,
            can_roll_back=self.store.keeps_past,
            embedding_width=texts.embedding_width,
            can_rank=texts.can_rank,
            max_text_tokens=texts.max_tokens,
            slices_texts=texts.can_slice,
            tile=1 if model.on_gpu else TILE,
            state_bytes=plan.state_bytes,
            mixed_tokens=None if model.on_gpu else _MIXED_TOKENS,
            no_streaming=no_streaming or self.store.no_streaming,
        )
        try:
            self._warm_up(measure_decode=threads is None, measure_batch=batch_threads is None)
        except HearthError:
            self.store.close()
            raise
        # A GPU is not short of threads, and a second context would take some of its memory.
        if not model.on_gpu and self.threads > 1 and texts.can_slice:
            texts.concurrent_threads = self._text_threads
            self.info = replace(self.info, concurrent_text_tokens=texts.quick_tokens)
        if not model.on_gpu:
            self.background = LlamaBackground(
                *(model, self.store, lambda: self.plan, self.threads, self.batch_threads),
                lambda: self._embedder.slice_threads,
            )
        if threads is None and not model.on_gpu:
            self._pace = ThreadPace(self.threads, cores, self._step_s)

    @property
    def beside_bytes(self) -> int:
        in_background = 0 if self.background is None else self.background.nbytes
        return self._embedder.nbytes + in_background

    @property
    def plan(self) -> ContextPlan:
        """The plan for contexts with the present kind of attention."""
        flash = self._choice is not None and self._choice.flash
        return with_flash(self._plan) if flash else self._plan

    def step(self, plan: StepPlan) -> StepResult:
        """Compute `plan`; logits are views of llama.cpp's buffer, which the next step overwrites.

        Raises:
            Busy: the pool has no room; nothing was computed.
            InvalidParameter: a token id is not in the vocabulary.
            InternalError: llama.cpp failed; no row of the plan counts. If the memory cannot roll
                back, `lost_slots` in `data` lists the slots that are now empty.
            RunnerLost: changing the kind of attention lost the contents of the pool.
            Interrupted: the step was interrupted; no row of the plan counts.
        """
        rows = plan.rows
        if not rows:
            return StepResult({})
        self._embedder.is_shared = True
        self._change_attention(plan.cells)
        count = self._fill(rows)
        context = self.store.context
        self._share_cores()
        self.model.library.log.clear()
        began_s = time.perf_counter()
        code = context.decode(self._batch)
        if code:
            raise self._repaired(code, rows)
        if self._pace is not None and not self._taken and plan.tokens == len(rows):
            self._pace.observe(len(rows), time.perf_counter() - began_s)
        if self._choice is not None:
            self._choice.note(rows, plan.cells + plan.tokens)
        if not count:
            return StepResult({})
        outputs = context.logits(count)
        logits: dict[int, NDArray[np.float32]] = {}
        at = 0
        for row in rows:
            if row.outputs:
                logits[row.slot] = outputs[at : at + row.outputs]
                at += row.outputs
        return StepResult(logits)

    def close(self) -> None:
        """Free contexts and model. May be called twice."""
        if self.background is not None:
            self.background.close()
        self._embedder.close()
        self.store.close()
        self.model.close()

    def _make_way(self, most_bytes: float) -> None:
        """Free memory outside the pool until at most `most_bytes` are in use there.

        Idle contexts for texts are freed first, then a background prefill, whose prompt is then
        computed in steps.
        """
        if self.beside_bytes > most_bytes:
            self._embedder.release()
        if self.background is not None and self.beside_bytes > most_bytes:
            self.background.close()

    def _share_cores(self) -> None:
        """Set the threads of the next step: fewer if other programs need cores.

        A background prefill has its own threads while it runs, and so have a slice of a long text
        and the thread that makes a large context. A step takes many times longer if its threads
        wait for one that has no core.
        """
        background = self.background
        taken = in_slice = self._embedder.slice_threads
        if background is not None and background.is_busy:
            taken = max(background.threads, in_slice + 1)
        if self._embedder.is_making_context or self.store.is_growing:
            taken = min(taken + 1, self.threads - 1)
        if not taken and not self._taken and self._pace is None:
            return
        self._taken = taken
        threads = self.threads if self._pace is None else self._pace.threads
        batch_threads = self.batch_threads
        if threads < self.threads:
            batch_threads = min(batch_threads, threads)
        threads = max(1, threads - taken)
        self.store.context.set_threads(threads, max(threads, batch_threads - taken))

    def _text_threads(self, alone: bool) -> int:
        """Threads of a slice of a long text that is computed next to steps, or `alone`: one while
        a prompt is computed in the background.
        """
        if self.background is not None and self.background.is_busy:
            return 1
        return self.batch_threads if alone else self.threads // 2

    def _fill(self, rows: tuple[Row, ...]) -> int:
        """Write the batch; return how many rows of logits it requests."""
        try:
            count = self._batch.fill(rows)
        except OverflowError as error:
            raise InvalidParameter(
                "token_ids", f"A token id is no 32-bit number: {error}"
            ) from error
        ends = self._batch.lowest_and_highest_token()
        check_token_ids("token_ids", ends, self.info.vocab_size)
        return count

    def _repaired(self, code: int, rows: tuple[Row, ...]) -> HearthError | Interrupted:
        """Repair the state after a failed or interrupted decode; return the error to raise."""
        said = self.model.library.log.said()
        if code == 1:
            return Busy(
                "llama.cpp found no room in the KV pool for this step.",
                "Try again when another request is done.",
                retry_after_s=1.0,
            )
        self.store.tear()
        lost = [row.slot for row in rows if not self.store.undo(row.handle, row.start)]
        if code == ABORTED:
            return Interrupted(lost)
        return InternalError(
            f"llama_decode failed with {code}: {said or 'it gave no reason'}",
            "Load the model again; if it happens twice, `hearth doctor` may know why.",
            decode_code=code,
            lost_slots=lost,
        )

    def _change_attention(self, cells: int) -> None:
        """Switch the kind of attention if the other kind has clearly been better for a while.

        Not during a background prefill, because its state is swapped in without conversion.
        """
        choice = self._choice
        if choice is None or self.store.is_growing or not choice.should_change(cells):
            return
        if self.background is not None and self.background.is_busy:
            return
        try:
            self.store.transpose()
        except Busy as error:
            log.warning("attention stays as it is: %s", error.message)
            choice.give_up()
        else:
            choice.changed()

    def _make_context(self, cells: int, by_channel: bool) -> LlamaContext:
        is_other = self._choice is not None and not by_channel
        plan = with_flash(self._plan) if is_other else self._plan
        return LlamaContext(
            self.model, plan, cells, self.threads, self.batch_threads, self._interrupt
        )

    def _warm_up(self, *, measure_decode: bool, measure_batch: bool) -> None:
        """Read every weight once, so that the first token does not wait for it; choose threads."""
        probe = min(_PROBE_TOKENS, self._plan.max_batch_tokens, self._plan.context)
        self._probe(1)
        if measure_decode:
            choice = fastest_threads(self._probe_with(1), self.threads)
            self.threads, self._step_s = choice.threads, choice.measured_s.get(choice.threads)
        if measure_batch and probe > 1:
            step = self._probe_with(probe)
            self.batch_threads = fastest_threads(step, self.batch_threads).threads
        self.store.context.set_threads(self.threads, self.batch_threads)
        self._embedder.threads = self.batch_threads

    def _probe_with(self, tokens: int) -> Callable[[int], None]:
        def step(count: int) -> None:
            self.store.context.set_threads(count, count)
            self._probe(tokens)

        return step

    def _probe(self, tokens: int) -> None:
        """Compute `tokens` tokens and remove them."""
        some = [self.model.facts.bos_id or 0] * tokens
        self.store.make_room(tokens)
        self.step(StepPlan((Row(0, 0, some, outputs=1, handle=0),)))
        self.store.cut(0, 0)
