"""Phi-3, Phi-3.5 and Phi-4: Llama with longrope, and with fused matrices in files."""

from __future__ import annotations

from hearth.quant import hf_defaults
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family, defaults
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.shapes import config_of_gguf, config_of_hf, windowed
from hearth.quant.families.source import Source, one
from hearth.quant.families.tensor_names import (
    attention_names,
    feed_forward_names,
    feed_forward_norm_names,
    prefixes,
)
from hearth.quant.json_fields import Fields


def from_hf(fields: Fields) -> ModelConfig:
    config = config_of_hf(fields, "phi3")
    window = fields.integer("sliding_window", 0, least=0)
    return windowed(config, window)


def from_gguf(fields: GgufFields) -> ModelConfig:
    """Use the window in the file, as the model was trained with it; llama.cpp ignores it."""
    config = config_of_gguf(fields, "phi3")
    window = fields.integer("attention.sliding_window", 0, least=0)
    return windowed(config, window)


def layer_names(config: ModelConfig, layer: int) -> dict[str, Source]:
    hf, gguf, ours = prefixes(layer)
    sources = (
        attention_names(config, layer) | feed_forward_norm_names(layer) | feed_forward_names(layer)
    )
    sources[f"{ours}qkv.weight"] = Source(
        hf=one(f"{hf}self_attn.qkv_proj.weight"), gguf=sources[f"{ours}qkv.weight"].gguf[::-1]
    )
    sources[f"{ours}gate_up.weight"] = Source(
        hf=one(f"{hf}mlp.gate_up_proj.weight"), gguf=one(f"{gguf}ffn_up.weight")
    )
    return sources


PHI3 = Family(
    name="phi3",
    model_types=("phi3",),
    architectures=("phi3",),
    complete=defaults(hf_defaults.PHI3),
    from_complete=from_hf,
    from_gguf=from_gguf,
    layer_names=layer_names,
)
