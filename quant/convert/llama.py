"""Llama 2 and 3.x, SmolLM2, SmolLM3, Mistral, Mixtral and all of the same shape."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.quant import hf_defaults
from hearth.quant.convert.model import Family, Model, Value
from hearth.quant.convert.origin import Wanted
from hearth.quant.convert.ropes import Ropes, read_ropes
from hearth.quant.convert.shape import (
    Experts,
    expert_values,
    read_experts,
    refuse_biases,
    refuse_windows,
)
from hearth.quant.convert.tensors import (
    attention,
    expert_tensors,
    feed_forward,
    model,
    norm,
)
from hearth.quant.hf_shape import Shape, read_shape
from hearth.quant.json_fields import Fields

_PERIOD_WITHOUT_POSITIONS = 4
"""Every fourth layer of SmolLM3; llama.cpp knows no other."""


def llama(fields: Fields) -> Model:
    fields = fields.over(hf_defaults.LLAMA)
    return _model(fields, read_shape(fields), {})


def mistral(fields: Fields) -> Model:
    """With the window that the file names; llama.cpp leaves it out, as it always did for these."""
    fields = fields.over(hf_defaults.LLAMA)
    return _model(fields, read_shape(fields), _window(fields))


def mixtral(fields: Fields) -> Model:
    fields = fields.over(hf_defaults.MIXTRAL)
    shape = read_shape(fields)
    experts = read_experts(fields, "num_local_experts", shape.feed_forward, 2)
    return _model(fields, shape, _window(fields) | expert_values(experts), experts)


def smollm3(fields: Fields) -> Model:
    fields = fields.over(hf_defaults.SMOLLM3)
    shape = read_shape(fields)
    refuse_biases(fields, shape)
    refuse_windows(fields)
    _check_positions(fields, shape.layers)
    ropes = read_ropes(fields, shape.head_dim, ("linear", "yarn"))
    layers = (_layer(shape, layer, None) for layer in range(shape.layers))
    return model("smollm3", shape, ropes, layers)


def _window(fields: Fields) -> dict[str, Value]:
    window = fields.integer("sliding_window", 0, least=0)
    return {"attention.sliding_window": window} if window else {}


def _model(
    fields: Fields, shape: Shape, more: dict[str, Value], experts: Experts | None = None
) -> Model:
    ropes: Ropes = read_ropes(fields, shape.head_dim, ("linear", "llama3", "yarn"))
    layers = (_layer(shape, layer, experts) for layer in range(shape.layers))
    return model("llama", shape, ropes, layers, more)


def _layer(shape: Shape, layer: int, experts: Experts | None) -> Iterator[Wanted]:
    biases = "qkv" if shape.biases else ""
    yield from attention(shape, layer, paired=True, biases=biases, out_bias=shape.biases)
    yield norm(shape, layer, "post_attention_layernorm", "ffn_norm")
    if experts is None:
        yield from feed_forward(shape, layer)
    else:
        yield from expert_tensors(shape, experts, layer, "block_sparse_moe", ("w1", "w3", "w2"))


def _check_positions(fields: Fields, layers: int) -> None:
    """Raises `UnsupportedModel` where other layers than every fourth have no positions."""
    key = "no_rope_layers"
    period = fields.integer("no_rope_layer_interval", _PERIOD_WITHOUT_POSITIONS)
    usual = [(layer + 1) % _PERIOD_WITHOUT_POSITIONS != 0 for layer in range(layers)]
    if not fields.has(key):
        if period != _PERIOD_WITHOUT_POSITIONS:
            raise fields.unsupported("no_rope_layer_interval", str(_PERIOD_WITHOUT_POSITIONS))
        return
    # A list of ones for the layers that do have positions, whatever its name says.
    turned = [value != 0 for value in fields.numbers(key)]
    if len(turned) < layers:
        raise fields.wrong(key, f"must have {layers} entries")
    if turned[:layers] != usual:
        raise fields.unsupported(key, "no positions in every fourth layer")


LLAMA = Family(("llama",), llama)
MISTRAL = Family(("mistral",), mistral)
MIXTRAL = Family(("mixtral",), mixtral)
SMOLLM3 = Family(("smollm3",), smollm3)
