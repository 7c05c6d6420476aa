"""Weights, KV cache and how many sessions fit: the formulas that need only a model's dimensions.

KV cache: 2 × layers × kv_heads × head_dim × tokens × sessions × bytes of an element. The dimensions
come from a header (`memory_shape.shape_of`), from `config.json` (`shape_of_config`) or from the
user. `hearth.quant.memory` computes the memory of a worker with all its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hearth.quant.gguf.imatrix import PART_TOKENS, WINDOW_TOKENS
from hearth.quant.gguf.quantize import CHUNK_WEIGHTS, CHUNKS_AHEAD
from hearth.quant.gguf.types import NOT_WEIGHTS, TensorType
from hearth.quant.memory import vocabulary_bytes
from hearth.quant.memory_graph import (
    Graph,
    activation_bytes,
    compute_bytes,
    mask_bytes,
    work_bytes,
)
from hearth.quant.memory_shape import ModelShape

STEP_TOKENS: Final = 512
"""Tokens of one step, all of whose activations are in memory at once (n_ubatch)."""
_PACKING_BASE_BYTES: Final = 84 << 20
"""Memory of the quantizing process without its chunks: interpreter, numpy, libggml and the header.
Measured as VmHWM less the chunks, for the shape of Qwen3-0.6B (CPython 3.11, Linux x86-64,
2026-11-24)."""
_CALIBRATING_BASE_BYTES: Final = 62 << 20
"""Memory of the process that makes an importance matrix, without the model and its buffers."""
_CHUNK_BYTES_A_WEIGHT: Final = 12
"""Bytes for each weight of a chunk in progress: as read, as float32, and packed."""
_COMMON_BITS: Final = {
    "fp32": 32.0,
    "fp16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "int4": 4.0,
    "nf4": 4.0,
}


def precision_bits(name: str) -> float:
    """Bits per weight in a precision: "fp16", "bf16", "int8", "int4", "fp8" and the like without
    scales, or a GGUF tensor type such as "q4_k" with the scales of its blocks.

    Raises:
        KeyError: there is no precision of that name.
    """
    lower = name.lower()
    if lower in _COMMON_BITS:
        return _COMMON_BITS[lower]
    kind = TensorType[name.upper()]
    if kind in NOT_WEIGHTS:
        raise KeyError(name)
    return 8 * kind.block_bytes / kind.block_elements


def precisions() -> list[str]:
    """The names that `precision_bits` knows."""
    kinds = [kind.name.lower() for kind in TensorType if kind not in NOT_WEIGHTS]
    return [*_COMMON_BITS, *kinds]


@dataclass(frozen=True, slots=True)
class Heads:
    """A KV cache with another number of key-value heads."""

    kind: str
    """MHA: one KV head for each query head; MQA: one in all; GQA: in between."""
    kv_heads: int
    kv_bytes: int
    """Size for one session."""
    sessions: int | None
    """Sessions that fit next to the weights, before scratch memory; None if the weights are
    unknown."""
    is_own: bool
    """Whether this is the model's own number of heads."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """A model's memory for a number of sessions of a given length, and how many sessions fit. All
    sizes are in bytes.
    """

    shape: ModelShape
    parameters: int
    """0 if unknown."""
    weight_bytes: int
    """0 if unknown."""
    precision: str
    """Precision of the weights."""
    tokens: int
    """Tokens of each session."""
    sessions: int
    kv_type: str
    """Type of keys and values; "keys/values" if they differ."""
    memory_bytes: int
    """Memory that weights and KV cache must fit into."""
    read_bytes: int = 0
    """Bytes of the weights that one token reads; 0 means all of them."""

    @property
    def kv_bytes(self) -> int:
        """KV cache of all sessions."""
        return self.sessions * self.session_bytes

    @property
    def session_bytes(self) -> int:
        """KV cache of one session."""
        keys, _, values = self.kv_type.partition("/")
        return self.tokens * self.shape.kv_bytes_per_token(keys, values or keys)

    @property
    def activations(self) -> int:
        """The rows that operators of a step pass to each other."""
        return activation_bytes(self.shape, self._graph)

    @property
    def scratch(self) -> int:
        """The attention mask, the operators' own buffer and the logits of each session."""
        mask = mask_bytes(self.shape, self._graph, self._graph.rows)
        logits = 4 * self.shape.vocabulary * self.sessions
        return mask + work_bytes(self.shape, STEP_TOKENS) + logits

    @property
    def total(self) -> int:
        """Weights, KV cache, activations and scratch memory."""
        return self.weight_bytes + self.kv_bytes + self.activations + self.scratch

    @property
    def calibrating(self) -> int:
        """Peak memory of the process that makes an importance matrix with llama.cpp: the model, one
        window without flash attention, and the logits of one part of the window.
        """
        graph = Graph(PART_TOKENS, WINDOW_TOKENS, 1, PART_TOKENS, flash=False)
        window = replace(self, tokens=WINDOW_TOKENS, sessions=1, kv_type="f32")
        return (
            _CALIBRATING_BASE_BYTES
            + vocabulary_bytes(self.shape)
            + self.weight_bytes
            + window.kv_bytes
            + compute_bytes(self.shape, graph)
            + work_bytes(self.shape, PART_TOKENS)
            + 4 * self.shape.vocabulary * PART_TOKENS
        )

    @property
    def left_bytes(self) -> int:
        """Memory left after the weights; negative if they do not fit."""
        return self.memory_bytes - self.weight_bytes

    @property
    def sessions_before_scratch(self) -> int | None:
        """The number of sessions that fit by weights and KV cache alone; None if the weights are
        unknown, or if no KV cache is kept.
        """
        return self._sessions_in(self.session_bytes)

    @property
    def sessions_that_fit(self) -> int | None:
        """The number of sessions that fit with activations and scratch memory, which grow with that
        number as well.
        """
        most = self.sessions_before_scratch
        if most is None:
            return None
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if replace(self, sessions=middle).total <= self.memory_bytes:
                low = middle
            else:
                high = middle - 1
        return low

    def variants(self) -> Sequence[Heads]:
        """The KV cache with the number of key-value heads of MHA, GQA and MQA. For GQA that is the
        model's own number, or a quarter of the query heads if the model is of another kind.
        """
        heads, own = self.shape.heads, self.shape.kv_heads
        if not own or not self.shape.value_length:
            return ()
        grouped = own if 1 < own < heads else max(1, heads // 4)
        variants = []
        for kind, kv_heads in (("MHA", heads), ("GQA", grouped), ("MQA", 1)):
            in_all = self.shape.kv_heads_in_all * kv_heads // own
            other = replace(self, shape=replace(self.shape, kv_heads_in_all=in_all))
            size = other.session_bytes
            sessions = self._sessions_in(size)
            variants.append(Heads(kind, kv_heads, size, sessions, kv_heads == own))
        return variants

    def outside(self) -> Sequence[str]:
        """Sentences about what the formula does not cover."""
        sentences = []
        if self.shape.kv_heads_in_all and not self.shape.value_length:
            sentences.append(
                "Latent attention (MLA) is outside the formula: a token keeps one row of "
                f"{self.shape.key_length:,} elements a layer, from which keys and values are read."
            )
        if count := self.shape.layers_without_kv:
            sentences.append(
                f"{count} of {self.shape.layers} layers are outside the formula: they keep no keys "
                "and values. A recurrent layer keeps a state of fixed size for each session."
            )
        return sentences

    def in_precision(self, name: str) -> Sizing:
        """This sizing with all weights in the precision `name`. Raises `KeyError` if unknown."""
        size = round(self.parameters * precision_bits(name) / 8)
        share = self.read_bytes / self.weight_bytes if self.weight_bytes else 0.0
        read = round(share * size)
        return replace(self, weight_bytes=size, precision=name, read_bytes=read)

    def tok_per_s(self, bandwidth: float) -> float | None:
        """Tokens per second of all sessions together, if memory bandwidth is the limit. A step
        reads the weights of a dense model once; with experts, it reads those used by each session,
        at most all weights. It also reads the KV cache of each session.

        Args:
            bandwidth: in bytes per second.
        """
        if not self.weight_bytes:
            return None
        weights = self.read_bytes or self.weight_bytes
        if not self.shape.dense:
            weights = min(self.weight_bytes, weights * self.sessions)
        return self.sessions * bandwidth / (weights + self.kv_bytes)

    def to_json(self) -> dict[str, Any]:
        """JSON values with stable keys; sizes in bytes."""
        shape = self.shape
        return {
            "layers": shape.layers,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.key_length,
            "hidden": shape.width,
            "parameters": self.parameters or None,
            "precision": self.precision,
            "tokens": self.tokens,
            "sessions": self.sessions,
            "kv_type": self.kv_type,
            "weight_bytes": self.weight_bytes or None,
            "kv_bytes": self.kv_bytes,
            "kv_bytes_per_session": self.session_bytes,
            "activation_bytes": self.activations,
            "scratch_bytes": self.scratch,
            "total_bytes": self.total if self.weight_bytes else None,
            "calibrating_bytes": self.calibrating if self.weight_bytes else None,
            "memory_bytes": self.memory_bytes,
            "sessions_before_scratch": self.sessions_before_scratch,
            "sessions_that_fit": self.sessions_that_fit,
            "variants": [
                {
                    "kind": one.kind,
                    "kv_heads": one.kv_heads,
                    "kv_bytes_per_session": one.kv_bytes,
                    "sessions_before_scratch": one.sessions,
                    "own": one.is_own,
                }
                for one in self.variants()
            ],
            "outside": list(self.outside()),
        }

    def _sessions_in(self, session_bytes: int) -> int | None:
        if not self.weight_bytes or not session_bytes:
            return None
        return max(0, self.left_bytes // session_bytes)

    @property
    def _graph(self) -> Graph:
        sessions = max(1, self.sessions)
        cells = max(1, self.tokens * self.sessions)
        return Graph(STEP_TOKENS, cells, sessions, sessions, flash=True)


def packing_bytes(threads: int) -> int:
    """Peak memory of quantizing to a GGUF type with `threads` chunks packed at a time."""
    chunk = CHUNK_WEIGHTS * _CHUNK_BYTES_A_WEIGHT
    return _PACKING_BASE_BYTES + threads * (CHUNKS_AHEAD + 1) * chunk
