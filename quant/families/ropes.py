"""Rotary positions as files tell them; for GGUF as llama.cpp's `llama-context.cpp` reads them."""

from __future__ import annotations

from hearth.quant.families.config import Rope, RopeScaling
from hearth.quant.families.gguf_fields import GgufFields
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


def rope_of_hf(fields: Fields, head_dim: int, layer_type: str = "") -> Rope:
    """The rotary positions of `config.json`; those of `layer_type`, where the file tells types of
    layers apart.

    Raises:
        UnsupportedModel: an unknown type of scaling.
        CorruptFile: a value that cannot be.
    """
    section = rope_section(fields, layer_type)
    dimensions = rotary_dimensions(section, fields, head_dim)
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


def _scaling_of_hf(section: Fields, fields: Fields, dimensions: int) -> RopeScaling | None:
    match scaling_kind(section, ("linear", "llama3", "yarn", "longrope")):
        case "linear":
            return RopeScaling("linear", factor=section.positive("factor"))
        case "llama3":
            low, high = section.positive("low_freq_factor"), section.positive("high_freq_factor")
            if high <= low:
                raise section.wrong(
                    "high_freq_factor", f"must be greater than the low one, {low:g}"
                )
            return RopeScaling(
                "llama3",
                factor=section.positive("factor"),
                original_context=original_context(section, fields),
                low_freq_factor=low,
                high_freq_factor=high,
            )
        case "yarn":
            factor, original, attention = yarn(section, fields)
            return RopeScaling(
                "yarn",
                factor=factor,
                original_context=original,
                beta_fast=section.positive("beta_fast", 32.0),
                beta_slow=section.positive("beta_slow", 1.0),
                truncate=section.flag("truncate", True),
                attention_factor=attention,
            )
        case "longrope":
            factor, original, attention = longrope(section, fields, dimensions)
            return RopeScaling(
                "longrope",
                factor=factor,
                original_context=original,
                attention_factor=attention,
                short_factors=section.numbers("short_factor"),
                long_factors=section.numbers("long_factor"),
            )
        case _:
            return None


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
