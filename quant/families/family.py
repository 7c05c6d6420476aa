"""What a family of models is to the native runner, and to the converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hearth.quant.families.config import ModelConfig
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.source import Source
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
    names: Callable[[ModelConfig], Mapping[str, Source]]
    """Every parameter of the decoder, by its name there."""

    def from_hf(self, fields: Fields) -> ModelConfig:
        """What a config.json says."""
        return self.from_complete(self.complete(fields))


def defaults(values: Mapping[str, object]) -> Callable[[Fields], Fields]:
    """For `Family.complete`: `values` for keys that are not there."""
    return lambda fields: fields.over(values)
