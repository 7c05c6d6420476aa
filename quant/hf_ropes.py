"""What a `config.json` tells of rotary positions.

Formulas of the defaults: transformers' `modeling_rope_utils` (YaRN: arXiv 2309.00071, longrope:
arXiv 2402.13753).
"""

from __future__ import annotations

from math import log, sqrt
from typing import Final

from hearth.quant.json_fields import Fields

_FULL: Final = "full_attention"


def rope_section(fields: Fields, layer_type: str = "") -> Fields:
    """The object that tells of rotary positions; an empty one where there is none.

    Files have them in three generations: `rope_scaling`, `rope_parameters`, and `rope_parameters`
    by type of layer. Where two are there, the older one counts, since people add it to files as
    models' cards advise: in place of `rope_parameters`, or over what these say of layers with full
    attention. Source: transformers' `RotaryEmbeddingConfigMixin` and `Gemma3TextConfig`.

    Args:
        layer_type: whose, where the file tells types of layers apart.

    Raises:
        CorruptFile: one of them is no object.
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
    """The scaling that `section` tells of, which is "default" or one of `kinds`.

    Raises:
        UnsupportedModel: it is another one.
    """
    key = "rope_type" if section.has("rope_type") else "type"
    name = section.text(key, "default")
    if name == "su" or (name == "yarn" and section.has("long_factor")):
        name = "longrope"
    if name not in ("default", *kinds):
        raise section.unsupported(key, " and ".join(("default", *kinds)))
    return name


def rotary_dimensions(section: Fields, fields: Fields, head_dim: int) -> int:
    """How much of a head is rotated."""
    key = "partial_rotary_factor"
    dimensions = int(head_dim * section.positive(key, fields.positive(key, 1.0)))
    if not 0 < dimensions <= head_dim or dimensions % 2:
        raise section.wrong(key, f"must leave an even number of the {head_dim} of a head")
    return dimensions


def original_context(section: Fields, fields: Fields) -> int:
    """Before scaling. Phi-3 has it outside of the section, where it takes precedence."""
    key = "original_max_position_embeddings"
    if fields.has(key):
        return fields.integer(key)
    return section.integer(key, fields.integer("max_position_embeddings"))


def yarn(section: Fields, fields: Fields) -> tuple[float, int, float]:
    """Factor, original context, and what cosine and sine are multiplied by."""
    factor, original = _factor(section, fields)
    mscale, all_dimensions = section.number("mscale", 0.0), section.number("mscale_all_dim", 0.0)
    attention = yarn_mscale(factor)
    if mscale and all_dimensions:
        attention = yarn_mscale(factor, mscale) / yarn_mscale(factor, all_dimensions)
    return factor, original, section.positive("attention_factor", attention)


def yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """What YaRN multiplies cosine and sine by, for contexts that are `factor` times as long."""
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def longrope(section: Fields, fields: Fields, dimensions: int) -> tuple[float, int, float]:
    """As `yarn`; the lists of factors, which are checked, are in `section`."""
    factor, original = _factor(section, fields)
    attention = 1.0 if factor <= 1.0 else sqrt(1.0 + log(factor) / log(original))
    for key in ("short_factor", "long_factor"):
        if len(section.numbers(key)) != dimensions // 2:
            raise section.wrong(key, f"must have {dimensions // 2} numbers")
        if min(section.numbers(key)) <= 0:
            raise section.wrong(key, "must have numbers above 0 only")
    return factor, original, section.positive("attention_factor", attention)


def _factor(section: Fields, fields: Fields) -> tuple[float, int]:
    original = original_context(section, fields)
    ratio = fields.integer("max_position_embeddings") / original
    return section.positive("factor", ratio), original
