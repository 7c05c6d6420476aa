"""The reference: the same model on llama.cpp's C interface, in a loop of batch, decode, arg max.

It shares the loaded weights with the engine's runner, and has its own context, made with the same
parameters. It has no scheduler, KV manager or sampler: sequence ids are counted by hand, and logits
are read where llama.cpp wrote them.
"""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.runner import Row
from hearth.backends.errors import InternalError
from hearth.backends.llamacpp.context import Batch, LlamaContext
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan


class RawLoop:
    """Greedy sessions in one unified pool.

    Args:
        model: the loaded weights, whose owner must outlive this object.
        plan: the parameters that the runner's contexts are made with.
        cells: size of the pool in tokens.
        threads, batch_threads: numbers of threads for one-token steps, and for larger ones.

    Raises:
        DoesNotFit: the context could not be made.
    """

    def __init__(
        self, model: LlamaModel, plan: ContextPlan, cells: int, threads: int, batch_threads: int
    ) -> None:
        hint = "Measure fewer --sessions, or use a smaller --depth."
        self._context = LlamaContext(model, plan, cells, threads, batch_threads, hint=hint)
        self._batch = Batch(model.library.api, plan.batch)
        self._capacity = plan.batch
        self._lengths = np.zeros(0, np.int32)
        self._pending = np.zeros(0, np.int64)

    def start(self, histories: list[list[int]], shared_tokens: int) -> None:
        """Compute all tokens of each session but the last; the first `shared_tokens` are computed
        once for all sessions.
        """
        for sequence, history in enumerate(histories):
            known = 0
            if shared_tokens and sequence:
                known = shared_tokens
                self._context.share(0, sequence, known)
            self._prompt(sequence, history[:-1], known)
        self._lengths = np.array([len(history) - 1 for history in histories], np.int32)
        self._pending = np.array([history[-1] for history in histories])

    def decode(self, steps: int) -> float:
        """Seconds of `steps` steps with one token for each session."""
        count, batch = len(self._lengths), self._batch
        batch.sequences[:count] = np.arange(count)
        batch.wanted[:count] = 1
        batch.struct.n_tokens = count
        began = time.perf_counter()
        for _ in range(steps):
            batch.tokens[:count] = self._pending
            batch.positions[:count] = self._lengths
            self._compute()
            self._pending = self._likeliest(count)
            self._lengths += 1
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
        self._context.clear()
        self._lengths = np.zeros(0, np.int32)

    def close(self) -> None:
        """Free the context. May be called twice."""
        self._context.close()

    def _prompt(self, sequence: int, tokens: list[int], known: int) -> None:
        """Compute `tokens` from position `known` on, with logits for the last one."""
        for start in range(known, len(tokens), self._capacity):
            part = tokens[start : start + self._capacity]
            outputs = int(start + len(part) == len(tokens))
            self._batch.fill([Row(sequence, start, part, outputs, handle=sequence)])
            self._compute()

    def _compute(self) -> None:
        code = self._context.decode(self._batch)
        if code:
            raise InternalError(f"llama_decode of the raw loop failed with {code}.")

    def _likeliest(self, count: int) -> NDArray[np.int64]:
        """[count] ids: arg max over the rows of logits of the last batch, in their order."""
        likeliest: NDArray[np.int64] = self._context.logits(count).argmax(axis=1)
        return likeliest
