"""Qwen2 and Qwen2.5 (with biases), Qwen3 (with head norms) and Qwen3-MoE."""

from __future__ import annotations

from dataclasses import replace

from hearth.quant import hf_defaults
from hearth.quant.families.config import ExpertsConfig, ModelConfig
from hearth.quant.families.family import Family, defaults
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.shapes import (
    MAX_EXPERTS,
    MAX_WIDTH,
    config_of_gguf,
    config_of_hf,
    sliding_layers,
    windowed,
)
from hearth.quant.families.source import Source
from hearth.quant.families.tensor_names import (
    attention_names,
    expert_names,
    feed_forward_names,
    feed_forward_norm_names,
)
from hearth.quant.json_fields import Fields


def qwen2_from_hf(fields: Fields) -> ModelConfig:
    config = config_of_hf(fields, "qwen2")
    config = replace(config, qkv_bias=True, out_bias=False)
    return _with_upper_windows(config, fields)


def qwen2_from_gguf(fields: GgufFields) -> ModelConfig:
    return config_of_gguf(fields, "qwen2")


def qwen3_from_hf(fields: Fields) -> ModelConfig:
    config = config_of_hf(fields, "qwen3")
    config = replace(config, head_norms=True)
    return _with_upper_windows(config, fields)


def qwen3_from_gguf(fields: GgufFields) -> ModelConfig:
    return replace(config_of_gguf(fields, "qwen3"), head_norms=True)


def moe_from_hf(fields: Fields) -> ModelConfig:
    key = hf_defaults.require_experts(fields)
    count = fields.integer(key, most=MAX_EXPERTS)
    experts = ExpertsConfig(
        count,
        active=fields.integer("num_experts_per_tok", most=count),
        width=fields.integer("moe_intermediate_size", most=MAX_WIDTH),
        renormalise=fields.flag("norm_topk_prob", False),
    )
    config = config_of_hf(fields, "qwen3_moe")
    config = replace(config, head_norms=True, experts=experts)
    if not fields.flag("use_sliding_window", False):
        return config
    return windowed(config, fields.integer("sliding_window", 4096))


def moe_from_gguf(fields: GgufFields) -> ModelConfig:
    count = fields.integer("expert_count", most=MAX_EXPERTS)
    config = config_of_gguf(fields, "qwen3_moe")
    active = fields.integer("expert_used_count", most=count)
    default = max(1, config.feed_forward // active)
    width = fields.same("expert_feed_forward_length", len(config.layers), default)
    experts = ExpertsConfig(
        count, active, width, renormalise=fields.flag("expert_weights_norm", True)
    )
    return replace(config, head_norms=True, experts=experts)


def layer_names(config: ModelConfig, layer: int) -> dict[str, Source]:
    sources = attention_names(config, layer) | feed_forward_norm_names(layer)
    if config.experts is None:
        return sources | feed_forward_names(layer)
    return sources | expert_names(config, layer, "mlp", "gate_proj", "up_proj", "down_proj")


def _with_upper_windows(config: ModelConfig, fields: Fields) -> ModelConfig:
    """If windows are enabled, they apply to the layers from `max_window_layers` on."""
    if not fields.flag("use_sliding_window", False):
        return config
    count = len(config.layers)
    first = fields.integer("max_window_layers", 28, least=0)
    sliding = sliding_layers(fields, count, tuple(layer >= first for layer in range(count)))
    return windowed(config, fields.integer("sliding_window", 4096), sliding)


QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    architectures=("qwen2",),
    complete=defaults(hf_defaults.QWEN),
    from_complete=qwen2_from_hf,
    from_gguf=qwen2_from_gguf,
    layer_names=layer_names,
)
QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    architectures=("qwen3",),
    complete=defaults(hf_defaults.QWEN3),
    from_complete=qwen3_from_hf,
    from_gguf=qwen3_from_gguf,
    layer_names=layer_names,
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    architectures=("qwen3moe",),
    complete=defaults(hf_defaults.QWEN),
    from_complete=moe_from_hf,
    from_gguf=moe_from_gguf,
    layer_names=layer_names,
)
