"""The reference: the same model on llama.cpp's bare C interface, a loop of batch, decode, arg max.

It shares the loaded weights with the engine's runner and nothing else: a context of its own, made
with the same parameters, sequence ids counted by hand, batch arrays filled through numpy, logits
read where llama.cpp wrote them.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.errors import DoesNotFit, InternalError
from hearth.backends.llamacpp.lib import set_fields
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan


class RawLoop:
    """Greedy sessions in one unified pool.

    Args:
        model: the loaded weights, whose owner outlives this.
        plan: what the runner's contexts are made with.
        cells: size of the pool.
        threads, batch_threads: of one-token steps, and of larger ones.

    Raises:
        DoesNotFit: the context could not be made.
    """

    def __init__(
        self, model: LlamaModel, plan: ContextPlan, cells: int, threads: int, batch_threads: int
    ) -> None:
        self._api: Any = model.library.api
        self._capacity = plan.batch
        self._vocab_size = model.facts.vocab_size
        params = self._api.llama_context_default_params()
        set_fields(
            params,
            n_ctx=cells,
            n_batch=plan.batch,
            n_ubatch=plan.ubatch,
            n_seq_max=plan.sequences,
            n_outputs_max=plan.max_outputs,
            n_threads=threads,
            n_threads_batch=batch_threads,
            type_k=plan.ggml_types[0],
            type_v=plan.ggml_types[1],
            flash_attn_type=plan.flash_attention,
            kv_unified=True,
            swa_full=True,
            embeddings=False,
            no_perf=True,
        )
        self._context = self._api.llama_init_from_model(model.handle, params)
        if not self._context:
            raise DoesNotFit(
                f"There is no memory for a second context of {cells:,} tokens beside the engine's.",
                "Measure fewer --sessions, or use a smaller --depth.",
                context=cells,
            )
        self._memory = self._api.llama_get_memory(self._context)
        self._batch = self._api.llama_batch_init(plan.batch, 0, 1)
        shape = (plan.batch,)
        self._tokens = np.ctypeslib.as_array(self._batch.token, shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape)[:] = 1
        self._sequences = [
            np.ctypeslib.as_array(self._batch.seq_id[index], (1,)) for index in range(plan.batch)
        ]
        self._lengths = np.zeros(0, np.int32)
        self._pending = np.zeros(0, np.int64)
        self.drawn: list[NDArray[np.int64]] = []
        """The tokens of each step since `start`: [sessions] ids each."""

    def start(self, histories: list[list[int]], shared_tokens: int) -> None:
        """Compute all but the last of the tokens of each session, the first `shared_tokens` once
        for all.
        """
        for sequence, history in enumerate(histories):
            known = 0
            if shared_tokens and sequence:
                known = shared_tokens
                self._api.llama_memory_seq_cp(self._memory, 0, sequence, 0, known)
            self._prompt(sequence, history[:-1], known)
        self._lengths = np.array([len(history) - 1 for history in histories], np.int32)
        self._pending = np.array([history[-1] for history in histories])

    def decode(self, steps: int) -> float:
        """Seconds of `steps` steps of one token for each session."""
        count = len(self._lengths)
        for sequence in range(count):
            self._sequences[sequence][0] = sequence
        self._wanted[:count] = 1
        self._batch.n_tokens = count
        began = time.perf_counter()
        for _ in range(steps):
            self._tokens[:count] = self._pending
            self._positions[:count] = self._lengths
            self._compute()
            self._pending = self._likeliest(count)
            self._lengths += 1
            self.drawn.append(self._pending)
        return time.perf_counter() - began

    def prefill(self, prompt: list[int]) -> float:
        """Seconds from `prompt` to the likeliest token after it."""
        began = time.perf_counter()
        self._prompt(0, prompt, 0)
        if prompt:
            self._likeliest(1)
        return time.perf_counter() - began

    def clear(self) -> None:
        """Forget all sessions."""
        self._api.llama_memory_clear(self._memory, False)
        self._lengths = np.zeros(0, np.int32)
        self.drawn.clear()

    def close(self) -> None:
        """Free the context. May be called twice."""
        context, self._context = self._context, None
        if context:
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(context)

    def _prompt(self, sequence: int, tokens: list[int], known: int) -> None:
        """Compute `tokens` from position `known` on, with logits after the last."""
        for start in range(known, len(tokens), self._capacity):
            part = tokens[start : start + self._capacity]
            count = len(part)
            self._tokens[:count] = part
            self._positions[:count] = np.arange(start, start + count)
            self._wanted[:count] = 0
            self._wanted[count - 1] = start + count == len(tokens)
            for index in range(count):
                self._sequences[index][0] = sequence
            self._batch.n_tokens = count
            self._compute()

    def _compute(self) -> None:
        code = self._api.llama_decode(self._context, self._batch)
        if code:
            raise InternalError(f"llama_decode of the raw loop failed with {code}.")

    def _likeliest(self, count: int) -> NDArray[np.int64]:
        """[count] ids: arg max over the rows of logits of the last batch, in their order."""
        pointer = self._api.llama_get_logits(self._context)
        logits = np.ctypeslib.as_array(pointer, (count, self._vocab_size))
        likeliest: NDArray[np.int64] = logits.argmax(axis=1)
        return likeliest
