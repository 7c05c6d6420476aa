"""Phi-3, Phi-3.5 and Phi-4: matrices that are fused in either kind of file, and longrope."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.quant.convert.model import Family, Model, Value
from hearth.quant.convert.origin import Wanted, one
from hearth.quant.convert.ropes import read_ropes
from hearth.quant.convert.shape import (
    Shape,
    read_shape,
    refuse_biases,
    require_square,
    shape_values,
)
from hearth.quant.convert.tensors import model_tensors, norm
from hearth.quant.json_fields import Fields


def phi3(fields: Fields) -> Model:
    """With the window that the file names; llama.cpp leaves it out."""
    fields = fields.over({"rms_norm_eps": 1e-5})
    shape = read_shape(fields)
    refuse_biases(fields, shape)
    require_square(fields, shape)
    ropes = read_ropes(fields, shape.head_dim, ("longrope",), partial=True)
    window = fields.integer("sliding_window", 0, least=0)
    more: dict[str, Value] = {"attention.sliding_window": window} if window else {}
    layers = (_layer(shape, layer) for layer in range(shape.layers))
    return Model(
        "phi3",
        shape_values(shape, ropes) | more,
        model_tensors(shape, ropes.tensors, layers),
        shape.layers,
        shape.vocabulary,
        shape.tied,
    )


def _layer(shape: Shape, layer: int) -> Iterator[Wanted]:
    hf, block = f"model.layers.{layer}.", f"blk.{layer}."
    matrices = (
        ("attn_qkv", "self_attn.qkv_proj", shape.query_rows + 2 * shape.key_rows, shape.width),
        ("attn_output", "self_attn.o_proj", shape.width, shape.query_rows),
        ("ffn_up", "mlp.gate_up_proj", 2 * shape.feed_forward, shape.width),
        ("ffn_down", "mlp.down_proj", shape.width, shape.feed_forward),
    )
    yield norm(shape, layer, "input_layernorm", "attn_norm")
    yield norm(shape, layer, "post_attention_layernorm", "ffn_norm")
    for name, stored, outputs, inputs in matrices:
        yield Wanted(f"{block}{name}.weight", (outputs, inputs), one(f"{hf}{stored}.weight"))


PHI3 = Family(("phi3",), phi3)
