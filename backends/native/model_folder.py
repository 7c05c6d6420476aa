"""A model's folder as described by `config.json` and the headers of its safetensors.

No weight is read and torch is not imported, because front ends and the host use this too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from hearth.backends.contract.models import Dtype, KvType
from hearth.backends.errors import InvalidParameter, ModelNotFound
from hearth.kernels.cuda.packings import WIDER
from hearth.quant.checkpoints.config import read_checkpoint
from hearth.quant.checkpoints.modules import resolve
from hearth.quant.checkpoints.scheme import Checkpoint
from hearth.quant.convert.folder_files import CONFIG
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors_header import SafetensorsHeader
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.stored import CODES, STAYS_PACKED, StoredTensor

DTYPE_BYTES: Final[dict[Dtype, int]] = {"f32": 4, "f16": 2, "bf16": 2}
_OF_KINDS: Final[dict[str, Dtype]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_MXFP4_BLOCKS: Final = "_blocks"
"""Suffix of gpt-oss's tensors of packed bytes of two numbers each; their exponents are in tensors
with the suffix `_scales`."""
_MXFP4: Final = "MXFP4"
_WIDER_BITS: Final = {kind: int(wide[3:]) - int(kind[3:]) for kind, wide in WIDER.items()}
"""Bits that a GPU adds to each code."""
_KV_BITS: Final[dict[KvType, float]] = {"f32": 32, "f16": 16, "q8_0": 8.5, "fp8": 8}
"""Bits of a number in keys or values; for Q8_0 including its share of the scale of 32 numbers."""
_KV_NAMES: Final = "f32, f16, q8_0 or fp8"


class FolderConfig(NamedTuple):
    """The contents of `config.json`."""

    architecture: str
    """`model_type`."""
    family: Family
    config: ModelConfig
    checkpoint: Checkpoint | None
    """How matrices are quantized; None if they are not, or in a way that the family handles."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model in safetensors, checked."""

    path: Path
    architecture: str
    """`model_type` of config.json."""
    family: Family
    config: ModelConfig
    checkpoint: Checkpoint | None
    headers: tuple[SafetensorsHeader, ...]
    by_name: Mapping[str, StoredTensor]
    """The tensors of all files, see `resolve`."""

    @property
    def tensors(self) -> Collection[StoredTensor]:
        """The tensors of all files."""
        return self.by_name.values()

    @property
    def size_bytes(self) -> int:
        """Total size of the safetensors files."""
        return sum(header.size_bytes for header in self.headers)

    @property
    def parameters(self) -> int:
        """Number of weights in all tensors, including packed ones."""
        return sum(_numbers(tensor) for tensor in self.tensors)

    @property
    def stored(self) -> str:
        """The type in which most bytes are stored: "BF16", "F32", "MXFP4", "GPTQ 4-bit" ..."""
        return self.checkpoint.label if self.checkpoint else most_common_kind(self.tensors)

    @property
    def dtype(self) -> Dtype:
        """The dtype in which the model runs on a processor, unless another one is requested."""
        return own_dtype(self.tensors)

    def weight_bytes(self, dtype: Dtype) -> int:
        """Bytes of the weights in memory, with plain weights held as `dtype`."""
        return weight_bytes(self.tensors, dtype, packed=STAYS_PACKED)

    def kv_bytes_per_token(self, kv_type: KvType) -> int:
        """Most bytes that a token takes: in all layers, as if none had a window.

        `KvSizes` computes the exact numbers.

        Raises:
            InvalidParameter: as `kv_bytes`.
        """
        return kv_bytes(self.config, kv_type, kv_type) * len(self.config.layers)


def most_common_kind(stored: Iterable[StoredTensor]) -> str:
    """The type in which most bytes are stored: "BF16", "F32", "Q4_K", "MXFP4" ..."""
    sizes = Counter[str]()
    for tensor in stored:
        kind = _MXFP4 if tensor.name.endswith(_MXFP4_BLOCKS) else tensor.kind
        sizes[kind] += tensor.nbytes
    return sizes.most_common(1)[0][0] if sizes else "F32"


def own_dtype(stored: Iterable[StoredTensor]) -> Dtype:
    """The dtype of plain weights on a processor, unless another one is requested.

    This is the dtype in which most of them are stored, or else half precision, in which packed
    weights lose nothing that matters.
    """
    tensors = list(stored)
    kind = most_common_kind(tensors)
    if kind in CODES:
        kind = most_common_kind(tensor for tensor in tensors if tensor.kind in ("F16", "BF16"))
        return "f16" if kind == "F16" else "bf16"
    return _OF_KINDS.get(kind, "bf16")


def weight_bytes(
    stored: Iterable[StoredTensor], dtype: Dtype, *, packed: Set[str], on_gpu: bool = False
) -> int:
    """Bytes of weights in memory.

    Args:
        dtype: of plain weights.
        packed: types whose matrices stay packed. gpt-oss's experts are MXFP4.
        on_gpu: the weights are on a GPU, where codes of 2, 3 and 6 bits take 4 or 8.
    """
    number = DTYPE_BYTES[dtype]
    wider = _WIDER_BITS if on_gpu else {}
    return sum(
        tensor.nbytes + _numbers(tensor) * wider.get(tensor.kind, 0) // 8
        if held_as(tensor) in packed
        else _numbers(tensor) * number
        for tensor in stored
    )


def held_as(tensor: StoredTensor) -> str:
    """The packing of a tensor, MXFP4 for gpt-oss's bytes; "" for plain numbers."""
    return _MXFP4 if tensor.kind == "U8" else tensor.packing


def kv_bytes(config: ModelConfig, key_type: KvType, value_type: KvType) -> int:
    """Bytes of the keys and values of a token in one layer.

    Raises:
        InvalidParameter: the native runner does not support a type, or not for heads of this size.
    """
    for param, kv_type in (("kv_type", key_type), ("kv_type_v", value_type)):
        if kv_type not in _KV_BITS:
            raise InvalidParameter(
                param,
                f"The native runner keeps keys and values as {_KV_NAMES}, not as {kv_type}.",
                f"Use {param} q8_0, or --backend llamacpp.",
            )
        if kv_type == "q8_0" and config.head_dim % 32:
            raise InvalidParameter(
                param,
                f"A q8_0 KV cache needs heads that are a multiple of 32; this model's heads are "
                f"{config.head_dim}.",
                f"Use {param} f16 with this model.",
            )
    bits = _KV_BITS[key_type] + _KV_BITS[value_type]
    return int(config.kv_elements // 2 * bits) // 8


def read_model_folder(folder: Path) -> ModelFolder:
    """Read and check the model in `folder`, without its weights.

    Raises:
        ModelNotFound: there is no config.json.
        CorruptFile: a file is missing or damaged, or has impossible contents.
        UnsupportedModel: the native runner does not know the family or the variant.
        OSError: a file cannot be read.
    """
    said, headers = read_config(folder), read_folder(folder)
    return ModelFolder(folder, *said, headers, resolve(headers, said.checkpoint))


def read_config(folder: Path) -> FolderConfig:
    """Read `config.json`.

    Raises:
        ModelNotFound, CorruptFile, UnsupportedModel, OSError: as `read_model_folder`.
    """
    if not (folder / CONFIG).is_file():
        raise ModelNotFound(
            f"{folder} has no {CONFIG}.",
            "Name a folder with config.json, tokenizer.json and safetensors, or a GGUF file.",
        )
    fields = read_fields(folder / CONFIG)
    family = family_of_hf(fields)
    checkpoint = read_checkpoint(fields)
    return FolderConfig(fields.text("model_type"), family, family.from_hf(fields), checkpoint)


def _numbers(tensor: StoredTensor) -> int:
    if tensor.kind == "U8":
        return 2 * tensor.nbytes if tensor.name.endswith(_MXFP4_BLOCKS) else 0
    return math.prod(tensor.shape)
