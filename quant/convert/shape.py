"""The numbers that all families have in config.json, and the keys that GGUF has for them."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.quant.convert.model import Value
from hearth.quant.convert.ropes import Ropes
from hearth.quant.gguf.hparams import MAX_EXPERTS, MAX_LAYERS
from hearth.quant.json_fields import Fields

MAX_WIDTH = 1 << 20
MAX_VOCABULARY = 1 << 24


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a decoder."""

    vocabulary: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    layers: int
    norm_eps: float
    tied: bool
    biases: bool
    """Attention has them."""

    @property
    def query_rows(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_rows(self) -> int:
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture in place of each feed-forward."""

    count: int
    active: int
    width: int
    """Of one expert's hidden layer."""


def read_shape(
    fields: Fields, *, activation_key: str = "hidden_act", activation: str = "silu"
) -> Shape:
    """The shape that `config.json` tells.

    Args:
        activation_key, activation: the one that llama.cpp computes, and where the file has it.

    Raises:
        UnsupportedModel: an activation, a quantization or biases that llama.cpp has no code for.
        CorruptFile: a value that cannot be.
    """
    if fields.has("quantization_config"):
        raise fields.unsupported("quantization_config", "weights in F32, F16 and BF16")
    if fields.has(activation_key) and fields.text(activation_key) != activation:
        raise fields.unsupported(activation_key, activation)
    if fields.flag("mlp_bias", False):
        raise fields.unsupported("mlp_bias", "feed-forwards without biases")
    width = fields.integer("hidden_size", most=MAX_WIDTH)
    heads = fields.integer("num_attention_heads", most=MAX_WIDTH)
    kv_heads = fields.integer("num_key_value_heads", heads, most=heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"must divide the {heads} heads")
    if width % heads and not fields.has("head_dim"):
        raise fields.wrong("num_attention_heads", f"must divide the hidden_size of {width}")
    return Shape(
        vocabulary=fields.integer("vocab_size", most=MAX_VOCABULARY),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.integer("head_dim", max(1, width // heads), most=MAX_WIDTH),
        feed_forward=fields.integer("intermediate_size", most=MAX_WIDTH),
        layers=fields.integer("num_hidden_layers", most=MAX_LAYERS),
        norm_eps=fields.positive("rms_norm_eps"),
        tied=fields.flag("tie_word_embeddings", False),
        biases=fields.flag("attention_bias", False),
    )


def read_experts(fields: Fields, count_key: str, width: int, active: int | None = None) -> Experts:
    """The mixture that `config.json` tells; `active` is the family's default."""
    count = fields.integer(count_key, most=MAX_EXPERTS)
    return Experts(count, fields.integer("num_experts_per_tok", active, most=count), width)


def refuse_biases(fields: Fields, shape: Shape) -> None:
    """Raises `UnsupportedModel` where attention has biases that llama.cpp has no place for."""
    if shape.biases:
        raise fields.unsupported("attention_bias", "attention without biases")


def refuse_windows(fields: Fields) -> None:
    """Raises `UnsupportedModel` where layers look through a window that GGUF has no word for."""
    if fields.flag("use_sliding_window", False):
        raise fields.unsupported("use_sliding_window", "false: GGUF has no word for such layers")


def require_square(fields: Fields, shape: Shape) -> None:
    """Raises `UnsupportedModel` where the heads together are not as wide as the embedding."""
    if shape.query_rows != shape.width:
        raise fields.unsupported(
            "head_dim", f"heads that together have the width of {shape.width:,}"
        )


def sliding_layers(fields: Fields, layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """[layers] which of them look through a window: `layer_types`, or `default` without it.

    Raises:
        UnsupportedModel: another type of layer.
        CorruptFile: a type for each layer is not there.
    """
    types = fields.texts("layer_types")
    if not types:
        return default
    if len(types) != layers:
        raise fields.wrong("layer_types", f"must have {layers} entries")
    if not set(types) <= {"sliding_attention", "full_attention"}:
        raise fields.unsupported("layer_types", "sliding_attention and full_attention")
    return tuple(kind == "sliding_attention" for kind in types)


def window_values(fields: Fields, sliding: tuple[bool, ...], context: int) -> dict[str, Value]:
    """The keys for windows in the layers that are `sliding`. Where none is, the window holds the
    whole context: without the key, llama.cpp takes one of its own.
    """
    window = fields.integer("sliding_window", 0, least=0)
    if not window or not any(sliding):
        return {"attention.sliding_window": context}
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": _pattern(sliding),
    }


def _pattern(sliding: tuple[bool, ...]) -> Value:
    """A number n for "all but every n-th", or else a list."""
    for period in range(2, len(sliding) + 1):
        if sliding == tuple((layer + 1) % period != 0 for layer in range(len(sliding))):
            return period
    return sliding


def shape_values(shape: Shape, ropes: Ropes) -> dict[str, Value]:
    """The keys that every architecture has."""
    return {
        "vocab_size": shape.vocabulary,
        "context_length": ropes.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        **ropes.values,
    }


def expert_values(experts: Experts) -> dict[str, Value]:
    """The keys of a mixture of experts."""
    return {"expert_count": experts.count, "expert_used_count": experts.active}
