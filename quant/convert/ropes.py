"""Rotary positions in GGUF metadata; llama.cpp reads the keys in `llama-context.cpp`."""

from __future__ import annotations

from math import pi

from hearth.quant.families.config import Rope, RopeKind, RopeScaling
from hearth.quant.families.ropes import rope_section, scaling_kind, yarn_mscale
from hearth.quant.json_fields import Fields

Factors = dict[str, tuple[float, ...]]
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0}
"""The only values that llama.cpp uses for these families."""


def check_ropes(
    fields: Fields,
    layer_type: str,
    kinds: tuple[RopeKind, ...],
    *,
    is_partial: bool,
    truncates: bool,
) -> None:
    """Check that GGUF and llama.cpp support the rotary positions of `config.json`.

    Args:
        layer_type: the type of layer, if the file distinguishes them.
        kinds: scalings that llama.cpp computes for the family, besides none.
        is_partial: the family may rotate only part of a head.
        truncates: whether the model must round YaRN's ramp. llama.cpp always does; only gpt-oss
            does not, and the results are close enough.

    Raises:
        UnsupportedModel: a setting is not supported.
    """
    section = rope_section(fields, layer_type)
    key = "partial_rotary_factor"
    if section.positive(key, fields.positive(key, 1.0)) != 1.0 and not is_partial:
        raise (section if section.has(key) else fields).unsupported(key, "1.0")
    if scaling_kind(section, kinds) != "yarn":
        return
    for key, only in _YARN.items():
        if section.positive(key, only) != only:
            raise section.unsupported(key, f"{only:g}")
    if section.flag("truncate", True) != truncates:
        raise section.unsupported("truncate", "true" if truncates else "false")


def rope_values(rope: Rope) -> tuple[dict[str, int | float | str], Factors]:
    """The metadata keys, and the tensors of factors."""
    values: dict[str, int | float | str] = {
        "rope.freq_base": rope.theta,
        "rope.dimension_count": rope.dimensions,
    }
    scaling = rope.scaling
    if scaling is None:
        return values, {}
    if scaling.kind == "llama3":
        return values, {"rope_freqs.weight": _llama3(rope, scaling)}
    if scaling.kind == "longrope":
        values["rope.scaling.original_context_length"] = scaling.original_context
        values["rope.scaling.attn_factor"] = scaling.attention_factor
        return values, {
            "rope_factors_long.weight": scaling.long_factors,
            "rope_factors_short.weight": scaling.short_factors,
        }
    values |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        values["rope.scaling.original_context_length"] = scaling.original_context
        factor = yarn_mscale(scaling.factor)
        if scaling.attention_factor != factor:
            values["rope.scaling.attn_factor"] = scaling.attention_factor / factor
    return values, {}


def _llama3(rope: Rope, scaling: RopeScaling) -> tuple[float, ...]:
    """The divisor of each frequency: 1 for wavelengths that are short compared with the original
    context, `factor` for long ones, and interpolated in between.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    divisors = []
    for index in range(0, rope.dimensions, 2):
        waves = scaling.original_context / (2 * pi * rope.theta ** (index / rope.dimensions))
        share = min(1.0, max(0.0, (waves - low) / (high - low)))
        divisors.append(1 / (share + (1 - share) / scaling.factor))
    return tuple(divisors)
