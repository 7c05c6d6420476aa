"""What a family says of a model: metadata and tensors, as its GGUF has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hearth.quant.convert.origin import Wanted
from hearth.quant.json_fields import Fields

Value = int | float | bool | str | tuple[bool, ...]
"""An int is stored as U32, a float as F32."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model in the words of GGUF."""

    architecture: str
    values: Mapping[str, Value]
    """Keys without the architecture before them."""
    tensors: Sequence[Wanted]
    layers: int
    vocabulary: int
    """Rows of the embedding."""
    tied: bool
    """The output matrix is the embedding; one that is stored besides is left out."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of models. `describe` raises `CorruptFile` for values that cannot be, and
    `UnsupportedModel` for those that llama.cpp has no words or no code for.
    """

    model_types: tuple[str, ...]
    """`model_type` of config.json."""
    describe: Callable[[Fields], Model]
