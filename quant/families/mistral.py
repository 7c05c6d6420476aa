"""Mistral (Llama with a window) and Mixtral (also with experts). In GGUF both are "llama"."""

from __future__ import annotations

from dataclasses import replace

from hearth.quant import hf_defaults
from hearth.quant.families import llama
from hearth.quant.families.config import ExpertsConfig, ModelConfig
from hearth.quant.families.family import defaults
from hearth.quant.families.shapes import MAX_EXPERTS, config_of_hf, windowed
from hearth.quant.json_fields import Fields


def from_hf(fields: Fields) -> ModelConfig:
    return _with_window(config_of_hf(fields, "mistral"), fields)


def mixtral_from_hf(fields: Fields) -> ModelConfig:
    config = _with_window(config_of_hf(fields, "mixtral"), fields)
    count = fields.integer("num_local_experts", most=MAX_EXPERTS)
    active = fields.integer("num_experts_per_tok", 2, most=count)
    return replace(config, experts=ExpertsConfig(count, active, width=config.feed_forward))


def _with_window(config: ModelConfig, fields: Fields) -> ModelConfig:
    window = fields.integer("sliding_window", 0, least=0)
    return windowed(config, window)


MISTRAL = replace(
    llama.LLAMA,
    name="mistral",
    model_types=("mistral",),
    architectures=(),
    from_complete=from_hf,
)
MIXTRAL = replace(
    MISTRAL,
    name="mixtral",
    model_types=("mixtral",),
    complete=defaults(hf_defaults.MIXTRAL),
    from_complete=mixtral_from_hf,
)
