"""The keys that GGUF has for what all families have in config.json."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.quant.convert.model import Value
from hearth.quant.convert.ropes import Ropes
from hearth.quant.gguf.hparams import MAX_EXPERTS
from hearth.quant.hf_shape import Shape
from hearth.quant.json_fields import Fields


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture in place of each feed-forward."""

    count: int
    active: int
    width: int
    """Of one expert's hidden layer."""


def read_experts(fields: Fields, count_key: str, width: int, active: int | None = None) -> Experts:
    """The mixture that `config.json` tells; `active` is the family's default."""
    count = fields.integer(count_key, most=MAX_EXPERTS)
    return Experts(count, fields.integer("num_experts_per_tok", active, most=count), width)


def refuse_biases(fields: Fields, shape: Shape) -> None:
    """Raises `UnsupportedModel` where attention has biases that llama.cpp has no place for."""
    if shape.biases:
        raise fields.unsupported("attention_bias", "attention without biases")


def refuse_windows(fields: Fields) -> None:
    """Raises `UnsupportedModel` where layers look through a window that GGUF has no word for."""
    if fields.flag("use_sliding_window", False):
        raise fields.unsupported("use_sliding_window", "false: GGUF has no word for such layers")


def require_square(fields: Fields, shape: Shape) -> None:
    """Raises `UnsupportedModel` where the heads together are not as wide as the embedding."""
    if shape.query_rows != shape.width:
        raise fields.unsupported(
            "head_dim", f"heads that together have the width of {shape.width:,}"
        )


def window_values(fields: Fields, sliding: tuple[bool, ...], context: int) -> dict[str, Value]:
    """The keys for windows in the layers that are `sliding`. Where none is, the window holds the
    whole context: without the key, llama.cpp takes one of its own.
    """
    window = fields.integer("sliding_window", 0, least=0)
    if not window or not any(sliding):
        return {"attention.sliding_window": context}
    return {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": _pattern(sliding),
    }


def _pattern(sliding: tuple[bool, ...]) -> Value:
    """A number n for "all but every n-th", or else a list."""
    for period in range(2, len(sliding) + 1):
        if sliding == tuple((layer + 1) % period != 0 for layer in range(len(sliding))):
            return period
    return sliding


def shape_values(shape: Shape, ropes: Ropes) -> dict[str, Value]:
    """The keys that every architecture has."""
    return {
        "vocab_size": shape.vocabulary,
        "context_length": ropes.context,
        "embedding_length": shape.width,
        "block_count": shape.layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.norm_eps,
        **ropes.values,
    }


def expert_values(experts: Experts) -> dict[str, Value]:
    """The keys of a mixture of experts."""
    return {"expert_count": experts.count, "expert_used_count": experts.active}
