"""Rotary positions as files tell them.

Formulas of the defaults: transformers' `modeling_rope_utils` (YaRN: arXiv 2309.00071, longrope:
arXiv 2402.13753), and for GGUF llama.cpp's `llama-context.cpp`.
"""

from __future__ import annotations

from math import log, sqrt

from hearth.backends.native.config import Rope, RopeScaling
from hearth.backends.native.families.gguf_fields import GgufFields
from hearth.quant.hf_ropes import rope_section
from hearth.quant.json_fields import Fields

_SUPPORTED = "default, linear, llama3, yarn and longrope"


def rope_of_hf(fields: Fields, head_dim: int, layer_type: str = "") -> Rope:
    """The rotary positions of `config.json`; those of `layer_type`, where the file tells types of
    layers apart.

    Raises:
        UnsupportedModel: an unknown type of scaling.
        CorruptFile: a value that cannot be.
    """
    section = rope_section(fields, layer_type)
    dimensions = _dimensions(section, fields, head_dim)
    return Rope(
        theta=section.positive("rope_theta", fields.positive("rope_theta", 10_000.0)),
        dimensions=dimensions,
        scaling=_scaling_of_hf(section, fields, dimensions),
    )


def context_of_hf(fields: Fields, rope: Rope) -> int:
    """Tokens that the model was trained for. Scaling that a person adds to a config, as Qwen's
    cards advise, leaves `max_position_embeddings` as it was.
    """
    trained = fields.integer("max_position_embeddings")
    scaling = rope.scaling
    if scaling is None or scaling.kind != "yarn":
        return trained
    return max(trained, round(scaling.factor * scaling.original_context))


def _dimensions(section: Fields, fields: Fields, head_dim: int) -> int:
    partial = section.positive(
        "partial_rotary_factor", fields.positive("partial_rotary_factor", 1.0)
    )
    dimensions = int(head_dim * partial)
    if not 0 < dimensions <= head_dim or dimensions % 2:
        raise section.wrong(
            "partial_rotary_factor", f"must leave an even number of the {head_dim} of a head"
        )
    return dimensions


def _scaling_of_hf(section: Fields, fields: Fields, dimensions: int) -> RopeScaling | None:
    key = "rope_type" if section.has("rope_type") else "type"
    match section.text(key, "default"):
        case "default":
            return None
        case "linear":
            return RopeScaling("linear", factor=section.positive("factor"))
        case "llama3":
            return RopeScaling(
                "llama3",
                factor=section.positive("factor"),
                original_context=_original_context(section, fields),
                low_freq_factor=section.positive("low_freq_factor"),
                high_freq_factor=section.positive("high_freq_factor"),
            )
        case "yarn" if not section.has("long_factor"):
            return _yarn_of_hf(section, fields)
        case "longrope" | "su" | "yarn":
            return _longrope_of_hf(section, fields, dimensions)
        case _:
            raise section.unsupported(key, _SUPPORTED)


def _original_context(section: Fields, fields: Fields) -> int:
    """Before scaling. Phi-3 has it outside of the section, where it takes precedence."""
    key = "original_max_position_embeddings"
    if fields.has(key):
        return fields.integer(key)
    return section.integer(key, fields.integer("max_position_embeddings"))


def _factor(section: Fields, fields: Fields, original: int) -> float:
    ratio = fields.integer("max_position_embeddings") / original
    return section.positive("factor", ratio)


def _yarn_of_hf(section: Fields, fields: Fields) -> RopeScaling:
    original = _original_context(section, fields)
    factor = _factor(section, fields, original)
    mscale, all_dimensions = section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0)
    attention = yarn_mscale(factor)
    if mscale and all_dimensions:
        attention = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dimensions)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=section.positive("beta_fast", 32.0),
        beta_slow=section.positive("beta_slow", 1.0),
        truncate=section.flag("truncate", True),
        attention_factor=section.positive("attention_factor", attention),
    )


def _longrope_of_hf(section: Fields, fields: Fields, dimensions: int) -> RopeScaling:
    original = _original_context(section, fields)
    factor = _factor(section, fields, original)
    attention = 1.0 if factor <= 1.0 else sqrt(1.0 + log(factor) / log(original))
    for key in ("short_factor", "long_factor"):
        if len(section.numbers(key)) != dimensions // 2:
            raise section.wrong(key, f"must have {dimensions // 2} numbers")
        if min(section.numbers(key)) <= 0:
            raise section.wrong(key, "must have numbers above 0 only")
    return RopeScaling(
        "longrope",
        factor=factor,
        original_context=original,
        attention_factor=section.positive("attention_factor", attention),
        short_factors=section.numbers("short_factor"),
        long_factors=section.numbers("long_factor"),
    )


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cosine and sine by, for contexts that are `factor` times as long."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def rope_of_gguf(fields: GgufFields, head_dim: int, *, truncate: bool = True) -> Rope:
    """The rotary positions of GGUF metadata.

    Args:
        truncate: see `RopeScaling`; GGUF does not say.

    Raises:
        UnsupportedModel: a combination that no file of these families has.
        CorruptFile: a value that cannot be.
    """
    dimensions = fields.integer("rope.dimension_count", head_dim, most=head_dim)
    if dimensions % 2:
        raise fields.wrong("rope.dimension_count", "must be even")
    theta = fields.positive("rope.freq_base", 10_000.0)
    return Rope(theta, dimensions, _scaling_of_gguf(fields, dimensions, truncate))


def _scaling_of_gguf(fields: GgufFields, dimensions: int, truncate: bool) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "linear")
    # Files of 2023 have the key that is named second.
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 0.0)) or 1.0
    if factor < 0:
        raise fields.wrong("rope.scaling.factor", "must be at least 0")
    original = fields.integer("rope.scaling.original_context_length", fields.header.context_length)
    attention = fields.positive("rope.scaling.attn_factor", 1.0)
    long = fields.vector("rope_factors_long.weight", dimensions // 2)
    if long:
        short = fields.vector("rope_factors_short.weight", dimensions // 2)
        if not short or factor != 1.0:
            raise fields.unsupported("rope.scaling.type", "longrope with short and long factors")
        return RopeScaling(
            "longrope",
            original_context=original,
            attention_factor=attention,
            short_factors=short,
            long_factors=long,
        )
    frequencies = fields.vector("rope_freqs.weight", dimensions // 2)
    if frequencies:
        if kind == "yarn" or factor != 1.0:
            raise fields.unsupported("rope.scaling.type", "no scaling beside rope_freqs.weight")
        return RopeScaling("llama3", frequency_factors=frequencies)
    if kind == "yarn":
        return _yarn_of_gguf(fields, factor, original, attention, truncate)
    if kind == "longrope":
        raise fields.unsupported("rope.scaling.type", "longrope with short and long factors")
    return None if kind == "none" or factor == 1.0 else RopeScaling("linear", factor=factor)


def _yarn_of_gguf(
    fields: GgufFields, factor: float, original: int, attention: float, truncate: bool
) -> RopeScaling:
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0)
    mscale = yarn_mscale(factor) / (yarn_mscale(factor, multiplier) if multiplier else 1.0)
    return RopeScaling(
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        truncate=truncate,
        attention_factor=attention * mscale,
    )
