"""The part of a config that all families share: a decoder's shapes, from config.json or GGUF.

Both readers return a plain config, without experts, with full attention and the same rotary
positions in all layers; a family replaces the fields that differ (`dataclasses.replace`).
"""

from __future__ import annotations

from dataclasses import replace

from hearth.quant.families.config import LayerConfig, ModelConfig
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.ropes import context_of_hf, rope_of_gguf, rope_of_hf
from hearth.quant.json_fields import Fields

MAX_WIDTH = 1 << 20
MAX_VOCABULARY = 1 << 24
MAX_LAYERS = 1024
MAX_EXPERTS = 4096


def config_of_hf(
    fields: Fields,
    family: str,
    *,
    activation_key: str = "hidden_act",
    activation: str = "silu",
    layer_type: str = "",
) -> ModelConfig:
    """The shapes in `config.json`.

    Args:
        activation_key, activation: the key of the activation, and the value that the decoder
            supports.
        layer_type: see `rope_of_hf`.

    Raises:
        UnsupportedModel: an activation, biases or attention that the decoder does not support.
        CorruptFile: a value is invalid.
    """
    if fields.has(activation_key) and fields.text(activation_key) != activation:
        raise fields.unsupported(activation_key, activation)
    if fields.flag("mlp_bias", False):
        raise fields.unsupported("mlp_bias", "feed-forwards without biases")
    if not fields.flag("is_causal", True):
        raise fields.unsupported("is_causal", "causal attention")
    width = fields.integer("hidden_size", most=MAX_WIDTH)
    heads = fields.integer("num_attention_heads", most=MAX_WIDTH)
    kv_heads = fields.integer("num_key_value_heads", heads, most=heads)
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"must divide the {heads} heads")
    if width % heads and not fields.has("head_dim"):
        raise fields.wrong("num_attention_heads", f"must divide the hidden_size of {width}")
    head_dim = fields.integer("head_dim", max(1, width // heads), most=MAX_WIDTH)
    rope = rope_of_hf(fields, head_dim, layer_type)
    biases = fields.flag("attention_bias", False)
    return ModelConfig(
        family=family,
        vocab_size=fields.integer("vocab_size", most=MAX_VOCABULARY),
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=fields.integer("intermediate_size", most=MAX_WIDTH),
        layers=(LayerConfig(rope),) * fields.integer("num_hidden_layers", most=MAX_LAYERS),
        context=context_of_hf(fields, rope),
        norm_eps=fields.positive("rms_norm_eps"),
        tied=fields.flag("tie_word_embeddings", False),
        qkv_bias=biases,
        out_bias=biases,
    )


def config_of_gguf(
    fields: GgufFields, family: str, *, truncate: bool = True, interleaved: bool = False
) -> ModelConfig:
    """The shapes in GGUF metadata. The model has biases and an output matrix if their tensors are
    stored.

    Args:
        truncate: see `rope_of_gguf`.
        interleaved: rows of queries and keys are interleaved over whole heads (see `Part.heads`).

    Raises:
        UnsupportedModel: shapes that differ between layers, attention that is not causal, or
            interleaved heads that are only partly rotated.
        CorruptFile: a value is invalid.
    """
    if not fields.flag("attention.causal", True):
        raise fields.unsupported("attention.causal", "causal attention")
    layers = fields.integer("block_count", most=MAX_LAYERS)
    width = fields.integer("embedding_length", most=MAX_WIDTH)
    heads = fields.same("attention.head_count", layers)
    kv_heads = fields.same("attention.head_count_kv", layers, heads)
    if heads % kv_heads:
        raise fields.wrong("attention.head_count_kv", f"must divide the {heads} heads")
    head_dim = fields.integer("attention.key_length", max(1, width // heads), most=MAX_WIDTH)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.unsupported("attention.value_length", "values as long as keys")
    rope = rope_of_gguf(fields, head_dim, truncate=truncate)
    if interleaved and rope.dimensions < head_dim:
        raise fields.unsupported(
            "rope.dimension_count", f"rotation of all {head_dim} numbers of a head"
        )
    embedding = fields.shape_of("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        raise fields.unsupported("vocab_size", "models with a matrix token_embd.weight")
    return ModelConfig(
        family=family,
        vocab_size=embedding[0],
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=fields.same("feed_forward_length", layers, 1),
        layers=(LayerConfig(rope),) * layers,
        context=fields.integer("context_length"),
        norm_eps=fields.positive("attention.layer_norm_rms_epsilon"),
        tied=not fields.stores("output.weight"),
        qkv_bias=fields.stores("blk.0.attn_q.bias") or fields.stores("blk.0.attn_qkv.bias"),
        out_bias=fields.stores("blk.0.attn_output.bias"),
    )


def sliding_layers(fields: Fields, layers: int, default: tuple[bool, ...]) -> tuple[bool, ...]:
    """[layers] whether each layer has a sliding window, by `layer_types`, or `default` without it.

    Raises:
        UnsupportedModel: there is another type of layer.
        CorruptFile: the number of types is not the number of layers.
    """
    types = fields.texts("layer_types")
    if not types:
        return default
    if len(types) != layers:
        raise fields.wrong("layer_types", f"must have {layers} entries")
    if not set(types) <= {"sliding_attention", "full_attention"}:
        raise fields.unsupported("layer_types", "sliding_attention and full_attention")
    return tuple(kind == "sliding_attention" for kind in types)


def alternating_windows(fields: Fields, layers: int) -> tuple[bool, ...]:
    """[layers] whether each layer has a sliding window; by default every other, from the first."""
    return sliding_layers(fields, layers, all_but_every(2, layers))


def all_but_every(period: int, layers: int) -> tuple[bool, ...]:
    """[layers] False for every `period`-th layer, as for period 3: True, True, False, True."""
    return tuple((layer + 1) % period != 0 for layer in range(layers))


def windowed(
    config: ModelConfig, window: int, sliding: tuple[bool, ...] | None = None
) -> ModelConfig:
    """`config` with a window in the layers that are `sliding` (None: in all); a window of 0 changes
    nothing. A window that covers the trained context is kept, since a longer context may be used
    (`ModelConfig.for_context`).
    """
    if not window:
        return config
    layers = tuple(
        replace(layer, window=window if is_sliding else None)
        for layer, is_sliding in zip(
            config.layers, sliding or (True,) * len(config.layers), strict=True
        )
    )
    return replace(config, layers=layers)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the parameters that a decoder of `config` may have, by their names in it; names
    of layers are without the prefix "layers.N.". A matrix from i to o is (o, i).
    """
    width, head, hidden = config.width, config.head_dim, config.feed_forward
    queries, keys = config.heads * head, config.kv_heads * head
    table = (config.vocab_size, width)
    norms = ["norm", "attention_norm", "attention_post_norm"]
    norms += ["feed_forward_norm", "feed_forward_post_norm"]
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": (width,) for name in norms} | {
        "embedding.weight": table,
        "output.weight": table,
        "query_norm.weight": (head,),
        "key_norm.weight": (head,),
        "sinks": (config.heads,),
        "qkv.weight": (queries + 2 * keys, width),
        "qkv.bias": (queries + 2 * keys,),
        "out.weight": (width, queries),
        "out.bias": (width,),
        "gate_up.weight": (2 * hidden, width),
        "down.weight": (width, hidden),
    }
    if config.experts is not None:
        count, hidden = config.experts.count, config.experts.width
        shapes |= {
            "router.weight": (count, width),
            "router.bias": (count,),
            "experts.gate_up.weight": (count, 2 * hidden, width),
            "experts.gate_up.bias": (count, 2 * hidden),
            "experts.down.weight": (count, width, hidden),
            "experts.down.bias": (count, width),
        }
    return shapes
