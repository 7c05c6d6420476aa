"""Gemma 2 and the text of Gemma 3: norms after each part of a layer too, stored minus one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hearth.quant.convert.model import Family, Model, Value
from hearth.quant.convert.origin import Wanted
from hearth.quant.convert.ropes import Ropes, read_ropes
from hearth.quant.convert.shape import refuse_biases, window_values
from hearth.quant.convert.tensors import (
    attention,
    feed_forward,
    head_norms,
    model,
    norm,
)
from hearth.quant.hf_defaults import GEMMA2_CAPS, GEMMA_LAYERS_OF_27B, gemma2_fields, gemma3_fields
from hearth.quant.hf_ropes import rope_section
from hearth.quant.hf_shape import Shape, read_shape, sliding_layers
from hearth.quant.json_fields import Fields

_LOCAL_THETA = 10_000.0


def gemma2(fields: Fields) -> Model:
    for key in GEMMA2_CAPS:
        if key in fields.values and not fields.has(key):
            raise fields.unsupported(key, "a number: llama.cpp always caps")
    fields = gemma2_fields(fields)
    shape = _shape(fields)
    if not shape.tied:
        raise fields.unsupported("tie_word_embeddings", "true")
    ropes = read_ropes(fields, shape.head_dim, ("linear",))
    usual = tuple(layer % 2 == 0 for layer in range(shape.layers))
    sliding = sliding_layers(fields, shape.layers, usual)
    more: dict[str, Value] = {key: fields.positive(key) for key in GEMMA2_CAPS}
    more |= window_values(fields, sliding, ropes.context) | _scale(fields, shape, "gemma2")
    return _model("gemma2", shape, ropes, more)


def gemma3(fields: Fields) -> Model:
    fields = gemma3_fields(fields)
    if fields.has("attn_logit_softcapping"):
        raise fields.unsupported("attn_logit_softcapping", "none")
    shape = _shape(fields)
    ropes = read_ropes(fields, shape.head_dim, ("linear",), layer_type="full_attention")
    period = fields.integer("sliding_window_pattern", 6)
    usual = tuple((layer + 1) % period != 0 for layer in range(shape.layers))
    sliding = sliding_layers(fields, shape.layers, usual)
    more = _scale(fields, shape, "gemma3")
    if any(sliding):
        if not fields.integer("sliding_window", 0, least=0):
            raise fields.wrong("sliding_window", "must be given, as layers have windows")
        more |= window_values(fields, sliding, ropes.context)
        more["rope.freq_base_swa"] = _local_theta(fields)
    if fields.has("final_logit_softcapping"):
        more["final_logit_softcapping"] = fields.positive("final_logit_softcapping")
    return _model("gemma3", shape, ropes, more)


def _shape(fields: Fields) -> Shape:
    shape = read_shape(fields, activation_key="hidden_activation", activation="gelu_pytorch_tanh")
    refuse_biases(fields, shape)
    return shape


def _scale(fields: Fields, shape: Shape, architecture: str) -> dict[str, Value]:
    """The key for what scores are multiplied by, where it is not what llama.cpp takes by itself: it
    goes by the heads, and for the model of 27 billion, known by its layers, by the width. It does
    not read the key; the native runner does.
    """
    by_width = shape.layers == GEMMA_LAYERS_OF_27B[architecture]
    usual = shape.width // shape.heads if by_width else shape.head_dim
    wanted = fields.positive("query_pre_attn_scalar")
    return {} if wanted == usual else {"attention.scale": wanted**-0.5}


def _local_theta(fields: Fields) -> float:
    """Of the layers with windows, which are never scaled."""
    theta = fields.positive("rope_local_base_freq", _LOCAL_THETA)
    parameters = fields.section("rope_parameters")
    local = None if parameters is None else parameters.section("sliding_attention")
    if local is None:
        return theta
    if local.text("rope_type", "default") != "default":
        raise local.unsupported("rope_type", "default")
    return rope_section(fields, "sliding_attention").positive("rope_theta", theta)


def _model(architecture: str, shape: Shape, ropes: Ropes, more: dict[str, Value]) -> Model:
    layers = (_layer(architecture, shape, layer) for layer in range(shape.layers))
    made = model(architecture, shape, ropes, layers, more)
    tensors = [
        replace(wanted, choices=tuple(replace(one, plus_one=True) for one in wanted.choices))
        if wanted.name.endswith("_norm.weight")
        else wanted
        for wanted in made.tensors
    ]
    return replace(made, tensors=tensors)


def _layer(architecture: str, shape: Shape, layer: int) -> Iterator[Wanted]:
    yield from attention(shape, layer)
    if architecture == "gemma3":
        yield from head_norms(shape, layer)
    yield norm(shape, layer, "post_attention_layernorm", "post_attention_norm")
    yield norm(shape, layer, "pre_feedforward_layernorm", "ffn_norm")
    yield from feed_forward(shape, layer)
    yield norm(shape, layer, "post_feedforward_layernorm", "post_ffw_norm")


GEMMA2 = Family(("gemma2",), gemma2)
GEMMA3 = Family(("gemma3", "gemma3_text"), gemma3)
