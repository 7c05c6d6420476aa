"""Qwen2 and Qwen2.5 (biases), Qwen3 (norms of heads) and Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.quant import hf_defaults
from hearth.quant.convert.model import Family, Model, Value
from hearth.quant.convert.origin import Wanted
from hearth.quant.convert.ropes import read_ropes
from hearth.quant.convert.shape import (
    Experts,
    expert_values,
    read_experts,
    refuse_biases,
    refuse_windows,
    require_square,
)
from hearth.quant.convert.tensors import (
    attention,
    expert_tensors,
    feed_forward,
    head_norms,
    model,
    norm,
)
from hearth.quant.hf_shape import MAX_WIDTH, Shape, read_shape
from hearth.quant.json_fields import Fields


def qwen2(fields: Fields) -> Model:
    fields = fields.over(hf_defaults.QWEN)
    shape = read_shape(fields)
    require_square(fields, shape)
    return _model("qwen2", fields, shape)


def qwen3(fields: Fields) -> Model:
    fields = fields.over(hf_defaults.QWEN3)
    shape = read_shape(fields)
    refuse_biases(fields, shape)
    return _model("qwen3", fields, shape)


def qwen3_moe(fields: Fields) -> Model:
    """With experts in every layer, whose weights are made to sum to one, as llama.cpp has it."""
    fields = fields.over(hf_defaults.QWEN)
    key = hf_defaults.require_experts(fields)
    if not fields.flag("norm_topk_prob", False):
        raise fields.unsupported("norm_topk_prob", "true")
    shape = read_shape(fields)
    refuse_biases(fields, shape)
    width = fields.integer("moe_intermediate_size", most=MAX_WIDTH)
    return _model("qwen3moe", fields, shape, read_experts(fields, key, width))


def _model(
    architecture: str, fields: Fields, shape: Shape, experts: Experts | None = None
) -> Model:
    refuse_windows(fields)
    ropes = read_ropes(fields, shape.head_dim, ("linear", "yarn"))
    more: dict[str, Value] = {}
    if experts is not None:
        more = expert_values(experts) | {"expert_feed_forward_length": experts.width}
    layers = (_layer(architecture, shape, layer, experts) for layer in range(shape.layers))
    return model(architecture, shape, ropes, layers, more)


def _layer(
    architecture: str, shape: Shape, layer: int, experts: Experts | None
) -> Iterator[Wanted]:
    has_biases = architecture == "qwen2"
    yield from attention(shape, layer, biases="qkv" if has_biases else "")
    if not has_biases:
        yield from head_norms(shape, layer)
    yield norm(shape, layer, "post_attention_layernorm", "ffn_norm")
    if experts is None:
        yield from feed_forward(shape, layer)
    else:
        names = ("gate_proj", "up_proj", "down_proj")
        yield from expert_tensors(shape, experts, layer, "mlp", names)


QWEN2 = Family(("qwen2",), qwen2)
QWEN3 = Family(("qwen3",), qwen3)
QWEN3_MOE = Family(("qwen3_moe",), qwen3_moe)
