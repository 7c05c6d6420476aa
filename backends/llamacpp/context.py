"""One llama.cpp context: the KV pool and the call that computes a batch.

A thin layer over the C API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hearth.backends.engine.runner import Row
from hearth.backends.errors import DoesNotFit, InternalError, UnsupportedModel
from hearth.backends.llamacpp.interrupt import Interrupt
from hearth.backends.llamacpp.lib import set_fields
from hearth.backends.llamacpp.model import LlamaModel
from hearth.backends.llamacpp.params import ContextPlan
from hearth.quant.memory_graph import Graph, compute_bytes, work_bytes

ABORTED = 2
"""Return code of `llama_decode` and `llama_encode` if the abort callback ended them."""

State = NDArray[np.uint8]
"""[bytes], in llama.cpp's own format."""


class Batch:
    """A `llama_batch` over numpy arrays: filled by slices, with one sequence id per token.

    Args:
        api: the library's functions.
        capacity: most tokens.

    Attributes:
        tokens, positions, sequences, wanted: [capacity], for each token: its id, position, id of
            sequence, and whether its logits are wanted.
    """

    def __init__(self, api: Any, capacity: int) -> None:
        self.tokens = np.zeros(capacity, np.int32)
        self.positions = np.zeros(capacity, np.int32)
        self._counts = np.ones(capacity, np.int32)
        self.sequences = np.zeros(capacity, np.int32)
        self.wanted = np.zeros(capacity, np.int8)
        self._ramp = np.arange(capacity, dtype=np.int32)
        int_p = ctypes.POINTER(ctypes.c_int32)
        base, stride = self.sequences.ctypes.data, self.sequences.itemsize
        self._sequence_pointers = (int_p * capacity)(
            *(ctypes.cast(base + i * stride, int_p) for i in range(capacity))
        )
        self.struct = api.llama_batch()
        set_fields(
            self.struct,
            n_tokens=0,
            token=self.tokens.ctypes.data_as(int_p),
            pos=self.positions.ctypes.data_as(int_p),
            n_seq_id=self._counts.ctypes.data_as(int_p),
            seq_id=ctypes.cast(self._sequence_pointers, ctypes.POINTER(int_p)),
            logits=self.wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, rows: Sequence[Row]) -> int:
        """Write `rows`, whose handles are sequence ids; return the number of wanted logits rows."""
        outputs = at = 0
        for row in rows:
            sequence = row.handle
            count = len(row.tokens)
            if count == 1:  # Common in decode steps; assigning items costs a fifth of slices.
                self.tokens[at] = row.tokens[0]
                self.positions[at] = row.start
                self.sequences[at] = sequence
                self.wanted[at] = row.outputs
            else:
                end = at + count
                self.tokens[at:end] = row.tokens
                np.add(self._ramp[:count], row.start, out=self.positions[at:end])
                self.sequences[at:end] = sequence
                self.wanted[at : end - row.outputs] = 0
                self.wanted[end - row.outputs : end] = 1
            outputs += row.outputs
            at += count
        self.struct.n_tokens = at
        return outputs

    def lowest_and_highest_token(self) -> tuple[int, int]:
        """The lowest and the highest id of the tokens written last."""
        tokens = self.tokens[: self.struct.n_tokens]
        return int(tokens.min()), int(tokens.max())


def scratch_bytes(
    model: LlamaModel, plan: ContextPlan, *, tokens: int, cells: int, outputs: int
) -> int:
    """Approximate bytes of compute and result buffers of a context with `cells` cells.

    Args:
        tokens: tokens of a graph.
        outputs: tokens of a graph whose logits are computed.
    """
    graph = Graph(tokens, cells, 1, outputs, plan.flash_attention != 0)
    rows = 4 * outputs * (model.facts.vocab_size + model.shape.width)
    return compute_bytes(model.shape, graph) + work_bytes(model.shape, tokens) + rows


class Context:
    """Owns one `llama_context`, with a unified pool.

    Args:
        cells: size of the pool; llama.cpp rounds it up to a multiple of 256.
        interrupt: ends computations early; they then return `ABORTED`.
        hint: advice in the error if the context cannot be made.
        params: further `llama_context_params`.

    Raises:
        DoesNotFit: the pool could not be allocated.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        cells: int,
        interrupt: Interrupt | None,
        hint: str,
        **params: object,
    ) -> None:
        self._api = model.library.api
        self._log = model.library.log
        struct = self._api.llama_context_default_params()
        set_fields(
            struct,
            n_ctx=cells,
            type_k=plan.ggml_types[0],
            type_v=plan.ggml_types[1],
            flash_attn_type=plan.flash_attention,
            kv_unified=True,
            swa_full=True,
            no_perf=True,
            **plan.rope.fields,
            **params,
        )
        self._log.clear()
        self._handle: Any = self._api.llama_init_from_model(model.handle, struct)
        if not self._handle:
            raise DoesNotFit(
                f"llama.cpp cannot make a context of {cells:,} tokens: {self._log.said()}",
                hint,
                context=cells,
            )
        self._memory: Any = self._api.llama_get_memory(self._handle)
        if interrupt is not None:
            interrupt.attach(self._api, self._handle)
        self.cells = int(self._api.llama_n_ctx(self._handle))

    def set_threads(self, threads: int, batch_threads: int) -> None:
        """Set the threads of one-token steps, and of larger ones."""
        self._api.llama_set_n_threads(self._handle, threads, batch_threads)

    def clear(self) -> None:
        """Forget every sequence."""
        if self._memory:
            self._api.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Free the context. May be called twice."""
        handle, self._handle, self._memory = self._handle, None, None
        if handle:
            self._api.llama_free(handle)


class LlamaContext(Context):
    """The context of sequences, with a pool of `cells` tokens.

    Raises:
        DoesNotFit: the pool could not be allocated.
        UnsupportedModel: the architecture has no KV cache and is not one of the `ENCODERS`.
    """

    def __init__(
        self,
        model: LlamaModel,
        plan: ContextPlan,
        cells: int,
        threads: int,
        batch_threads: int,
        interrupt: Interrupt | None = None,
        hint: str = "Set a smaller context (--ctx), or kv_type q8_0 (--kv-type).",
    ) -> None:
        super().__init__(
            model,
            plan,
            cells,
            interrupt,
            hint,
            n_batch=plan.batch,
            n_ubatch=plan.ubatch,
            n_seq_max=plan.sequences,
            n_outputs_max=plan.max_outputs,
            n_threads=threads,
            n_threads_batch=batch_threads,
            embeddings=False,
        )
        if not self._memory:
            self.close()
            raise UnsupportedModel(
                f"{model.path.name} has no KV cache, so this version cannot run it."
            )
        self._output_shape = (plan.max_outputs, model.facts.vocab_size)
        self._outputs: NDArray[np.float32] = np.empty((0, model.facts.vocab_size), np.float32)
        self._outputs_at = 0

    def decode(self, batch: Batch) -> int:
        """Call `llama_decode` and return its code.

        0: success; 1: no room, nothing changed; else it failed midway or was `ABORTED`, and earlier
        parts of the batch may be in the pool.
        """
        return int(self._api.llama_decode(self._handle, batch.struct))

    def logits(self, count: int) -> NDArray[np.float32]:
        """The `count` rows of logits of the last decode, [count, vocab_size], read-only.

        This is llama.cpp's own buffer, which the next decode overwrites. Its rows are in the
        batch's order even if llama.cpp computed the batch in parts
        (`llama_context::output_reorder`).

        Raises:
            InternalError: there are no logits.
        """
        pointer = self._api.llama_get_logits(self._handle)
        if not pointer:
            raise InternalError("llama.cpp has no logits for the last batch.")
        address = ctypes.addressof(pointer.contents)
        if address != self._outputs_at:
            # The largest possible number of rows; llama.cpp has memory only for the wanted ones.
            self._outputs = np.ctypeslib.as_array(pointer, self._output_shape)
            self._outputs.flags.writeable = False
            self._outputs_at = address
        return self._outputs[:count]

    def remove(self, sequence: int, start: int) -> bool:
        """Remove the tokens of `sequence` from position `start` on; False if the memory cannot."""
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, start, -1))

    @property
    def can_shift(self) -> bool:
        """Whether the positions of tokens in the pool can be changed."""
        return bool(self._api.llama_memory_can_shift(self._memory))

    def forget(self, sequence: int, start: int, count: int) -> bool:
        """Remove the `count` tokens of `sequence` after its first `start`, and close the gap.

        Returns False, with nothing changed, if the memory cannot do this. No other sequence may
        have these cells.

        llama.cpp rotates keys before the next batch. This must not be interrupted midway, nor may
        copies be made before it. Therefore a batch of one token is computed here and removed again.
        """
        if not self._api.llama_memory_seq_rm(self._memory, sequence, start, start + count):
            return False
        self._api.llama_memory_seq_add(self._memory, sequence, start + count, -1, -count)
        end = self.positions(sequence)[1] + 1
        batch = Batch(self._api, 1)
        batch.fill([Row(0, end, [0], 0, handle=sequence)])
        self.decode(batch)  # If there is no free cell, it fails after rotating.
        self.remove(sequence, end)
        return True

    def share(self, source: int, target: int, end: int, start: int = 0) -> None:
        """Let `target` share the cells of `source` from position `start` to before `end`.

        An `end` of -1 is the end of `source`.
        """
        self._api.llama_memory_seq_cp(self._memory, source, target, start, end)

    def positions(self, sequence: int) -> tuple[int, int]:
        """First and last position that `sequence` holds; (-1, -1) if it is empty."""
        first = self._api.llama_memory_seq_pos_min(self._memory, sequence)
        return int(first), int(self._api.llama_memory_seq_pos_max(self._memory, sequence))

    def state_bytes(self) -> int:
        """Size of the result of `export`."""
        return int(self._api.llama_state_get_size(self._handle))

    def export(self) -> State:
        """A copy of everything in the pool, with shared cells once."""
        return self._copied(self.state_bytes(), self._api.llama_state_get_data)

    def restore(self, state: State) -> None:
        """Load a state that another context of this model exported.

        The pool must be at least as large.
        """
        self._log.clear()
        if not self._api.llama_state_set_data(self._handle, _bytes_of(state), state.size):
            said = self._log.said()
            raise InternalError(f"llama.cpp refused a state of {state.size:,} bytes: {said}")

    def sequence_bytes(self, sequence: int) -> int:
        """Size of the result of `export_sequence`."""
        return int(self._api.llama_state_seq_get_size(self._handle, sequence))

    def export_sequence(self, sequence: int) -> State:
        """A copy of the tokens of `sequence`; with a sliding window, of those it still needs."""
        size = self.sequence_bytes(sequence)
        return self._copied(size, self._api.llama_state_seq_get_data, sequence)

    def restore_sequence(self, sequence: int, state: State) -> bool:
        """Load a state from `export_sequence` into `sequence`.

        Returns False, with the sequence empty, if there are not enough free cells.
        """
        pointer = _bytes_of(state)
        if self._api.llama_state_seq_set_data(self._handle, pointer, state.size, sequence):
            return True
        # With two memories (full attention and sliding window), the first may have loaded its part.
        self.remove(sequence, 0)
        return False

    def _copied(self, size: int, copy: Any, *sequence: int) -> State:
        """The `size` bytes that llama.cpp's function `copy` writes."""
        state = np.empty(size, np.uint8)
        written = int(copy(self._handle, _bytes_of(state), size, *sequence))
        if written != size:
            raise InternalError(f"llama.cpp wrote {written:,} of {size:,} bytes of a state.")
        return state


def _bytes_of(state: State) -> Any:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
