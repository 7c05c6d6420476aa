"""SmolLM3: Llama without rotary positions in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from hearth.quant import hf_defaults
from hearth.quant.families import llama
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family, defaults
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.shapes import (
    all_but_every,
    config_of_gguf,
    config_of_hf,
    sliding_layers,
    windowed,
)
from hearth.quant.json_fields import Fields

_PERIOD = 4


def from_hf(fields: Fields) -> ModelConfig:
    config = config_of_hf(fields, "smollm3")
    count = len(config.layers)
    with_ropes = all_but_every(fields.integer("no_rope_layer_interval", _PERIOD), count)
    if fields.has("no_rope_layers"):
        # Despite its name, the list has ones for the layers that do have positions.
        with_ropes = tuple(value != 0 for value in fields.numbers("no_rope_layers"))
        if len(with_ropes) < count:
            raise fields.wrong("no_rope_layers", f"must have {count} entries")
    config = _without_ropes(config, with_ropes[:count])
    if not fields.flag("use_sliding_window", False):
        return config
    sliding = sliding_layers(fields, count, tuple(not has_rope for has_rope in with_ropes[:count]))
    return windowed(config, fields.integer("sliding_window", 0, least=0), sliding)


def from_gguf(fields: GgufFields) -> ModelConfig:
    config = config_of_gguf(fields, "smollm3", interleaved=True)
    return _without_ropes(config, all_but_every(_PERIOD, len(config.layers)))


def _without_ropes(config: ModelConfig, with_ropes: tuple[bool, ...]) -> ModelConfig:
    layers = tuple(
        layer if has_rope else replace(layer, rope=None)
        for layer, has_rope in zip(config.layers, with_ropes, strict=True)
    )
    return replace(config, layers=layers)


SMOLLM3 = Family(
    name="smollm3",
    model_types=("smollm3",),
    architectures=("smollm3",),
    complete=defaults(hf_defaults.SMOLLM3),
    from_complete=from_hf,
    from_gguf=from_gguf,
    layer_names=llama.layer_names,
)
