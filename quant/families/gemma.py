"""Gemma 2 and the text part of Gemma 3: additional norms after attention and feed-forward, and
scaled embeddings.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.quant.families.config import LayerConfig, ModelConfig, Rope
from hearth.quant.families.family import Family
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.ropes import rope_of_hf
from hearth.quant.families.shapes import (
    all_but_every,
    alternating_windows,
    config_of_gguf,
    config_of_hf,
    sliding_layers,
    windowed,
)
from hearth.quant.families.source import Source, one
from hearth.quant.families.tensor_names import (
    attention_names,
    feed_forward_names,
    prefixes,
)
from hearth.quant.hf_defaults import GEMMA_LAYERS_OF_27B, gemma2_fields, gemma3_fields
from hearth.quant.json_fields import Fields


def gemma2_from_hf(fields: Fields) -> ModelConfig:
    config = _common_of_hf(fields, "gemma2")
    sliding = alternating_windows(fields, len(config.layers))
    config = replace(config, attention_softcap=fields.number("attn_logit_softcapping", 0.0))
    return windowed(config, fields.integer("sliding_window", 0, least=0), sliding)


def gemma2_from_gguf(fields: GgufFields) -> ModelConfig:
    config = replace(
        _common_of_gguf(fields, "gemma2"),
        attention_softcap=fields.positive("attn_logit_softcapping", 50.0),
        logit_softcap=fields.positive("final_logit_softcapping", 30.0),
    )
    sliding = fields.pattern("attention.sliding_window_pattern", len(config.layers), 2)
    return windowed(config, fields.integer("attention.sliding_window", 4096, least=0), sliding)


def gemma3_from_hf(fields: Fields) -> ModelConfig:
    config = replace(_common_of_hf(fields, "gemma3", "full_attention"), head_norms=True)
    sliding = gemma3_windows(fields, len(config.layers))
    config = _with_local_rope(config, sliding, _local_rope_of_hf(fields, config.head_dim))
    return windowed(config, fields.integer("sliding_window", 0, least=0), sliding)


def gemma3_windows(fields: Fields, layers: int) -> tuple[bool, ...]:
    """[layers] whether each layer has a sliding window."""
    period = fields.integer("sliding_window_pattern", 6)
    return sliding_layers(fields, layers, all_but_every(period, layers))


def gemma3_from_gguf(fields: GgufFields) -> ModelConfig:
    config = replace(
        _common_of_gguf(fields, "gemma3"),
        head_norms=True,
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
    )
    window = fields.integer("attention.sliding_window", 0, least=0)
    if not window:
        return config
    sliding = fields.pattern("attention.sliding_window_pattern", len(config.layers), 6)
    local = Rope(fields.positive("rope.freq_base_swa", 10_000.0), config.head_dim)
    return windowed(_with_local_rope(config, sliding, local), window, sliding)


def layer_names(config: ModelConfig, layer: int) -> dict[str, Source]:
    hf, gguf, ours = prefixes(layer)
    norms = {
        "attention_post_norm": ("post_attention_layernorm", "post_attention_norm"),
        "feed_forward_norm": ("pre_feedforward_layernorm", "ffn_norm"),
        "feed_forward_post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    return (
        attention_names(config, layer)
        | feed_forward_names(layer)
        | {
            f"{ours}{name}.weight": Source(
                hf=one(f"{hf}{there}.weight"), gguf=one(f"{gguf}{in_gguf}.weight")
            )
            for name, (there, in_gguf) in norms.items()
        }
    )


def _common_of_hf(fields: Fields, family: str, layer_type: str = "") -> ModelConfig:
    config = config_of_hf(
        fields,
        family,
        activation_key="hidden_activation",
        activation="gelu_pytorch_tanh",
        layer_type=layer_type,
    )
    return replace(
        _common(config),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        logit_softcap=fields.number("final_logit_softcapping", 0.0),
    )


def _common_of_gguf(fields: GgufFields, family: str) -> ModelConfig:
    """Only the 27B size scales scores by the embedding width divided by the number of heads. GGUF
    has no key for that, so it is inferred from the number of layers (llama.cpp's
    `src/models/gemma2.cpp`, `gemma3.cpp`).
    """
    config = config_of_gguf(fields, family)
    by_width = len(config.layers) == GEMMA_LAYERS_OF_27B[family]
    length = config.width // config.heads if by_width else config.head_dim
    return replace(
        _common(config), attention_scale=fields.positive("attention.scale", length**-0.5)
    )


def _common(config: ModelConfig) -> ModelConfig:
    return replace(
        config,
        activation="gelu_tanh",
        post_norms=True,
        overflows_f16=True,
        embedding_scale=float(config.width) ** 0.5,
    )


def _local_rope_of_hf(fields: Fields, head_dim: int) -> Rope:
    """Rotary positions of the layers with windows. Scaling that the file does not give by layer
    type applies only to the other layers."""
    theta = fields.positive("rope_local_base_freq", 10_000.0)
    parameters = fields.section("rope_parameters")
    if parameters is None or not parameters.has("sliding_attention"):
        return Rope(theta, head_dim)
    local = Fields(fields.path, {**fields.values, "rope_theta": theta}, fields.prefix)
    return rope_of_hf(local, head_dim, "sliding_attention")


def _with_local_rope(config: ModelConfig, sliding: tuple[bool, ...], local: Rope) -> ModelConfig:
    layers = tuple(
        LayerConfig(local) if is_sliding else layer
        for layer, is_sliding in zip(config.layers, sliding, strict=True)
    )
    return replace(config, layers=layers)


GEMMA2 = Family(
    name="gemma2",
    model_types=("gemma2",),
    architectures=("gemma2",),
    complete=gemma2_fields,
    from_complete=gemma2_from_hf,
    from_gguf=gemma2_from_gguf,
    layer_names=layer_names,
    norms_minus_one=True,
)
GEMMA3 = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma3"),
    architectures=("gemma3",),
    complete=gemma3_fields,
    from_complete=gemma3_from_hf,
    from_gguf=gemma3_from_gguf,
    layer_names=layer_names,
    norms_minus_one=True,
)
