"""Rotary positions of config.json in the words of GGUF; what llama.cpp makes of the keys:
`llama-context.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import pi
from typing import Literal

from hearth.quant.convert.model import Value
from hearth.quant.hf_ropes import (
    longrope,
    original_context,
    rope_section,
    rotary_dimensions,
    scaling_kind,
    yarn,
    yarn_mscale,
)
from hearth.quant.json_fields import Fields

Kind = Literal["linear", "llama3", "yarn", "longrope"]
_BETA_FAST, _BETA_SLOW = 32.0, 1.0
"""The only ones that llama.cpp computes with for these families."""


@dataclass(frozen=True, slots=True)
class Ropes:
    """What GGUF says of positions."""

    context: int
    """Tokens that the model was trained for, scaling included."""
    values: Mapping[str, Value]
    tensors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def read_ropes(
    fields: Fields,
    head_dim: int,
    kinds: tuple[Kind, ...],
    *,
    layer_type: str = "",
    partial: bool = False,
    truncate: bool = True,
) -> Ropes:
    """The rotary positions of `config.json`.

    Args:
        kinds: scalings that llama.cpp computes for the family, beside none.
        layer_type: whose, where the file tells types of layers apart.
        partial: the family may turn a part of a head only.
        truncate: whether the model rounds YaRN's ramp; llama.cpp always does, and gpt-oss is the
            one that is close enough without.

    Raises:
        UnsupportedModel: a scaling that llama.cpp has no code for.
        CorruptFile: a value that cannot be.
    """
    section = rope_section(fields, layer_type)
    theta = section.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    key = "partial_rotary_factor"
    if section.positive(key, fields.positive(key, 1.0)) != 1.0 and not partial:
        raise (section if section.has(key) else fields).unsupported(key, "1.0")
    dimensions = rotary_dimensions(section, fields, head_dim)
    plain: dict[str, Value] = {"rope.freq_base": theta, "rope.dimension_count": dimensions}
    context = fields.integer("max_position_embeddings")
    kind = scaling_kind(section, kinds)
    if kind == "default":
        return Ropes(context, plain)
    if kind == "linear":
        factor = section.positive("factor")
        return Ropes(
            context, {**plain, "rope.scaling.type": "linear", "rope.scaling.factor": factor}
        )
    if kind == "llama3":
        factors = _llama3(section, fields, theta, dimensions)
        return Ropes(context, plain, {"rope_freqs.weight": factors})
    if kind == "yarn":
        values, reach = _yarn(section, fields, truncate=truncate)
        return Ropes(max(context, reach), {**plain, **values})
    values, tensors = _longrope(section, fields, dimensions)
    return Ropes(context, {**plain, **values}, tensors)


def _llama3(section: Fields, fields: Fields, theta: float, dimensions: int) -> tuple[float, ...]:
    """What each frequency is divided by: 1 for short waves, `factor` for those that are longer than
    the context was, and something between for those between.
    """
    factor, original = section.positive("factor"), original_context(section, fields)
    low, high = section.positive("low_freq_factor"), section.positive("high_freq_factor")
    if high <= low:
        raise section.wrong("high_freq_factor", f"must be greater than the low one, {low:g}")
    divisors = []
    for index in range(0, dimensions, 2):
        turns = original / (2 * pi * theta ** (index / dimensions))
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        divisors.append(1 / (share + (1 - share) / factor))
    return tuple(divisors)


def _yarn(section: Fields, fields: Fields, *, truncate: bool) -> tuple[dict[str, Value], int]:
    for key, only in (("beta_fast", _BETA_FAST), ("beta_slow", _BETA_SLOW)):
        if section.positive(key, only) != only:
            raise section.unsupported(key, f"{only:g}")
    if section.flag("truncate", True) != truncate:
        raise section.unsupported("truncate", "true" if truncate else "false")
    factor, original, attention = yarn(section, fields)
    values: dict[str, Value] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    if attention != yarn_mscale(factor):
        values["rope.scaling.attn_factor"] = attention / yarn_mscale(factor)
    return values, round(factor * original)


def _longrope(
    section: Fields, fields: Fields, dimensions: int
) -> tuple[dict[str, Value], dict[str, tuple[float, ...]]]:
    _, original, attention = longrope(section, fields, dimensions)
    return {
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": attention,
    }, {
        "rope_factors_long.weight": section.numbers("long_factor"),
        "rope_factors_short.weight": section.numbers("short_factor"),
    }
