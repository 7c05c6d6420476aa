"""A model's folder as `config.json` and the headers of its safetensors tell of it. No weight is
read, and torch is not imported: front ends and the host ask as well.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import Dtype, KvType
from hearth.backends.errors import InvalidParameter, ModelNotFound
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors_header import SafetensorsHeader, TensorEntry
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.stored import STAYS_PACKED, StoredTensor
from hearth.quant.tied_weights import has_own_head

CONFIG: Final = "config.json"
DTYPE_BYTES: Final[dict[Dtype, int]] = {"f32": 4, "f16": 2, "bf16": 2}
_OF_KINDS: Final[dict[str, Dtype]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_MXFP4_BLOCKS: Final = "_blocks"
"""How gpt-oss names packed bytes of two numbers each; their exponents end in `_scales`."""
_MXFP4: Final = "MXFP4"
_KV_BYTES: Final[dict[KvType, int]] = {"f32": 4, "f16": 2}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model in safetensors, checked."""

    path: Path
    architecture: str
    """`model_type` of config.json."""
    family: Family
    config: ModelConfig
    headers: tuple[SafetensorsHeader, ...]

    @property
    def tensors(self) -> Iterator[TensorEntry]:
        """Those of all files."""
        return (tensor for header in self.headers for tensor in header.tensors.values())

    @property
    def size_bytes(self) -> int:
        """Of the safetensors files."""
        return sum(header.size_bytes for header in self.headers)

    @property
    def parameters(self) -> int:
        """Numbers of all tensors, packed ones too."""
        return sum(_numbers(tensor) for tensor in self.tensors)

    @property
    def stored(self) -> str:
        """How most bytes are stored: "BF16", "F32", "MXFP4" ..."""
        return most_common_kind(self.tensors)

    @property
    def dtype(self) -> Dtype:
        """The dtype that it is run in on a processor, unless another one is asked for."""
        return own_dtype(self.tensors)

    def weight_bytes(self, dtype: Dtype) -> int:
        """Of the weights in memory, where plain ones are held as `dtype`."""
        return weight_bytes(self.tensors, dtype, packed=STAYS_PACKED)

    def kv_bytes_per_token(self, kv_type: KvType) -> int:
        """Of all layers, as if none had a window: the most that a token takes (`KvSizes` has the
        whole).

        Raises:
            InvalidParameter: a packed type.
        """
        return self.config.kv_elements * len(self.config.layers) * kv_number_bytes(kv_type)


def most_common_kind(stored: Iterable[StoredTensor]) -> str:
    """How most bytes are stored: "BF16", "F32", "Q4_K", "MXFP4" ..."""
    sizes = Counter[str]()
    for tensor in stored:
        kind = _MXFP4 if tensor.name.endswith(_MXFP4_BLOCKS) else tensor.kind
        sizes[kind] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else "F32"


def own_dtype(stored: Iterable[StoredTensor]) -> Dtype:
    """What plain weights are held in on a processor, unless another dtype is asked for: as most of
    them are stored, or half precision. Packed ones lose nothing that matters in it.
    """
    return _OF_KINDS.get(most_common_kind(stored), "bf16")


def weight_bytes(stored: Iterable[StoredTensor], dtype: Dtype, *, packed: Set[str]) -> int:
    """Of weights in memory.

    Args:
        dtype: of plain weights.
        packed: types whose matrices stay as they are stored. gpt-oss's experts are MXFP4.
    """
    number = DTYPE_BYTES[dtype]
    return sum(
        tensor.nbytes if held_as(tensor) in packed else _numbers(tensor) * number
        for tensor in stored
    )


def held_as(tensor: StoredTensor) -> str:
    """The GGUF type of a packed tensor, or of what gpt-oss's bytes become; "" for plain numbers."""
    return _MXFP4 if tensor.kind == "U8" else tensor.packing


def kv_number_bytes(kv_type: KvType) -> int:
    """Bytes of one number of keys and values.

    Raises:
        InvalidParameter: a packed type.
    """
    if kv_type not in _KV_BYTES:
        raise InvalidParameter(
            "kv_type",
            f"The native runner keeps keys and values as f32 or f16, not as {kv_type}.",
            "Use kv_type f16, or --backend llamacpp.",
        )
    return _KV_BYTES[kv_type]


def read_model_folder(folder: Path) -> ModelFolder:
    """The model in `folder`.

    Raises:
        ModelNotFound: it has no config.json.
        CorruptFile: a file is missing or damaged, or says what cannot be.
        UnsupportedModel: a family, or a variant, that the native runner does not know.
        OSError: something cannot be read.
    """
    architecture, family, config = read_config(folder)
    return ModelFolder(folder, architecture, family, config, read_folder(folder))


def read_config(folder: Path) -> tuple[str, Family, ModelConfig]:
    """What `config.json` says: its `model_type`, the family, and the shapes.

    Raises:
        ModelNotFound, CorruptFile, UnsupportedModel, OSError: as `read_model_folder`.
    """
    if not (folder / CONFIG).is_file():
        raise ModelNotFound(
            f"{folder} has no {CONFIG}.",
            "Name a folder with config.json, tokenizer.json and safetensors, or a GGUF file.",
        )
    fields = read_fields(folder / CONFIG)
    architecture = fields.text("model_type")
    family = family_of_hf(fields)
    return architecture, family, family.from_hf(fields)


def as_stored(config: ModelConfig, headers: Sequence[SafetensorsHeader]) -> ModelConfig:
    """`config`, with an output matrix of its own where the files have one that is not the embedding
    once more, whatever config.json says: as transformers does it.

    Raises:
        CorruptFile, OSError: as `has_own_head`.
    """
    if config.tied and has_own_head(headers):
        return replace(config, tied=False)
    return config


def _numbers(tensor: StoredTensor) -> int:
    if tensor.kind == "U8":
        return 2 * tensor.nbytes if tensor.name.endswith(_MXFP4_BLOCKS) else 0
    return math.prod(tensor.shape)
