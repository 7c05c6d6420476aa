"""A GGUF model as described by its header.

No matrix is read and torch is not imported, because the host uses this to choose a runner.
"""

from __future__ import annotations

from typing import Final

from hearth.backends.text.vocab.gguf_vocabulary import kind_of_vocabulary
from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.gguf_fields import GgufFields
from hearth.quant.families.table import family_of_gguf
from hearth.quant.gguf.file import GgufFile
from hearth.quant.stored import LOADED

_RANKS: Final = 4
"""LLAMA_POOLING_TYPE_RANK of llama.h."""


def read_gguf_config(header: GgufFile) -> tuple[Family, ModelConfig]:
    """The family and the shapes of a GGUF whose header was checked (`hearth.quant.gguf.preflight`).

    Raises:
        UnsupportedModel: the native runner does not know the family or the variant.
        CorruptFile: the header has an impossible value.
    """
    family = family_of_gguf(header.architecture)
    return family, family.from_gguf(GgufFields(header))


def refuse_what_cannot_run(header: GgufFile) -> None:
    """Raise if the native runner cannot run a GGUF, as far as its header shows.

    Raises:
        UnsupportedModel: the native runner does not know the family, the variant, the vocabulary or
            a type of matrix, or the model ranks texts.
        CorruptFile: the header has an impossible value.
        OSError: the small tensor of rotary frequency factors cannot be read.
    """
    read_gguf_config(header)
    if header.value(f"{header.architecture}.pooling_type", 0) == _RANKS:
        raise UnsupportedModel(
            "The native runner does not rank texts.",
            "Run the model with --backend llamacpp.",
            path=str(header.path),
        )
    kind_of_vocabulary(header)
    for tensor in header.all_tensors:
        name = tensor.type.name
        if len(tensor.shape) > 1 and name not in LOADED:
            raise UnsupportedModel(
                f"Tensor '{tensor.name}' is of type {name}, which the native runner cannot use.",
                "Run the model with --backend llamacpp.",
                path=str(header.path),
                field=tensor.name,
            )
