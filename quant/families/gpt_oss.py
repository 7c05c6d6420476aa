"""gpt-oss: experts with biases and a clamped gate, attention sinks, windows in every other layer.

Source of the shapes: transformers' `modeling_gpt_oss`, and llama.cpp's `src/models/openai-moe.cpp`.
"""

from __future__ import annotations

from dataclasses import replace

from hearth.quant.families.config import ExpertsConfig, ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.shapes import (
    MAX_EXPERTS,
    MAX_WIDTH,
    alternating_windows,
    config_of_gguf,
    config_of_hf,
    windowed,
)
from hearth.quant.families.source import Part, Source, joined, one
from hearth.quant.families.tensor_names import (
    attention_names,
    feed_forward_norm_names,
    prefixes,
)
from hearth.quant.hf_defaults import gpt_oss_fields
from hearth.quant.json_fields import Fields


def from_hf(fields: Fields) -> ModelConfig:
    config = config_of_hf(fields, "gpt_oss")
    experts = fields.integer("num_local_experts", most=MAX_EXPERTS)
    active = fields.integer("num_experts_per_tok", most=experts)
    sliding = alternating_windows(fields, len(config.layers))
    config = _with_experts(config, experts, active, config.feed_forward)
    return windowed(config, fields.integer("sliding_window", 0, least=0), sliding)


def from_gguf(fields: GgufFields) -> ModelConfig:
    config = config_of_gguf(fields, "gpt_oss", truncate=False)
    experts = fields.integer("expert_count", most=MAX_EXPERTS)
    active = fields.integer("expert_used_count", most=experts)
    width = fields.same("expert_feed_forward_length", len(config.layers))
    sliding = fields.pattern("attention.sliding_window_pattern", len(config.layers), 2)
    config = _with_experts(config, experts, active, min(width, MAX_WIDTH))
    return windowed(config, fields.integer("attention.sliding_window"), sliding)


def _with_experts(config: ModelConfig, count: int, active: int, width: int) -> ModelConfig:
    experts = ExpertsConfig(count, active, width, routing="topk_then_softmax", biases=True)
    return replace(
        config, activation="swiglu_clamped", sinks=True, overflows_f16=True, experts=experts
    )


def layer_names(config: ModelConfig, layer: int) -> dict[str, Source]:
    hf, gguf, ours = prefixes(layer)
    experts = f"{hf}mlp.experts."
    sources = attention_names(config, layer) | feed_forward_norm_names(
        layer, gguf="post_attention_norm"
    )
    sources[f"{ours}sinks"] = Source(
        hf=one(f"{hf}self_attn.sinks"), gguf=one(f"{gguf}attn_sinks.weight")
    )
    for kind in ("weight", "bias"):
        sources[f"{ours}router.{kind}"] = Source(
            hf=one(f"{hf}mlp.router.{kind}"), gguf=one(f"{gguf}ffn_gate_inp.{kind}")
        )
    both = (f"{experts}gate_up_proj_blocks", f"{experts}gate_up_proj_scales")
    sources[f"{ours}experts.gate_up.weight"] = Source(
        hf=(
            (Part(both, is_mxfp4=True, alternates=True),),
            (Part((f"{experts}gate_up_proj",), is_transposed=True, alternates=True),),
        ),
        gguf=joined(f"{gguf}ffn_gate_exps.weight", f"{gguf}ffn_up_exps.weight"),
        axis=1,
    )
    sources[f"{ours}experts.gate_up.bias"] = Source(
        hf=((Part((f"{experts}gate_up_proj_bias",), alternates=True),),),
        gguf=joined(f"{gguf}ffn_gate_exps.bias", f"{gguf}ffn_up_exps.bias"),
        axis=1,
    )
    both = (f"{experts}down_proj_blocks", f"{experts}down_proj_scales")
    sources[f"{ours}experts.down.weight"] = Source(
        hf=(
            (Part(both, is_mxfp4=True),),
            (Part((f"{experts}down_proj",), is_transposed=True),),
        ),
        gguf=one(f"{gguf}ffn_down_exps.weight"),
        axis=1,
    )
    sources[f"{ours}experts.down.bias"] = Source(
        hf=one(f"{experts}down_proj_bias"), gguf=one(f"{gguf}ffn_down_exps.bias"), axis=1
    )
    return sources


GPT_OSS = Family(
    name="gpt_oss",
    model_types=("gpt_oss",),
    architectures=("gpt-oss",),
    complete=gpt_oss_fields,
    from_complete=from_hf,
    from_gguf=from_gguf,
    layer_names=layer_names,
)
