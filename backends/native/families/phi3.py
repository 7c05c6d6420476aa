"""Phi-3, Phi-3.5 and Phi-4: Llama with its matrices fused in files, and longrope."""

from __future__ import annotations

from collections.abc import Mapping

from hearth.backends.native.config import ModelConfig
from hearth.backends.native.families.family import Family
from hearth.backends.native.families.gguf_fields import GgufFields
from hearth.backends.native.families.shapes import config_of_gguf, config_of_hf, windowed
from hearth.backends.native.families.source import Source, one
from hearth.backends.native.families.tensor_names import (
    attention_names,
    collected,
    feed_forward_names,
    feed_forward_norm_names,
)
from hearth.quant import hf_defaults
from hearth.quant.json_fields import Fields


def from_hf(fields: Fields) -> ModelConfig:
    config = config_of_hf(fields.over(hf_defaults.PHI3), "phi3")
    window = fields.integer("sliding_window", 0, least=0)
    return windowed(config, (True,) * len(config.layers), window)


def from_gguf(fields: GgufFields) -> ModelConfig:
    """With the window that the file names, as the model was trained; llama.cpp leaves it out."""
    config = config_of_gguf(fields, "phi3")
    window = fields.integer("attention.sliding_window", 0, least=0)
    return windowed(config, (True,) * len(config.layers), window)


def names(config: ModelConfig) -> Mapping[str, Source]:
    return collected(config, (_layer_names(config, layer) for layer in range(len(config.layers))))


def _layer_names(config: ModelConfig, layer: int) -> dict[str, Source]:
    hf, gguf, ours = f"model.layers.{layer}.", f"blk.{layer}.", f"layers.{layer}."
    found = (
        attention_names(config, layer) | feed_forward_norm_names(layer) | feed_forward_names(layer)
    )
    found[f"{ours}qkv.weight"] = Source(
        hf=one(f"{hf}self_attn.qkv_proj.weight"), gguf=found[f"{ours}qkv.weight"].gguf
    )
    found[f"{ours}gate_up.weight"] = Source(
        hf=one(f"{hf}mlp.gate_up_proj.weight"), gguf=one(f"{gguf}ffn_up.weight")
    )
    return found


PHI3 = Family("phi3", ("phi3",), ("phi3",), from_hf, from_gguf, names)
