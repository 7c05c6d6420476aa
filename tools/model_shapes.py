"""Shapes of real models, and of tiny ones for tests: sizes, and the tensors that follow from them.

Tensor names and layouts are those of llama.cpp's `src/models/<architecture>.cpp`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONVOLUTION_TAPS = 3
"""Tokens that a layer of `Shape.recurrent_layers` sees, as in all LFM2 models."""
_ATTENTION_GAIN = 2**0.5
"""Gain on queries and keys, so that attention prefers some tokens, as in a trained model."""
_ROPE_TRAINED = 8192
"""Context that Llama 3's rotation frequencies were trained with before they were stretched."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The architecture and dimensions of a model."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_length: int
    feed_forward: int
    context: int
    rope_base: float
    vocabulary: str = "synthetic"
    """Default source of the tokens: "synthetic", or a name for `vocabularies.from_sdist`."""
    tokens: int = 0
    """Number of rows of the embedding; 0: as many as the vocabulary has tokens."""
    tied: bool = False
    """The embedding is also used as the output matrix."""
    head_norms: bool = False
    post_norms: bool = False
    rope_stretch: float = 1.0
    """Llama 3's scaling of the low rotation frequencies; 1 for none."""
    sliding_window: int = 0
    """Window of every other layer in tokens, beginning with the first layer; 0: no windows."""
    recurrent_layers: tuple[int, ...] = ()
    """Layers with a short convolution over the last tokens in place of attention (LFM2)."""
    experts: int = 0
    """Number of experts per layer, each with a hidden layer of `feed_forward`; 0: dense layers."""
    active_experts: int = 0
    """Number of experts that each token uses."""


SHAPES: dict[str, Shape] = {
    "qwen3-0.6b": Shape(
        architecture="qwen3",
        layers=28,
        width=1024,
        heads=16,
        kv_heads=8,
        head_length=128,
        feed_forward=3072,
        context=40960,
        rope_base=1e6,
        vocabulary="qwen2",
        tokens=151_936,
        tied=True,
        head_norms=True,
    ),
    "llama-3.2-1b": Shape(
        architecture="llama",
        layers=16,
        width=2048,
        heads=32,
        kv_heads=8,
        head_length=64,
        feed_forward=8192,
        context=131_072,
        rope_base=5e5,
        vocabulary="llama-bpe",
        tokens=128_256,
        tied=True,
        rope_stretch=32.0,
    ),
    "qwen3-30b-a3b-4-layers": Shape(
        architecture="qwen3moe",
        layers=4,
        width=2048,
        heads=32,
        kv_heads=4,
        head_length=128,
        feed_forward=768,
        context=40960,
        rope_base=1e6,
        tokens=16_384,
        head_norms=True,
        experts=128,
        active_experts=8,
    ),
    "tiny-llama": Shape(
        architecture="llama",
        layers=2,
        width=128,
        heads=4,
        kv_heads=2,
        head_length=32,
        feed_forward=256,
        context=8192,
        rope_base=1e4,
    ),
    "tiny-experts": Shape(
        architecture="qwen3moe",
        layers=2,
        width=256,
        heads=4,
        kv_heads=2,
        head_length=32,
        feed_forward=64,
        context=8192,
        rope_base=1e4,
        head_norms=True,
        experts=8,
        active_experts=3,
    ),
    "tiny-hybrid": Shape(
        architecture="lfm2",
        layers=4,
        width=128,
        heads=4,
        kv_heads=2,
        head_length=32,
        feed_forward=256,
        context=8192,
        rope_base=1e4,
        head_norms=True,
        recurrent_layers=(0, 2),
    ),
    "tiny-swa": Shape(
        architecture="gemma3",
        layers=4,
        width=128,
        heads=4,
        kv_heads=2,
        head_length=32,
        feed_forward=256,
        context=8192,
        rope_base=1e4,
        head_norms=True,
        post_norms=True,
        sliding_window=32,
    ),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: random with a standard deviation, or given."""

    name: str
    dims: tuple[int, ...]
    """In numpy's order: [out, in] for matrices, [experts, out, in] for stacked ones."""
    deviation: float = 0.0
    values: NDArray[np.float32] | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether llama.cpp would quantize it; it never does so to convolutions and routers."""
        never = ("shortconv.conv." in self.name, "ffn_gate_inp." in self.name)
        return len(self.dims) > 1 and not any(never)


def tensors_of(shape: Shape, tokens: int) -> Iterator[Tensor]:
    """All tensors of a model in file order; their names are llama.cpp's."""
    width = shape.width
    yield Tensor("token_embd.weight", (tokens, width), width**-0.5)
    final_norm = "token_embd_norm" if shape.architecture == "lfm2" else "output_norm"
    yield _norm(f"{final_norm}.weight", width)
    if not shape.tied:
        yield Tensor("output.weight", (tokens, width), width**-0.5)
    if shape.rope_stretch != 1.0:
        factors = _rope_factors(shape)
        yield Tensor("rope_freqs.weight", factors.shape, values=factors)
    for layer in range(shape.layers):
        yield from _layer(shape, layer)


def _layer(shape: Shape, layer: int) -> Iterator[Tensor]:
    """Matrices preserve the size of their input. Those that add to the residual stream together
    cause one step of growth (GPT-2's rule).
    """
    block = f"blk.{layer}."
    width, hidden = shape.width, shape.feed_forward
    residual = (2 * shape.layers) ** -0.5
    yield _norm(f"{block}attn_norm.weight", width)
    if layer in shape.recurrent_layers:
        taps = CONVOLUTION_TAPS
        yield Tensor(f"{block}shortconv.conv.weight", (width, taps), taps**-0.5)
        yield Tensor(f"{block}shortconv.in_proj.weight", (3 * width, width), width**-0.5)
        yield Tensor(f"{block}shortconv.out_proj.weight", (width, width), width**-0.5 * residual)
    else:
        query, key = shape.heads * shape.head_length, shape.kv_heads * shape.head_length
        gain = 1.0 if shape.head_norms else _ATTENTION_GAIN
        yield Tensor(f"{block}attn_q.weight", (query, width), width**-0.5 * gain)
        yield Tensor(f"{block}attn_k.weight", (key, width), width**-0.5 * gain)
        yield Tensor(f"{block}attn_v.weight", (key, width), width**-0.5)
        yield Tensor(f"{block}attn_output.weight", (width, query), query**-0.5 * residual)
        if shape.head_norms:
            yield _norm(f"{block}attn_q_norm.weight", shape.head_length, _ATTENTION_GAIN)
            yield _norm(f"{block}attn_k_norm.weight", shape.head_length, _ATTENTION_GAIN)
    if shape.post_norms:
        yield _norm(f"{block}post_attention_norm.weight", width)
        yield _norm(f"{block}post_ffw_norm.weight", width)
    yield _norm(f"{block}ffn_norm.weight", width)
    stack: tuple[int, ...] = (shape.experts,) if shape.experts else ()
    name = f"{block}ffn_{{}}_exps.weight" if stack else f"{block}ffn_{{}}.weight"
    if stack:
        yield Tensor(f"{block}ffn_gate_inp.weight", (shape.experts, width), width**-0.5)
    yield Tensor(name.format("gate"), (*stack, hidden, width), width**-0.5)
    yield Tensor(name.format("up"), (*stack, hidden, width), width**-0.5)
    yield Tensor(name.format("down"), (*stack, width, hidden), hidden**-0.5 * residual)


def _norm(name: str, size: int, weight: float = 1.0) -> Tensor:
    return Tensor(name, (size,), values=np.full(size, weight, np.float32))


def _rope_factors(shape: Shape) -> NDArray[np.float32]:
    """Divisor of each rotation frequency: 1 for frequencies with four or more turns within the
    trained context, the full stretch for those with less than one turn, and interpolated between
    the two otherwise.
    """
    powers = np.arange(0, shape.head_length, 2) / shape.head_length
    turns = _ROPE_TRAINED * shape.rope_base**-powers / (2 * math.pi)
    blend = np.clip((turns - 1) / 3, 0, 1)
    return (1 / ((1 - blend) / shape.rope_stretch + blend)).astype(np.float32)
