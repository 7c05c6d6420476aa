"""One llama.cpp context: the key-value pool and the call that computes a batch. Everything here is
C-shaped."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.runner import Row
from hearth.backends.errors import DoesNotFit, InternalError, UnsupportedModel
from hearth.backends.llamacpp.lib import set_fields
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan


class Batch:
    """A `llama_batch` over numpy arrays: filled by slices, one sequence id a token.

    Args:
        api: the library's functions.
        capacity: most tokens.
    """

    def __init__(self, api: Any, capacity: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self._slots = np.zeros(capacity, np.int32)
        self._wanted = np.zeros(capacity, np.int8)
        self._ramp = np.arange(capacity, dtype=np.int32)
        int_p = ctypes.POINTER(ctypes.c_int32)
        base, stride = self._slots.ctypes.data, self._slots.itemsize
        self._slot_pointers = (int_p * capacity)(
            *(ctypes.cast(base + i * stride, int_p) for i in range(capacity))
        )
        self.struct = api.llama_batch()
        set_fields(
            self.struct,
            n_tokens=0,
            token=self._tokens.ctypes.data_as(int_p),
            pos=self._positions.ctypes.data_as(int_p),
            n_seq_id=self._counts.ctypes.data_as(int_p),
            seq_id=ctypes.cast(self._slot_pointers, ctypes.POINTER(int_p)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, rows: Sequence[Row]) -> list[tuple[int, int]]:
        """Write `rows`; returns (slot, index in the batch) for each that wants logits."""
        outputs = []
        at = 0
        for row in rows:
            count = len(row.tokens)
            end = at + count
            self._tokens[at:end] = row.tokens
            np.add(self._ramp[:count], row.start, out=self._positions[at:end])
            self._slots[at:end] = row.slot
            self._wanted[at:end] = 0
            if row.wants_logits:
                self._wanted[end - 1] = 1
                outputs.append((row.slot, end - 1))
            at = end
        self.struct.n_tokens = at
        return outputs

    def lowest_and_highest_token(self) -> tuple[int, int]:
        """Of the tokens written last."""
        tokens = self._tokens[: self.struct.n_tokens]
        return int(tokens.min()), int(tokens.max())


class LlamaContext:
    """Owns one `llama_context` with a unified pool of `cells` tokens.

    Args:
        cells: size of the pool; llama.cpp rounds it up to a multiple of 256.

    Raises:
        DoesNotFit: the pool could not be allocated.
        UnsupportedModel: the model has no memory to generate with (an embedding model).
    """

    def __init__(
        self, model: LlamaModel, plan: ContextPlan, cells: int, threads: int, batch_threads: int
    ) -> None:
        self._model = model
        self._api = model.library.api
        params = self._api.llama_context_default_params()
        set_fields(
            params,
            n_ctx=cells,
            n_batch=plan.batch,
            n_ubatch=plan.ubatch,
            n_seq_max=plan.sequences,
            n_outputs_max=plan.sequences,
            n_threads=threads,
            n_threads_batch=batch_threads,
            type_k=plan.ggml_type,
            type_v=plan.ggml_type,
            flash_attn_type=plan.flash_attention,
            kv_unified=True,
            swa_full=True,
            embeddings=False,
            no_perf=True,
        )
        log = model.library.log
        log.clear()
        self._handle = self._api.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise DoesNotFit(
                f"llama.cpp cannot make a context of {cells:,} tokens: {log.said()}",
                "Use a smaller --ctx or --kv-type q8_0.",
                context=cells,
            )
        self._memory = self._api.llama_get_memory(self._handle)
        if not self._memory:
            self.close()
            raise UnsupportedModel(
                f"{model.path.name} has no memory to generate with: it is an embedding model."
            )
        self.cells = int(self._api.llama_n_ctx(self._handle))
        self._row_bytes = model.facts.vocab_size * ctypes.sizeof(ctypes.c_float)

    def set_threads(self, threads: int, batch_threads: int) -> None:
        """Threads of one-token steps, and of larger ones."""
        self._api.llama_set_n_threads(self._handle, threads, batch_threads)

    def decode(self, batch: Batch) -> int:
        """What `llama_decode` returns: 0 ok, 1 no room (nothing changed), else it failed on the
        way."""
        return int(self._api.llama_decode(self._handle, batch.struct))

    def read_logits(self, index: int, address: int) -> None:
        """Copy the logits of batch position `index` to `address`, which has room for [vocab_size]
        float32."""
        source = self._api.llama_get_logits_ith(self._handle, index)
        if not source:
            raise InternalError(f"llama.cpp has no logits for batch position {index}.")
        ctypes.memmove(address, source, self._row_bytes)

    def remove(self, slot: int, start: int) -> bool:
        """Forget what `slot` holds from position `start` on; False if this memory cannot."""
        return bool(self._api.llama_memory_seq_rm(self._memory, slot, start, -1))

    def share(self, source: int, target: int, tokens: int) -> None:
        """Let `target` hold the first `tokens` cells of `source` too."""
        self._api.llama_memory_seq_cp(self._memory, source, target, 0, tokens)

    def export(self) -> NDArray[np.uint8]:
        """Everything that the pool holds, shared cells once."""
        size = int(self._api.llama_state_get_size(self._handle))
        state = np.empty(size, np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = int(self._api.llama_state_get_data(self._handle, pointer, size))
        if written != size:
            raise InternalError(f"llama.cpp wrote {written:,} of {size:,} bytes of its state.")
        return state

    def restore(self, state: NDArray[np.uint8]) -> None:
        """Take in what `export` of another context of this model gave; the pool must be at least as
        large."""
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        log = self._model.library.log
        log.clear()
        if not self._api.llama_state_set_data(self._handle, pointer, state.size):
            raise InternalError(f"llama.cpp refused a state of {state.size:,} bytes: {log.said()}")

    def close(self) -> None:
        """Free the pool. May be called twice."""
        handle, self._handle, self._memory = self._handle, None, None
        if handle:
            self._api.llama_free(handle)
