"""Where a `config.json` tells of rotary positions."""

from __future__ import annotations

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
