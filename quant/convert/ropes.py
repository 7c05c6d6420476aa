"""Rotary positions of config.json in the words of GGUF.

Formulas: transformers' `modeling_rope_utils` (YaRN: arXiv 2309.00071, longrope: arXiv 2402.13753);
what llama.cpp makes of the keys: `llama-context.cpp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import log, pi, sqrt
from typing import Literal

from hearth.quant.convert.model import Value
from hearth.quant.hf_ropes import rope_section
from hearth.quant.json_fields import Fields

Kind = Literal["default", "linear", "llama3", "yarn", "longrope"]
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
    dimensions = _dimensions(section, fields, head_dim, partial=partial)
    plain: dict[str, Value] = {"rope.freq_base": theta, "rope.dimension_count": dimensions}
    context = fields.integer("max_position_embeddings")
    kind = _kind(section, kinds)
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


def _kind(section: Fields, kinds: tuple[Kind, ...]) -> Kind:
    key = "rope_type" if section.has("rope_type") else "type"
    name = section.text(key, "default")
    if name == "su" or (name == "yarn" and section.has("long_factor")):
        name = "longrope"
    for kind in ("default", *kinds):
        if name == kind:
            return kind
    raise section.unsupported(key, " and ".join(("default", *kinds)))


def _dimensions(section: Fields, fields: Fields, head_dim: int, *, partial: bool) -> int:
    key = "partial_rotary_factor"
    share = section.positive(key, fields.positive(key, 1.0))
    if share != 1.0 and not partial:
        raise (section if section.has(key) else fields).unsupported(key, "1.0")
    dimensions = int(head_dim * share)
    if not 0 < dimensions <= head_dim or dimensions % 2:
        raise section.wrong(key, f"must leave an even number of the {head_dim} of a head")
    return dimensions


def _original_context(section: Fields, fields: Fields) -> int:
    """Before scaling. Phi-3 has it outside of the section, where it takes precedence."""
    key = "original_max_position_embeddings"
    if fields.has(key):
        return fields.integer(key)
    return section.integer(key, fields.integer("max_position_embeddings"))


def _llama3(section: Fields, fields: Fields, theta: float, dimensions: int) -> tuple[float, ...]:
    """What each frequency is divided by: 1 for short waves, `factor` for those that are longer than
    the context was, and something between for those between.
    """
    factor, original = section.positive("factor"), _original_context(section, fields)
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
    original = _original_context(section, fields)
    factor = section.positive("factor", fields.integer("max_position_embeddings") / original)
    for key, only in (("beta_fast", _BETA_FAST), ("beta_slow", _BETA_SLOW)):
        if section.positive(key, only) != only:
            raise section.unsupported(key, f"{only:g}")
    if section.flag("truncate", True) != truncate:
        raise section.unsupported("truncate", "true" if truncate else "false")
    usual = _mscale(factor)
    mscale, all_dimensions = section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0)
    attention = usual
    if mscale and all_dimensions:
        attention = _mscale(factor, mscale) / _mscale(factor, all_dimensions)
    attention = section.positive("attention_factor", attention)
    values: dict[str, Value] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    if attention != usual:
        values["rope.scaling.attn_factor"] = attention / usual
    return values, round(factor * original)


def _mscale(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cosine and sine by, for contexts that are `factor` times as long."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def _longrope(
    section: Fields, fields: Fields, dimensions: int
) -> tuple[dict[str, Value], dict[str, tuple[float, ...]]]:
    original = _original_context(section, fields)
    factor = section.positive("factor", fields.integer("max_position_embeddings") / original)
    attention = 1.0 if factor <= 1.0 else sqrt(1.0 + log(factor) / log(original))
    for key in ("short_factor", "long_factor"):
        if len(section.numbers(key)) != dimensions // 2:
            raise section.wrong(key, f"must have {dimensions // 2} numbers")
        if min(section.numbers(key)) <= 0:
            raise section.wrong(key, "must have numbers above 0 only")
    return {
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": section.positive("attention_factor", attention),
    }, {
        "rope_factors_long.weight": section.numbers("long_factor"),
        "rope_factors_short.weight": section.numbers("short_factor"),
    }
