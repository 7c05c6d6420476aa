"""Reading rotary positions from files; GGUF is read as in llama.cpp's `llama-context.cpp`.

Formulas of the defaults: transformers' `modeling_rope_utils` (YaRN: arXiv 2309.00071, longrope:
arXiv 2402.13753).
"""

from __future__ import annotations

from math import log, sqrt
from typing import Final

from hearth.quant.families.config import Rope, RopeScaling
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.json_fields import Fields

_FULL: Final = "full_attention"
_MAX_CONTEXT: Final = 1 << 31


def rope_of_hf(fields: Fields, head_dim: int, layer_type: str = "") -> Rope:
    """The rotary positions in `config.json`; those for `layer_type` if the file distinguishes types
    of layers.

    Raises:
        UnsupportedModel: the type of scaling is unknown.
        CorruptFile: a value is invalid.
    """
    section = rope_section(fields, layer_type)
    dimensions = rotary_dimensions(section, fields, head_dim)
    return Rope(
        theta=section.positive("rope_theta", fields.positive("rope_theta", 10_000.0)),
        dimensions=dimensions,
        scaling=_scaling_of_hf(section, fields, dimensions),
    )


def context_of_hf(fields: Fields, rope: Rope) -> int:
    """Context length in tokens that the model was trained for. Users who add scaling to a config,
    as Qwen's model cards advise, leave `max_position_embeddings` unchanged, so for YaRN the scaled
    length counts if it is larger.
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
    """The rotary positions in GGUF metadata.

    Args:
        truncate: see `RopeScaling`; GGUF has no key for it.

    Raises:
        UnsupportedModel: a combination of values that no file of these families has.
        CorruptFile: a value is invalid.
    """
    dimensions = fields.integer("rope.dimension_count", head_dim, most=head_dim)
    if dimensions % 2:
        raise fields.wrong("rope.dimension_count", "must be even")
    theta = fields.positive("rope.freq_base", 10_000.0)
    return Rope(theta, dimensions, _scaling_of_gguf(fields, dimensions, truncate))


def _scaling_of_gguf(fields: GgufFields, dimensions: int, truncate: bool) -> RopeScaling | None:
    kind = fields.text("rope.scaling.type", "linear")
    # Files from 2023 use the second key.
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
            raise fields.unsupported("rope.scaling.type", "no other scaling with rope_freqs.weight")
        return RopeScaling("llama3", frequency_factors=frequencies)
    if kind == "yarn":
        return _yarn_of_gguf(fields, factor, original, attention, truncate)
    if kind == "longrope":
        raise fields.unsupported("rope.scaling.type", "longrope with short and long factors")
    return None if kind == "none" or factor == 1.0 else RopeScaling("linear", factor=factor)


def _yarn_of_gguf(
    fields: GgufFields, factor: float, original: int, attention: float, truncate: bool
) -> RopeScaling:
    multiplier = fields.number("rope.scaling.yarn_log_multiplier", 0.0, least=0)
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


def rope_section(fields: Fields, layer_type: str = "") -> Fields:
    """The object that describes rotary positions; an empty one if there is none.

    There are three generations of such objects: `rope_scaling`, `rope_parameters`, and
    `rope_parameters` by type of layer. If a file has two, the older one takes precedence, since
    users add it to files as model cards advise: it replaces `rope_parameters`, or overrides its
    values for layers with full attention. Source: transformers' `RotaryEmbeddingConfigMixin` and
    `Gemma3TextConfig`.

    Args:
        layer_type: the type of layer, if the file distinguishes them.

    Raises:
        CorruptFile: one of them is not an object.
    """
    scaling, parameters = fields.section("rope_scaling"), fields.section("rope_parameters")
    if scaling is not None and not scaling.values:
        scaling = None
    of_type = parameters.section(layer_type) if parameters is not None and layer_type else None
    if of_type is None:
        return scaling or parameters or Fields(fields.path, {}, "rope_parameters.")
    if scaling is None or layer_type != _FULL:
        return of_type
    return scaling.over(of_type.values)


def scaling_kind(section: Fields, kinds: tuple[str, ...]) -> str:
    """The scaling that `section` describes, which is "default" or one of `kinds`.

    Raises:
        UnsupportedModel: it is another kind.
    """
    key = "rope_type" if section.has("rope_type") else "type"
    name = section.text(key, "default")
    if name == "su" or (name == "yarn" and section.has("long_factor")):
        name = "longrope"
    if name not in ("default", *kinds):
        raise section.unsupported(key, " and ".join(("default", *kinds)))
    return name


def rotary_dimensions(section: Fields, fields: Fields, head_dim: int) -> int:
    """Number of dimensions of a head that are rotated."""
    key = "partial_rotary_factor"
    share = section.positive(key, fields.positive(key, 1.0, most=1.0), most=1.0)
    dimensions = int(head_dim * share)
    if dimensions < 1 or dimensions % 2:
        raise section.wrong(key, f"must leave an even number of the {head_dim} of a head")
    return dimensions


def original_context(section: Fields, fields: Fields, *, least: int = 1) -> int:
    """Context length before scaling. Phi-3 stores it outside of the section; that value takes
    precedence."""
    key = "original_max_position_embeddings"
    if fields.has(key):
        return fields.integer(key, least=least)
    return section.integer(key, fields.integer("max_position_embeddings"), least=least)


def yarn(section: Fields, fields: Fields) -> tuple[float, int, float]:
    """The scaling factor, the original context, and the factor of cosine and sine."""
    factor, original = _factor(section, fields)
    mscale = section.number("mscale", 0.0, least=0)
    all_dimensions = section.number("mscale_all_dim", 0.0, least=0)
    attention = yarn_mscale(factor)
    if mscale and all_dimensions:
        attention = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dimensions)
    return factor, original, section.positive("attention_factor", attention)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor of cosine and sine for contexts that are `factor` times as long."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def longrope(section: Fields, fields: Fields, dimensions: int) -> tuple[float, int, float]:
    """The same values as `yarn` returns. It also checks the lists of factors in `section`."""
    # The logarithm of the original context is a divisor.
    factor, original = _factor(section, fields, least=2)
    attention = 1.0 if factor <= 1.0 else sqrt(1.0 + log(factor) / log(original))
    for key in ("short_factor", "long_factor"):
        if len(section.numbers(key)) != dimensions // 2:
            raise section.wrong(key, f"must have {dimensions // 2} numbers")
        if min(section.numbers(key)) <= 0:
            raise section.wrong(key, "must have numbers above 0 only")
    return factor, original, section.positive("attention_factor", attention)


def _factor(section: Fields, fields: Fields, *, least: int = 1) -> tuple[float, int]:
    original = original_context(section, fields, least=least)
    ratio = fields.integer("max_position_embeddings") / original
    return section.positive("factor", ratio, most=_MAX_CONTEXT / original), original
