"""The configuration of a decoder, which a family reads from `config.json` or GGUF metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "swiglu_clamped"]
"""Activation of the feed-forward's gate. `swiglu_clamped` is that of gpt-oss:
gate·sigmoid(1.702·gate)·(up + 1), both clamped at 7.
"""
RopeKind = Literal["linear", "llama3", "yarn", "longrope"]
Routing = Literal["softmax_then_topk", "topk_then_softmax"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are extended beyond the context that a model was first trained for.

    Fields that a kind does not use keep their defaults.
    """

    kind: RopeKind
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    """For llama3, as is `low_freq_factor`."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """For yarn: whether the bounds of the ramp are rounded to whole dimensions."""
    attention_factor: float = 1.0
    """For yarn and longrope: the factor of cosine and sine."""
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    """For longrope, [dimensions / 2]: `short_factors` apply to contexts up to `original_context`,
    `long_factors` to longer ones."""
    frequency_factors: tuple[float, ...] = ()
    """The divisor of each frequency, [dimensions / 2], if a file has them instead of a formula
    (GGUF's `rope_freqs.weight`).
    """


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions in the half-split ("neox") layout: dimension i is rotated with i + d / 2."""

    theta: float
    dimensions: int
    """Number of leading dimensions of a head that are rotated."""
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """The settings that may differ between layers."""

    rope: Rope | None
    """None: no rotary positions (every fourth layer of SmolLM3)."""
    window: int | None = None
    """A token attends to itself and the `window` - 1 tokens before it; None: to all before it."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts in place of each feed-forward."""

    count: int
    active: int
    width: int
    """Width of one expert's hidden layer."""
    routing: Routing = "softmax_then_topk"
    renormalise: bool = True
    """For softmax_then_topk: the weights of the chosen experts are scaled to sum to one."""
    biases: bool = False
    """Router and experts have biases (gpt-oss)."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder. Shapes are named as in `hearth.backends.native.models.decoder`."""

    family: str
    vocab_size: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    """Width of the hidden layer; unused with experts."""
    layers: tuple[LayerConfig, ...]
    context: int
    """Context length in tokens that the model was trained for, scaling included."""
    norm_eps: float
    tied: bool
    """The output matrix is the embedding."""
    activation: Activation = "silu"
    experts: ExpertsConfig | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    """Whether attention's output matrix has a bias."""
    head_norms: bool = False
    """Queries and keys are normalised head by head before they are rotated."""
    post_norms: bool = False
    """The outputs of attention and feed-forward are normalised before they are added (Gemma 2 and
    3)."""
    overflows_f16: bool = False
    """The residual stream, or an output that is added to it, exceeds the range of float16 (Gemma 2
    and 3, gpt-oss).
    """
    sinks: bool = False
    """Each head has a learned score that takes part in the softmax but has no value (gpt-oss)."""
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    """Factor of attention scores; 0: 1 / sqrt(head_dim)."""
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    """The cap c of c·tanh(x / c), as for `attention_softcap`; 0: no cap."""

    @property
    def scale(self) -> float:
        """Factor of attention scores."""
        return self.attention_scale or float(self.head_dim) ** -0.5

    @property
    def groups(self) -> tuple[int | None, ...]:
        """The distinct windows, full attention (None) first. Layers of one group hold the same
        tokens, so they share their block tables.
        """
        windows = {layer.window for layer in self.layers}
        full: tuple[int | None, ...] = (None,) if None in windows else ()
        return full + tuple(sorted(window for window in windows if window is not None))

    def for_context(self, tokens: int) -> ModelConfig:
        """The config for sequences of at most `tokens` tokens: windows of at least that size become
        None."""
        layers = tuple(
            replace(layer, window=None) if layer.window and layer.window >= tokens else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)

    @property
    def kv_elements(self) -> int:
        """Number of elements of keys and values that one layer keeps for one token."""
        return 2 * self.kv_heads * self.head_dim
