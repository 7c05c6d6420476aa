"""Attention and half layers in C (`layers.c`), called with the addresses of tensors."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Final, Literal

import torch
from torch import Tensor

from hearth.kernels.cpu.library import CpuLibrary, Part, check

_POINTER = ctypes.c_void_p
_LONG = ctypes.c_int64
_INT = ctypes.c_int32
_FLOAT = ctypes.c_float
_MULTIPLE: Final = 16
"""Row lengths must be a multiple of this."""

KeysValues = tuple[Tensor, Tensor]
_KV_TYPES: Final = {torch.float16: 0, torch.float32: 1, torch.int8: 2}
"""`KvType` of `tiles_api.h`."""
Gate = Literal["silu", "gelu_tanh", "swiglu_clamped"]
_GATES: Final[dict[Gate, int]] = {"silu": 0, "gelu_tanh": 1, "swiglu_clamped": 2}


class _Heads(ctypes.Structure):
    _fields_ = (
        *(("heads", _LONG), ("kv_heads", _LONG), ("head_dim", _LONG), ("page", _LONG)),
        *(("window", _LONG), ("sinks", _POINTER), ("scale", _FLOAT), ("softcap", _FLOAT)),
        *(("key_type", _INT), ("value_type", _INT)),
    )


class _Matrix(ctypes.Structure):
    _fields_ = (
        *(("parts", ctypes.POINTER(Part)), ("count", _LONG), ("outputs", _LONG)),
        ("bias", _POINTER),
    )


class _Experts(ctypes.Structure):
    _fields_ = (
        *(("count", _LONG), ("active", _LONG), ("hides", _LONG)),
        *(("router", _POINTER), ("router_bias", _POINTER)),
        *(("gate_up", ctypes.POINTER(Part)), ("down", ctypes.POINTER(Part))),
        *(("gate_up_parts", _LONG), ("down_parts", _LONG)),
        *(("gate_up_bias", _POINTER), ("down_bias", _POINTER), ("weighs_all", _INT)),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *(("heads", _Heads), ("width", _LONG), ("feed_forward", _LONG)),
        *(("attention_norm", _POINTER), ("query_norm", _POINTER), ("key_norm", _POINTER)),
        *(("attention_post_norm", _POINTER), ("feed_forward_norm", _POINTER)),
        ("feed_forward_post_norm", _POINTER),
        *(("qkv", _Matrix), ("out", _Matrix), ("gate_up", _Matrix), ("down", _Matrix)),
        ("experts", _Experts),
        *(("eps", _FLOAT), ("activation", _INT), ("is_wide", _INT), ("instructions", _INT)),
    )


class Step(ctypes.Structure):
    """A step as the library sees it; points into `Pages`, which must live as long."""

    _fields_ = (
        *(("tokens", _LONG), ("positions", _POINTER), ("tables", _POINTER), ("starts", _POINTER)),
        *(("is_apart", _POINTER), ("runs", _POINTER), ("run_count", _LONG), ("cosines", _POINTER)),
        *(("sines", _POINTER), ("rotated", _LONG), ("blocks", _LONG)),
        *(("known", _POINTER), ("paths", _POINTER), ("reach", _LONG)),
    )


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The shape of a layer's attention.

    Raises:
        ValueError: the kernels do not support the shape.
    """

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float = 0.0

    def __post_init__(self) -> None:
        if self.head_dim % _MULTIPLE or self.heads % self.kv_heads:
            raise ValueError(
                f"heads of {self.head_dim} numbers, {self.heads} over {self.kv_heads}, have no "
                "kernel"
            )


@dataclass(frozen=True, slots=True)
class HalfMatrix:
    """A matrix of a layer, see `TiledMatrix.parts`."""

    parts: ctypes.Array[Part]
    outputs: int
    bias: Tensor | None = None
    """[outputs] float32."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The experts of a layer."""

    router: Tensor
    """[experts, width] float32"""
    active: int
    """Experts per token."""
    hidden: int
    """Size of the hidden layer of an expert."""
    gate_up: HalfMatrix
    """The parts of all experts one after the other, see `GroupedLinear.parts`. Biases of this and
    of `down` are [experts, outputs] float32.
    """
    down: HalfMatrix
    weighs_all: bool
    """The softmax of the weights is over all experts; otherwise over the chosen ones."""
    router_bias: Tensor | None = None
    """[experts] float32"""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of a layer. Norms are float32; None if the layer lacks one."""

    width: int
    feed_forward: int
    eps: float
    gate: Gate
    attention_norm: Tensor
    feed_forward_norm: Tensor
    qkv: HalfMatrix
    out: HalfMatrix
    gate_up: HalfMatrix | None = None
    """None: the layer has experts, or its feed-forward is computed elsewhere."""
    down: HalfMatrix | None = None
    experts: ExpertWeights | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None
    feed_forward_post_norm: Tensor | None = None
    sinks: Tensor | None = None
    """[heads] float32."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The tokens of a step, and the blocks of their sequences in the layers of a group."""

    positions: Tensor
    """[tokens] int64"""
    tables: Tensor
    """int32: the blocks of all sequences, one after the other."""
    starts: Tensor
    """[tokens] int64: index in `tables` of the first block of the token's sequence."""
    is_apart: Tensor
    """[tokens] bool: the token's attention is computed in one of `runs`, or elsewhere."""
    runs: Tensor
    """[runs, 2] int64: consecutive tokens of a sequence whose attention a library with AMX computes
    together, in bfloat16: the first, and the one after the last.
    """
    known: Tensor | None = None
    """[tokens] int64, if some tokens are nodes of a tree: keys and values of positions below it are
    in the cells of the same number in the token's sequence, later ones in the cells in `paths`.
    """
    paths: Tensor | None = None
    """[tokens, deepest] int64: the cells of a token's ancestors in the step, then its own cell.
    """

    def without_attention(self) -> Pages:
        """The same tokens, all of them `is_apart` and in no run."""
        apart = torch.ones_like(self.is_apart)
        return replace(self, is_apart=apart, runs=self.runs[:0])

    def step(self, blocks: int, rotary: tuple[Tensor, Tensor] | None) -> Step:
        """The argument for calls of the library.

        Args:
            blocks: number of blocks in the pool.
            rotary: cosine and sine [tokens, 1, rotated] float32, the sine negative for the first
                half of a head.
        """
        cosines, sines = rotary or (None, None)
        return Step(
            *(len(self.positions), self.positions.data_ptr(), self.tables.data_ptr()),
            *(self.starts.data_ptr(), self.is_apart.data_ptr(), self.runs.data_ptr()),
            *(len(self.runs), _address(cosines), _address(sines)),
            *(0 if cosines is None else cosines.shape[-1], blocks),
            *(_address(self.known), _address(self.paths)),
            0 if self.paths is None else self.paths.shape[1],
        )


class Attention:
    """Attention over pools of pages: keys and values, both [kv_heads, blocks, page, row] of
    float16, float32, or int8 for rows of Q8_0 (`kernels/cpu/tiles_api.h`).

    Args:
        pool: a pool with the page size and dtypes of all pools in calls.
    """

    def __init__(
        self, library: CpuLibrary, shape: HeadShape, pool: KeysValues, sinks: Tensor | None
    ) -> None:
        self._library = library
        self._sinks = sinks
        self._heads = _heads(shape, pool, sinks)
        self._call = library.function("hearth_attend", _HEADS_CALL)

    def __call__(
        self, pool: KeysValues, pages: Pages, query: Tensor, out: Tensor, first: int = 0
    ) -> None:
        """Compute the attention of all tokens that are not `is_apart`, or of some of their heads.

        Args:
            pool: the keys and values that `pages` refer to, or those of some heads.
            query: [tokens, heads, head_dim] float32; the numbers of a token are contiguous.
            out: the same, written.
            first: the index of the first of these heads of keys.
        """
        step = pages.step(pool[0].shape[1], None)
        heads = self._heads
        if len(pool[0]) != heads.kv_heads:
            heads = _Heads.from_buffer_copy(heads)
            heads.heads, heads.kv_heads = query.shape[1], len(pool[0])
            if self._sinks is not None:
                heads.sinks = self._sinks[first * (heads.heads // heads.kv_heads) :].data_ptr()
        check(
            self._call(
                *(heads, step, pool[0].data_ptr(), pool[1].data_ptr(), query.data_ptr()),
                *(query.stride(0), out.data_ptr(), out.stride(0), self._library.set),
            )
        )


_HEADS_CALL: Final = (
    *(ctypes.POINTER(_Heads), ctypes.POINTER(Step), _POINTER, _POINTER, _POINTER, _LONG),
    *(_POINTER, _LONG, _INT),
)
_ATTENTION_CALL: Final = (
    *(ctypes.POINTER(_Layer), ctypes.POINTER(Step), _POINTER, _POINTER, _POINTER, _POINTER),
    _POINTER,
)
_FEED_CALL: Final = (ctypes.POINTER(_Layer), _LONG, _POINTER, _POINTER)


class HalfLayers:
    """A layer in two calls.

    Args:
        pool: as for `Attention`.
        exact: as for `CpuLibrary.multiply`.

    Raises:
        ValueError: the kernels do not support the shape.
    """

    def __init__(
        self,
        library: CpuLibrary,
        shape: HeadShape,
        weights: LayerWeights,
        pool: KeysValues,
        *,
        exact: bool,
    ) -> None:
        dense = weights.feed_forward if weights.gate_up else 0
        sizes = (weights.width, dense, weights.experts.hidden if weights.experts else 0)
        if any(size % _MULTIPLE for size in sizes):
            raise ValueError(f"rows of {sizes} numbers have no kernel")
        self.is_exact = exact
        self.feeds = bool(weights.gate_up or weights.experts)
        """Whether `feed` includes the feed-forward; otherwise it is computed elsewhere."""
        self._held = weights
        self._layer = _Layer(
            *(_heads(shape, pool, weights.sinks), weights.width, weights.feed_forward),
            *map(_address, (weights.attention_norm, weights.query_norm, weights.key_norm)),
            _address(weights.attention_post_norm),
            *map(_address, (weights.feed_forward_norm, weights.feed_forward_post_norm)),
            *map(_matrix, (weights.qkv, weights.out, weights.gate_up, weights.down)),
            _experts(weights.experts),
            *(weights.eps, _GATES[weights.gate], exact, library.set),
        )
        self._attend = library.function("hearth_attention_half", _ATTENTION_CALL)
        self._feed = library.function("hearth_feed_half", _FEED_CALL)

    def attend(
        self, pool: KeysValues, step: Step, hidden: Tensor, qkv: Tensor, attended: Tensor
    ) -> None:
        """Norm, QKV product with rotary positions, storing keys and values in the pool, attention.

        Args:
            pool: the keys and values of the layer.
            step: from `Pages.step`, for the pool.
            hidden: [tokens, width] float32; all tensors are contiguous.
            qkv: [tokens, heads + 2 kv_heads, head_dim] float32, written.
            attended: [tokens, heads, head_dim] float32, written for tokens not `is_apart`.
        """
        check(
            self._attend(
                *(self._layer, step, pool[0].data_ptr(), pool[1].data_ptr(), hidden.data_ptr()),
                *(qkv.data_ptr(), attended.data_ptr()),
            )
        )

    def feed(self, attended: Tensor, hidden: Tensor) -> None:
        """Add the output projection of `attended` and the feed-forward, if any, to `hidden`
        [tokens, width] float32.
        """
        check(self._feed(self._layer, len(hidden), attended.data_ptr(), hidden.data_ptr()))


def _heads(shape: HeadShape, pool: KeysValues, sinks: Tensor | None) -> _Heads:
    for side in pool:
        if side.dtype not in _KV_TYPES:
            raise ValueError(f"keys and values of {side.dtype} have no kernel")
    return _Heads(
        *(shape.heads, shape.kv_heads, shape.head_dim, pool[0].shape[2], shape.window or 0),
        *(_address(sinks), shape.scale, shape.softcap),
        *(_KV_TYPES[side.dtype] for side in pool),
    )


def _matrix(matrix: HalfMatrix | None) -> _Matrix:
    if matrix is None:
        return _Matrix()
    return _Matrix(matrix.parts, len(matrix.parts), matrix.outputs, _address(matrix.bias))


def _experts(about: ExpertWeights | None) -> _Experts:
    if about is None:
        return _Experts()
    count, gate_up, down = len(about.router), about.gate_up, about.down
    return _Experts(
        *(count, about.active, about.hidden, _address(about.router), _address(about.router_bias)),
        *(gate_up.parts, down.parts, len(gate_up.parts) // count, len(down.parts) // count),
        *(_address(gate_up.bias), _address(down.bias), about.weighs_all),
    )


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
