"""What a decoder is made of: read from `config.json` or GGUF metadata by a family, and from
nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "swiglu_clamped"]
"""Of the feed-forward's gate. `swiglu_clamped` is gpt-oss's: gate·sigmoid(1.702·gate)·(up + 1),
both clamped at 7.
"""
RopeKind = Literal["linear", "llama3", "yarn", "longrope"]
Routing = Literal["softmax_then_topk", "topk_then_softmax"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the context that a model was first trained for.

    Fields that a kind does not use keep their defaults.
    """

    kind: RopeKind
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    """Of llama3."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Of yarn: whether the borders of the ramp are rounded to whole dimensions."""
    attention_factor: float = 1.0
    """Of yarn and longrope: what cosine and sine are multiplied by."""
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    """Of longrope, [dimensions / 2]: contexts up to `original_context`, and longer ones."""
    frequency_factors: tuple[float, ...] = ()
    """What each frequency is divided by, where a file gives it instead of a formula (GGUF's
    `rope_freqs.weight`), [dimensions / 2].
    """


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions, in the layout of halves ("neox"): dimension i is rotated with i + d / 2."""

    theta: float
    dimensions: int
    """Of a head that are rotated, from the first on."""
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What may differ between layers."""

    rope: Rope | None
    """None: no positions at all (SmolLM3's fourth layers)."""
    window: int | None = None
    """A token sees itself and the `window` - 1 before it; None: all."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts in place of each feed-forward."""

    count: int
    active: int
    width: int
    """Of one expert's hidden layer."""
    routing: Routing = "softmax_then_topk"
    renormalise: bool = True
    """Of softmax_then_topk: the chosen weights are made to sum to one."""
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
    """Width of the hidden layer; with experts unused."""
    layers: tuple[LayerConfig, ...]
    context: int
    """Tokens that the model was trained for, scaling included."""
    norm_eps: float
    tied: bool
    """The output matrix is the embedding."""
    activation: Activation = "silu"
    experts: ExpertsConfig | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    """Of attention's output matrix."""
    head_norms: bool = False
    """Queries and keys are normalised head by head before they are rotated."""
    post_norms: bool = False
    """What attention and feed-forward give is normalised before it is added (Gemma 2 and 3)."""
    overflows_f16: bool = False
    """What flows from layer to layer, or what is added to it, becomes greater than float16 can say
    (Gemma 2 and 3, gpt-oss).
    """
    sinks: bool = False
    """Each head has a learned score that takes part in the softmax and has no value (gpt-oss)."""
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    """What scores are multiplied by; 0: 1 / sqrt(head_dim)."""
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    """c·tanh(x / c); 0: none."""

    @property
    def scale(self) -> float:
        """What attention scores are multiplied by."""
        return self.attention_scale or float(self.head_dim) ** -0.5

    @property
    def groups(self) -> tuple[int | None, ...]:
        """The windows that occur, each once, full attention (None) first: layers of one group hold
        the same tokens, so they share their block tables.
        """
        windows = {layer.window for layer in self.layers}
        full: tuple[int | None, ...] = (None,) if None in windows else ()
        return full + tuple(sorted(window for window in windows if window is not None))

    def for_context(self, tokens: int) -> ModelConfig:
        """For sequences of at most `tokens` tokens: a window that holds so many is None."""
        layers = tuple(
            replace(layer, window=None) if layer.window and layer.window >= tokens else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)

    @property
    def kv_elements(self) -> int:
        """Numbers that one layer keeps for one token, keys and values."""
        return 2 * self.kv_heads * self.head_dim
