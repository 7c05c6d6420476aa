"""The description of a model family for the native runner and the converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hearth.quant.families.config import ModelConfig
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.source import Source
from hearth.quant.families.tensor_names import outer_names
from hearth.quant.json_fields import Fields


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    `from_hf` and `from_gguf` raise `CorruptFile` for invalid values and `UnsupportedModel` for
    values that the decoder does not support, both naming file and key.
    """

    name: str
    model_types: tuple[str, ...]
    """`model_type` of config.json."""
    architectures: tuple[str, ...]
    """`general.architecture` of GGUF; the first is what the converter writes."""
    complete: Callable[[Fields], Fields]
    """Adds the family's defaults for keys that a config.json leaves out."""
    from_complete: Callable[[Fields], ModelConfig]
    from_gguf: Callable[[GgufFields], ModelConfig]
    layer_names: Callable[[ModelConfig, int], Mapping[str, Source]]
    """The parameters of a layer, by their names in the decoder."""
    norms_minus_one: bool = False
    """Safetensors store the weights of norms minus one; GGUF stores them unchanged."""

    def from_hf(self, fields: Fields) -> ModelConfig:
        """The model described by a config.json."""
        return self.from_complete(self.complete(fields))

    def names(self, config: ModelConfig) -> dict[str, Source]:
        """Every parameter of the decoder, by its name in the decoder."""
        sources = outer_names(config)
        for layer in range(len(config.layers)):
            sources |= self.layer_names(config, layer)
        if self.norms_minus_one:
            for name, source in sources.items():
                if name.endswith("norm.weight"):
                    part = replace(source.hf[0][0], is_minus_one=True)
                    sources[name] = replace(source, hf=((part,),))
        return sources


def defaults(values: Mapping[str, object]) -> Callable[[Fields], Fields]:
    """A function for `Family.complete` that uses `values` for absent keys."""
    return lambda fields: fields.over(values)
