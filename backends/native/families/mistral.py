"""Mistral and Mixtral: Llama with a window, and with experts. Their GGUFs say "llama"."""

from __future__ import annotations

from dataclasses import replace

from hearth.backends.native.config import ExpertsConfig, ModelConfig
from hearth.backends.native.families import llama
from hearth.backends.native.families.family import Family
from hearth.backends.native.families.shapes import MAX_EXPERTS, config_of_hf, windowed
from hearth.quant import hf_defaults
from hearth.quant.json_fields import Fields


def from_hf(fields: Fields) -> ModelConfig:
    return _with_window(config_of_hf(fields.over(hf_defaults.LLAMA), "mistral"), fields)


def mixtral_from_hf(fields: Fields) -> ModelConfig:
    config = _with_window(config_of_hf(fields.over(hf_defaults.MIXTRAL), "mixtral"), fields)
    count = fields.integer("num_local_experts", most=MAX_EXPERTS)
    active = fields.integer("num_experts_per_tok", 2, most=count)
    return replace(config, experts=ExpertsConfig(count, active, width=config.feed_forward))


def _with_window(config: ModelConfig, fields: Fields) -> ModelConfig:
    window = fields.integer("sliding_window", 0, least=0)
    return windowed(config, (True,) * len(config.layers), window)


MISTRAL = Family("mistral", ("mistral",), (), from_hf, llama.from_gguf, llama.names)
MIXTRAL = Family("mixtral", ("mixtral",), (), mixtral_from_hf, llama.from_gguf, llama.names)
