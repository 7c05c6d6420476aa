"""The tensors that families share: names in safetensors, names in GGUF, shapes.

Source of the names: transformers' modeling files, and llama.cpp's `llama-arch.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from hearth.quant.convert.model import Model, Value
from hearth.quant.convert.origin import Origin, Picked, Wanted, one
from hearth.quant.convert.ropes import Ropes
from hearth.quant.convert.shape import Experts, shape_values
from hearth.quant.errors import UnsupportedModel
from hearth.quant.hf_names import EMBEDDING, HEAD
from hearth.quant.hf_shape import Shape

_ALWAYS_TIED = frozenset({"gemma2"})
"""Architectures for whose output llama.cpp takes the embedding, whatever a file has."""


def model(
    architecture: str,
    shape: Shape,
    ropes: Ropes,
    layers: Iterable[Iterable[Wanted]],
    more: Mapping[str, Value] = MappingProxyType({}),
) -> Model:
    """A model with the keys that every architecture has and `more`, and all its tensors: those
    outside of the layers, factors of rotary positions, and `layers`.

    A tied matrix may be stored as embedding, as output or as both.
    """
    size = (shape.vocabulary, shape.width)
    found = [
        Wanted("token_embd.weight", size, one(EMBEDDING) + (one(HEAD) if shape.tied else ())),
        Wanted("output_norm.weight", (shape.width,), one("model.norm.weight")),
    ]
    if not shape.tied:
        found.append(Wanted("output.weight", size, one(HEAD)))
    found += [
        Wanted(name, (len(factors),), (Origin(values=factors),))
        for name, factors in ropes.tensors.items()
    ]
    for layer in layers:
        found += layer
    values = shape_values(shape, ropes) | dict(more)
    return Model(architecture, values, found, shape.layers, shape.vocabulary, shape.tied)


def with_own_head(model: Model) -> Model:
    """`model`, whose config ties the output matrix to the embedding, with one of its own.

    Raises:
        UnsupportedModel: llama.cpp has no place for it.
    """
    if model.architecture in _ALWAYS_TIED:
        raise UnsupportedModel(
            f"The folder has a tensor '{HEAD}' that differs from the embedding, though config.json "
            f"says that they are one; llama.cpp has no place for it in {model.architecture} "
            "models.",
            "Run the folder with --backend native.",
            field=HEAD,
            architecture=model.architecture,
        )
    embedding, last_norm, *rest = model.tensors
    output = Wanted("output.weight", embedding.shape, one(HEAD))
    return replace(model, tensors=[embedding, last_norm, output, *rest], tied=False)


def norm(shape: Shape, layer: int, stored: str, name: str, *, length: int = 0) -> Wanted:
    """A norm of `layer`; `length` is the width where it is 0."""
    source = one(f"model.layers.{layer}.{stored}.weight")
    return Wanted(f"blk.{layer}.{name}.weight", (length or shape.width,), source)


def attention(
    shape: Shape, layer: int, *, paired: bool = False, biases: str = "", out_bias: bool = False
) -> Iterator[Wanted]:
    """The norm before attention, and its matrices.

    Args:
        paired: llama.cpp turns neighbours, so the rows of queries and keys are moved.
        biases: of which projections there are biases, such as "qkv".
    """
    hf, block = f"model.layers.{layer}.", f"blk.{layer}."
    yield norm(shape, layer, "input_layernorm", "attn_norm")
    rows = {"q": shape.query_rows, "k": shape.key_rows, "v": shape.key_rows}
    heads = {"q": shape.heads, "k": shape.kv_heads, "v": 0} if paired else dict.fromkeys("qkv", 0)
    for part, count in rows.items():
        stored = f"{hf}self_attn.{part}_proj"
        moved = heads[part]
        weight = Origin((f"{stored}.weight",), heads=moved)
        yield Wanted(f"{block}attn_{part}.weight", (count, shape.width), (weight,))
        if part in biases:
            bias = Origin((f"{stored}.bias",), heads=moved)
            yield Wanted(f"{block}attn_{part}.bias", (count,), (bias,))
    yield Wanted(
        f"{block}attn_output.weight",
        (shape.width, shape.query_rows),
        one(f"{hf}self_attn.o_proj.weight"),
    )
    if out_bias:
        source = one(f"{hf}self_attn.o_proj.bias")
        yield Wanted(f"{block}attn_output.bias", (shape.width,), source)


def head_norms(shape: Shape, layer: int) -> Iterator[Wanted]:
    """The norms of queries and keys, head by head."""
    for part in "qk":
        yield norm(
            shape, layer, f"self_attn.{part}_norm", f"attn_{part}_norm", length=shape.head_dim
        )


def feed_forward(shape: Shape, layer: int) -> Iterator[Wanted]:
    """The matrices of a feed-forward without experts."""
    wide, narrow = (shape.feed_forward, shape.width), (shape.width, shape.feed_forward)
    for part, size in (("gate", wide), ("up", wide), ("down", narrow)):
        yield Wanted(
            f"blk.{layer}.ffn_{part}.weight",
            size,
            one(f"model.layers.{layer}.mlp.{part}_proj.weight"),
        )


def router(shape: Shape, experts: Experts, layer: int, stored: str) -> Wanted:
    """The matrix that chooses experts."""
    size = (experts.count, shape.width)
    source = one(f"model.layers.{layer}.{stored}.weight")
    return Wanted(f"blk.{layer}.ffn_gate_inp.weight", size, source)


def expert_tensors(
    shape: Shape, experts: Experts, layer: int, block: str, names: tuple[str, str, str]
) -> Iterator[Wanted]:
    """Router and experts, stored one by one, or stacked with gate and up in one.

    Args:
        block: the name of the feed-forward in safetensors.
        names: an expert's gate, up and down there.
    """
    stem = f"model.layers.{layer}.{block}.experts."
    wide = (experts.count, experts.width, shape.width)
    narrow = (experts.count, shape.width, experts.width)
    yield router(shape, experts, layer, f"{block}.gate")
    for part, stored, size in zip(("gate", "up", "down"), names, (wide, wide, narrow), strict=True):
        each = Origin(tuple(f"{stem}{index}.{stored}.weight" for index in range(experts.count)))
        stacked = Origin((f"{stem}down_proj",))
        if part != "down":
            half = Picked(experts.width, is_up=part == "up")
            stacked = Origin((f"{stem}gate_up_proj",), picked=half)
        yield Wanted(f"blk.{layer}.ffn_{part}_exps.weight", size, (each, stacked))
