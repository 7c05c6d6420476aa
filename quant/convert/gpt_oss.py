"""gpt-oss: experts with biases, in MXFP4 or plain, sinks, and windows in every other layer."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.quant.convert.model import Family, Model
from hearth.quant.convert.origin import Origin, Picked, Wanted, one
from hearth.quant.convert.ropes import read_ropes
from hearth.quant.convert.shape import (
    Experts,
    Shape,
    expert_values,
    read_experts,
    read_shape,
    shape_values,
    sliding_layers,
    window_values,
)
from hearth.quant.convert.tensors import attention, model_tensors, norm, router
from hearth.quant.json_fields import Fields

_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
_DEFAULTS = {
    "attention_bias": True,
    "head_dim": 64,
    "num_experts_per_tok": 4,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
}
_FIXED = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def gpt_oss(fields: Fields) -> Model:
    fields = _without_mxfp4(fields.over(_DEFAULTS))
    if not fields.has("rope_parameters") and not fields.has("rope_scaling"):
        fields = fields.over({"rope_parameters": _ROPE})
    for key, value in _FIXED.items():
        if fields.number(key, value) != value:
            raise fields.unsupported(key, f"{value}")
    shape = read_shape(fields)
    if not shape.biases:
        raise fields.unsupported("attention_bias", "attention with biases")
    if shape.tied:
        raise fields.unsupported("tie_word_embeddings", "false")
    experts = read_experts(fields, "num_local_experts", shape.feed_forward)
    ropes = read_ropes(fields, shape.head_dim, ("yarn",), truncate=False)
    usual = tuple(layer % 2 == 0 for layer in range(shape.layers))
    sliding = sliding_layers(fields, shape.layers, usual)
    values = shape_values(shape, ropes) | expert_values(experts)
    values |= window_values(fields, sliding, ropes.context)
    values["expert_feed_forward_length"] = experts.width
    layers = (_layer(shape, experts, layer) for layer in range(shape.layers))
    return Model(
        "gpt-oss",
        values,
        model_tensors(shape, ropes.tensors, layers),
        shape.layers,
        shape.vocabulary,
        shape.tied,
    )


def _without_mxfp4(fields: Fields) -> Fields:
    """The published checkpoints keep their experts in MXFP4, which stays as it is."""
    section = fields.section("quantization_config")
    if section is None or section.text("quant_method") != "mxfp4":
        return fields
    rest = {key: value for key, value in fields.values.items() if key != "quantization_config"}
    return Fields(fields.path, rest, fields.prefix)


def _layer(shape: Shape, experts: Experts, layer: int) -> Iterator[Wanted]:
    hf, block = f"model.layers.{layer}.", f"blk.{layer}."
    yield from attention(shape, layer, biases="qkv", out_bias=True)
    yield Wanted(f"{block}attn_sinks.weight", (shape.heads,), one(f"{hf}self_attn.sinks"))
    yield norm(shape, layer, "post_attention_layernorm", "post_attention_norm")
    yield router(shape, experts, layer, "mlp.router")
    bias = one(f"{hf}mlp.router.bias")
    yield Wanted(f"{block}ffn_gate_inp.bias", (experts.count,), bias)
    wide, narrow = (experts.width, shape.width), (shape.width, experts.width)
    gate, up = (Picked(experts.width, is_up, alternates=True) for is_up in (False, True))
    for part, stored, picked, size in (
        ("gate", "gate_up_proj", gate, wide),
        ("up", "gate_up_proj", up, wide),
        ("down", "down_proj", None, narrow),
    ):
        stem = f"{hf}mlp.experts.{stored}"
        packed = Origin((f"{stem}_blocks", f"{stem}_scales"), packed=True, picked=picked)
        plain = Origin((stem,), transposed=True, picked=picked)
        bias = (Origin((f"{stem}_bias",), picked=picked),)
        name = f"{block}ffn_{part}_exps"
        yield Wanted(f"{name}.weight", (experts.count, *size), (packed, plain))
        yield Wanted(f"{name}.bias", (experts.count, size[0]), bias)


GPT_OSS = Family(("gpt_oss",), gpt_oss)
