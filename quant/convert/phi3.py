"""Phi-3, Phi-3.5 and Phi-4: matrices that are fused in either kind of file, and longrope."""

from __future__ import annotations

from collections.abc import Iterator

from hearth.quant import hf_defaults
from hearth.quant.convert.model import Family, Model, Value
from hearth.quant.convert.origin import Wanted, one
from hearth.quant.convert.ropes import read_ropes
from hearth.quant.convert.shape import refuse_biases, require_square
from hearth.quant.convert.tensors import model, norm
from hearth.quant.hf_shape import Shape, read_shape
from hearth.quant.json_fields import Fields


def phi3(fields: Fields) -> Model:
    """With the window that the file names; llama.cpp leaves it out."""
    fields = fields.over(hf_defaults.PHI3)
    shape = read_shape(fields)
    refuse_biases(fields, shape)
    require_square(fields, shape)
    ropes = read_ropes(fields, shape.head_dim, ("longrope",), partial=True)
    window = fields.integer("sliding_window", 0, least=0)
    more: dict[str, Value] = {"attention.sliding_window": window} if window else {}
    layers = (_layer(shape, layer) for layer in range(shape.layers))
    return model("phi3", shape, ropes, layers, more)


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
