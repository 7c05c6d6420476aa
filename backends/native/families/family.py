"""What a family of models is to the native runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hearth.backends.native.config import ModelConfig
from hearth.backends.native.families.gguf_fields import GgufFields
from hearth.backends.native.families.source import Source
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
    """`general.architecture` of GGUF."""
    from_hf: Callable[[Fields], ModelConfig]
    from_gguf: Callable[[GgufFields], ModelConfig]
    names: Callable[[ModelConfig], Mapping[str, Source]]
    """Every parameter of the decoder, by its name there."""
