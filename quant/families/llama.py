"""Llama 2 and 3.x, SmolLM2 and all models of that structure; in GGUF also Mistral and Mixtral."""

from __future__ import annotations

from dataclasses import replace

from hearth.quant import hf_defaults
from hearth.quant.families.config import ExpertsConfig, ModelConfig
from hearth.quant.families.family import Family, defaults
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.shapes import (
    MAX_EXPERTS,
    config_of_gguf,
    config_of_hf,
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


def from_hf(fields: Fields) -> ModelConfig:
    return config_of_hf(fields, "llama")


def from_gguf(fields: GgufFields) -> ModelConfig:
    if fields.number("attention.temperature_scale", 0.0):
        raise fields.unsupported("attention.temperature_scale", "attention without temperatures")
    config = config_of_gguf(fields, "llama", interleaved=True)
    window = fields.integer("attention.sliding_window", 0, least=0)
    config = windowed(config, window)
    count = fields.integer("expert_count", 0, least=0, most=MAX_EXPERTS)
    if not count:
        return config
    active = fields.integer("expert_used_count", most=count)
    return replace(config, experts=ExpertsConfig(count, active, width=config.feed_forward))


def layer_names(config: ModelConfig, layer: int) -> dict[str, Source]:
    """The rows of queries and keys are interleaved in GGUF, since llama.cpp rotates neighbouring
    dimensions."""
    sources = attention_names(config, layer, interleaved=True) | feed_forward_norm_names(layer)
    if config.experts is None:
        return sources | feed_forward_names(layer)
    return sources | expert_names(config, layer, "block_sparse_moe", "w1", "w3", "w2")


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    architectures=("llama", "mistral3"),
    complete=defaults(hf_defaults.LLAMA),
    from_complete=from_hf,
    from_gguf=from_gguf,
    layer_names=layer_names,
)
