"""Executes the engine's plans with PyTorch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.backends.contract.requests import Pooling
from hearth.backends.engine.kv.manager import KvLimits
from hearth.backends.engine.runner import Row, RunnerInfo, StepPlan, StepResult
from hearth.backends.engine.streaming import obstacle
from hearth.backends.errors import InvalidParameter, UnsupportedParameter
from hearth.backends.machine.thread_pace import ThreadPace
from hearth.backends.machine.threads import fastest_threads, usable_cores
from hearth.backends.native.attention import Attend
from hearth.backends.native.card_attention import CardAttention
from hearth.backends.native.card_layers import card_layers
from hearth.backends.native.decode_graphs import DecodeGraphs
from hearth.backends.native.embedder import Embedder, NativeSlicedText
from hearth.backends.native.failures import torch_failures
from hearth.backends.native.graphs import CudaGraphs, GraphDevice
from hearth.backends.native.heads import Heads, read_heads
from hearth.backends.native.kv_pool import KvPool
from hearth.backends.native.models.decoder import Decoder
from hearth.backends.native.outputs import step_result
from hearth.backends.native.page_kernels import attends_runs, attention_kernels, layers_in_c
from hearth.backends.native.paged_attention import PagedAttention, PagedRow
from hearth.backends.native.plan import NativePlan
from hearth.backends.native.prompt_graphs import PromptGraphs
from hearth.backends.native.split_attention import SplitAttention
from hearth.backends.native.steps_ahead import StepsAhead
from hearth.kernels import device as devices
from hearth.kernels.cuda.matrix import has_triton
from hearth.quant.families.config import ModelConfig


class NativeRunner:
    """Implements `hearth.backends.engine.runner.Runner`.

    A step is one forward pass over the tokens of all its rows, prefill and decode mixed.

    Args:
        decoder: with its weights loaded, on the device of the plan.
        plan: from `plan_memory`.
        end_ids: every end-of-generation token.
        fingerprint: of the model, so that saved states of other models are refused.
        threads: for steps of one token per row on a processor; None for the fastest number.
        batch_threads: for steps with prefill.
        own_pooling: the pooling that the model was trained with, which "model" stands for.
        on_close: releases the weights' files.
        records: records graphs if the plan uses them; None for the device itself.

    Attributes:
        store: the KV blocks; the handles of rows are tables of them.
    """

    def __init__(
        self,
        decoder: Decoder,
        plan: NativePlan,
        *,
        end_ids: frozenset[int],
        fingerprint: bytes,
        own_pooling: Pooling,
        threads: int | None,
        batch_threads: int,
        on_close: Callable[[], None],
        records: GraphDevice | None = None,
    ) -> None:
        self.decoder = decoder
        self._config: ModelConfig = decoder.config
        self.plan = plan
        self._batch_threads = batch_threads
        self._using = (0, 0)
        self._on_close = on_close
        self.store = KvPool(
            decoder.config,
            page=plan.page,
            dtypes=plan.kv_dtypes,
            device=plan.device,
            most=plan.blocks,
            start=plan.start_blocks,
            fingerprint=fingerprint,
            frequencies=decoder.frequencies(),
            spare=int(plan.graphs),
        )
        self.graphs: DecodeGraphs | None = None
        """Graphs of decode steps."""
        decoder.fused = layers_in_c(decoder, self.store) or card_layers(decoder, plan.device)
        if plan.graphs:
            records = records or CudaGraphs(plan.device)
            decoder.fused = PromptGraphs(
                records, decoder, most_tokens=plan.max_batch_tokens, others=decoder.fused
            )
            self.graphs = DecodeGraphs(
                records,
                decoder,
                self.store,
                most_rows=plan.slots,
                context=plan.context,
            )
        self._ahead = None if self.graphs is None else StepsAhead(self.graphs, self.store)
        kernels = attention_kernels(decoder, self.store)
        self._attend = partial(
            PagedAttention,
            config=decoder.config,
            compute=plan.compute_dtype,
            fused=plan.is_fused,
            deterministic=plan.deterministic,
            kernels=kernels,
            kernels_take_runs=bool(kernels) and attends_runs(decoder),
        )
        self.limits = KvLimits(
            slots=plan.slots,
            pool_tokens=plan.pool_tokens,
            context=plan.context,
            kept_tokens=plan.kept_tokens,
            step_tokens=plan.max_batch_tokens,
        )
        self.background = None
        self._embedder = Embedder(
            decoder, plan, own_pooling, self._attention, lambda: self._use_device(batch_threads)
        )
        self._text: NativeSlicedText | None = None
        self._gives_hidden = False
        self.threads = self._fastest_threads() if threads is None else threads
        self._pace: ThreadPace | None = None
        # Results of steps in C do not depend on the number of threads, bit for bit.
        if threads is None and decoder.fused is not None:
            self._pace = ThreadPace(self.threads, usable_cores())
        self.info = RunnerInfo(
            vocab_size=decoder.config.vocab_size,
            context=plan.context,
            pool_tokens=plan.pool_tokens,
            max_sequences=plan.slots,
            max_batch_tokens=plan.max_batch_tokens,
            max_outputs=plan.max_outputs,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            window_pool_bytes=plan.window_pool_bytes,
            end_ids=end_ids,
            keeps_past=decoder.config.groups == (None,),
            embedding_width=decoder.config.width,
            has_shortlists=plan.has_shortlists,
            page=plan.page,
            no_streaming=obstacle(decoder.config),
            slices_texts=True,
        )

    @property
    def beside_bytes(self) -> int:
        """See the protocol."""
        return 0 if self._text is None else self._text.nbytes

    @torch.inference_mode()
    def step(self, plan: StepPlan) -> StepResult:
        """Compute `plan`.

        Raises:
            InvalidParameter: a token id is not in the vocabulary.
            Busy, RunnerLost, InternalError: see `torch_failures`; no row of the plan counts.
        """
        rows = plan.rows
        if not rows:
            return StepResult({})
        tokens = [token for row in rows for token in row.tokens]
        self._check(tokens)
        with torch_failures():
            return self._forward(rows, tokens)

    def embed(self, texts: Sequence[Sequence[int]], pooling: Pooling) -> NDArray[np.float32]:
        """See the protocol, and `Embedder.embed` for more."""
        return self._embedder.embed(texts, pooling)

    def rank(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """See the protocol; all families of this runner generate, and none ranks."""
        raise self._not_a_reranker()

    def begin_text(
        self, text: Sequence[int], pooling: Pooling | None, ready: Callable[[], None]
    ) -> NativeSlicedText:
        """See the protocol, and `Embedder.begin` for more. The text is ready at once."""
        if pooling is None:
            raise self._not_a_reranker()
        self._text = self._embedder.begin(text, pooling)
        return self._text

    def load_heads(self, path: Path) -> tuple[Heads, bool]:
        """See `TakesHeads`. Steps return hidden states from now on; GPU kernels take no trees."""
        weights = read_heads(path, self._config.width, self._config.vocab_size)
        self._gives_hidden = True
        if self.graphs is not None and self._ahead is not None:
            self._ahead.forget()
            self.graphs.keep_hidden()
        heads = Heads(weights, self.decoder)
        heads.warm_up()
        return heads, not self.plan.splits_decode

    @torch.inference_mode()
    def hidden_states(self, text: Sequence[int]) -> Tensor:
        """Hidden states after the last norm, [tokens, width] float32, computed outside all slots.

        The text must fit into one step.
        """
        return self._embedder.hidden(self._embedder.pages([len(text)]), [text])

    def interrupt(self, wanted: bool) -> None:
        """See the protocol; ignored, as a step is at most one chunk of prefill or of a text."""

    def close(self) -> None:
        """Free pages and weights. May be called twice."""
        if self._ahead is not None:
            with suppress(RuntimeError):  # The device failed and computes nothing more.
                self._ahead.forget()
        on_close, self._on_close = self._on_close, _nothing
        on_close()

    @torch.inference_mode()
    def _fastest_threads(self) -> int:
        """The number of threads for steps of one token: measured, unless the steps take long."""
        pages = self._embedder.pages([1])
        token = torch.zeros(1, dtype=torch.long)

        def step(threads: int) -> None:
            torch.set_num_threads(threads)
            attend = self._attention(pages.pool, pages.rows([1]))
            self.decoder.logits(self.decoder(token, token, attend))

        return fastest_threads(step, usable_cores()).threads

    def _not_a_reranker(self) -> UnsupportedParameter:
        return UnsupportedParameter(
            "model",
            f"A {self._config.family} model on the native runner was not trained to rank texts.",
            "Use a reranker, with backend (--backend) llamacpp.",
        )

    def _forward(self, rows: Sequence[Row], ids: Sequence[int]) -> StepResult:
        device = self.plan.device
        is_decode = len(ids) == len(rows)
        self._use_device(self._threads_for(is_decode=is_decode))
        began_s = time.perf_counter()
        paged = _paged(rows)
        if self._ahead is not None and all(_is_single(row) for row in rows):
            ahead_result = self._ahead.result(rows, paged, ids)
            if ahead_result is not None:
                ahead_result.hidden = self._ahead.graphs.hidden
                return ahead_result
        elif self._ahead is not None:
            self._ahead.forget()
        tokens = torch.tensor(ids, dtype=torch.long, device=device)
        positions = torch.cat([_positions(row) for row in paged]).to(device)
        hidden = self.decoder(tokens, positions, self._attention(self.store, paged))
        wanted: list[int] = []
        end = 0
        for row in rows:
            end += len(row.tokens)
            wanted += range(end - row.outputs, end)
        if not wanted:
            return StepResult({})
        if len(wanted) < len(hidden):
            hidden = hidden[torch.tensor(wanted, device=device)]
        result = step_result(rows, self.decoder.logits(hidden))
        if self._pace is not None and is_decode:
            self._pace.observe(len(rows), time.perf_counter() - began_s)
        if self._gives_hidden:
            result.hidden = hidden
        return result

    def _threads_for(self, *, is_decode: bool) -> int:
        """Threads of a step.

        While other programs take cores, prefill gets no more threads than decode steps.
        """
        if is_decode:
            return self.threads if self._pace is None else self._pace.threads
        if self._pace is None or self._pace.chosen >= self.threads:
            return self._batch_threads
        return min(self._pace.chosen, self._batch_threads)

    def _attention(self, pool: KvPool, rows: Sequence[PagedRow]) -> Attend:
        gathered = partial(self._attend, pool)
        if not self.plan.splits_decode:
            return gathered(rows=rows)
        if has_triton(self.plan.device.type):
            return CardAttention(pool, self._config, rows, self.plan.compute_dtype)
        return SplitAttention(pool, self._config, rows, lambda some: gathered(rows=some))

    def _use_device(self, threads: int) -> None:
        """Set PyTorch's number of threads and its card for the calling thread.

        Both are per thread, and the engine's thread is not the one that loaded the model.
        """
        now = (threading.get_ident(), threads)
        if self._using != now:
            torch.set_num_threads(threads)
            devices.use(self.plan.device)
            self._using = now

    def _check(self, ids: Sequence[int]) -> None:
        lowest, highest = min(ids), max(ids)
        for token in (lowest, highest):
            if not 0 <= token < self._config.vocab_size:
                raise InvalidParameter(
                    "token_ids",
                    f"Token {token} is not in the vocabulary of {self._config.vocab_size:,}.",
                )


def _is_single(row: Row) -> bool:
    """Whether a row is one token whose logits are wanted, without drafts."""
    return len(row.tokens) == row.outputs == 1 and not row.drafts


def _paged(rows: Sequence[Row]) -> list[PagedRow]:
    return [
        PagedRow(row.start, len(row.tokens), tuple(row.handle), row.drafts > 0, row.parents)
        for row in rows
    ]


def _positions(row: PagedRow) -> Tensor:
    if row.parents:
        return torch.tensor(row.positions)
    return torch.arange(row.start, row.start + row.count)


def _nothing() -> None:
    """Replaces `on_close` once everything is released."""
