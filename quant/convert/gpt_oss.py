"""gpt-oss: experts with biases, in MXFP4 or plain, sinks, and windows in every other layer."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.quant.convert.model import Family, Model
from hearth.quant.convert.origin import Origin, Picked, Wanted, one
from hearth.quant.convert.ropes import read_ropes
from hearth.quant.convert.shape import (
    Experts,
    expert_values,
    read_experts,
    window_values,
)
from hearth.quant.convert.tensors import attention, model, norm, router
from hearth.quant.hf_defaults import gpt_oss_fields
from hearth.quant.hf_shape import Shape, read_shape, sliding_layers
from hearth.quant.json_fields import Fields


def gpt_oss(fields: Fields) -> Model:
    fields = gpt_oss_fields(fields)
    shape = read_shape(fields)
    if not shape.biases:
        raise fields.unsupported("attention_bias", "attention with biases")
    if shape.tied:
        raise fields.unsupported("tie_word_embeddings", "false")
    experts = read_experts(fields, "num_local_experts", shape.feed_forward)
    ropes = read_ropes(fields, shape.head_dim, ("yarn",), truncate=False)
    usual = tuple(layer % 2 == 0 for layer in range(shape.layers))
    sliding = sliding_layers(fields, shape.layers, usual)
    more = expert_values(experts) | window_values(fields, sliding, ropes.context)
    more["expert_feed_forward_length"] = experts.width
    layers = (_layer(shape, experts, layer) for layer in range(shape.layers))
    return model("gpt-oss", shape, ropes, layers, more)


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
