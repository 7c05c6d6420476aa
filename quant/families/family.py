"""What a family of models is to the native runner, and to the converter."""

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

    `from_hf` and `from_gguf` raise `CorruptFile` for values that cannot be and `UnsupportedModel`
    for those that the decoder has no code for, both naming file and key.
    """

    name: str
    model_types: tuple[str, ...]
    """`model_type` of config.json."""
    architectures: tuple[str, ...]
    """`general.architecture` of GGUF; the first is what the converter writes."""
    complete: Callable[[Fields], Fields]
    """A config.json with the family's defaults for what it leaves out."""
    from_complete: Callable[[Fields], ModelConfig]
    from_gguf: Callable[[GgufFields], ModelConfig]
    layer_names: Callable[[ModelConfig, int], Mapping[str, Source]]
    """The parameters of a layer, by their names in the decoder."""
    norms_minus_one: bool = False
    """Safetensors have the weights of norms minus one; GGUF has them as they are."""

    def from_hf(self, fields: Fields) -> ModelConfig:
        """What a config.json says."""
        return self.from_complete(self.complete(fields))

    def names(self, config: ModelConfig) -> dict[str, Source]:
        """Every parameter of the decoder, by its name there."""
        found = outer_names(config)
        for layer in range(len(config.layers)):
            found |= self.layer_names(config, layer)
        if self.norms_minus_one:
            for name, source in found.items():
                if name.endswith("norm.weight"):
                    part = replace(source.hf[0][0], is_minus_one=True)
                    found[name] = replace(source, hf=((part,),))
        return found


def defaults(values: Mapping[str, object]) -> Callable[[Fields], Fields]:
    """For `Family.complete`: `values` for keys that are not there."""
    return lambda fields: fields.over(values)
