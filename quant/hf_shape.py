"""The shapes of a decoder, as `config.json` tells them: what all families say alike."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.quant.gguf.hparams import MAX_LAYERS
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


def read_shape(
    fields: Fields,
    *,
    activation_key: str = "hidden_act",
    activation: str = "silu",
    most_layers: int = MAX_LAYERS,
) -> Shape:
    """The shape that `config.json` tells.

    Args:
        activation_key, activation: the one that a decoder computes, and where the file has it.

    Raises:
        UnsupportedModel: an activation, a quantization or biases that there is no code for.
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
        layers=fields.integer("num_hidden_layers", most=most_layers),
        norm_eps=fields.positive("rms_norm_eps"),
        tied=fields.flag("tie_word_embeddings", False),
        biases=fields.flag("attention_bias", False),
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
