"""A model's folder as `config.json` and the headers of its safetensors tell of it. No weight is
read, and torch is not imported: front ends and the host ask as well.
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
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.table import family_of_hf
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors_header import SafetensorsHeader
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.stored import CODES, STAYS_PACKED, StoredTensor

CONFIG: Final = "config.json"
DTYPE_BYTES: Final[dict[Dtype, int]] = {"f32": 4, "f16": 2, "bf16": 2}
_OF_KINDS: Final[dict[str, Dtype]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_MXFP4_BLOCKS: Final = "_blocks"
"""How gpt-oss names packed bytes of two numbers each; their exponents end in `_scales`."""
_MXFP4: Final = "MXFP4"
_WIDER_BITS: Final = {kind: int(wide[3:]) - int(kind[3:]) for kind, wide in WIDER.items()}
"""What a GPU adds to each code."""
_KV_BITS: Final[dict[KvType, float]] = {"f32": 32, "f16": 16, "q8_0": 8.5, "fp8": 8}
"""Of a number of keys or values; of Q8_0 with its share of the scale of 32."""
_KV_NAMES: Final = "f32, f16, q8_0 or fp8"


class FolderConfig(NamedTuple):
    """What `config.json` says."""

    architecture: str
    """`model_type`."""
    family: Family
    config: ModelConfig
    checkpoint: Checkpoint | None
    """How matrices are quantized; None: not at all, or in a way that the family knows."""


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
        """Those of all files."""
        return self.by_name.values()

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
        """How most bytes are stored: "BF16", "F32", "MXFP4", "GPTQ 4-bit" ..."""
        return self.checkpoint.label if self.checkpoint else most_common_kind(self.tensors)

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
            InvalidParameter: as `kv_bytes`.
        """
        return kv_bytes(self.config, kv_type, kv_type) * len(self.config.layers)


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
    tensors = list(stored)
    kind = most_common_kind(tensors)
    if kind in CODES:
        kind = most_common_kind(tensor for tensor in tensors if tensor.kind in ("F16", "BF16"))
        return "f16" if kind == "F16" else "bf16"
    return _OF_KINDS.get(kind, "bf16")


def weight_bytes(
    stored: Iterable[StoredTensor], dtype: Dtype, *, packed: Set[str], on_gpu: bool = False
) -> int:
    """Of weights in memory.

    Args:
        dtype: of plain weights.
        packed: types whose matrices stay packed. gpt-oss's experts are MXFP4.
        on_gpu: where codes of 2, 3 and 6 bits take 4 or 8.
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
    """The packing of a tensor, or of what gpt-oss's bytes become; "" for plain numbers."""
    return _MXFP4 if tensor.kind == "U8" else tensor.packing


def kv_bytes(config: ModelConfig, key_type: KvType, value_type: KvType) -> int:
    """Keys and values of a token in one layer.

    Raises:
        InvalidParameter: a type that the native runner does not have, or not for these heads.
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
    """The model in `folder`.

    Raises:
        ModelNotFound: it has no config.json.
        CorruptFile: a file is missing or damaged, or says what cannot be.
        UnsupportedModel: a family, or a variant, that the native runner does not know.
        OSError: something cannot be read.
    """
    said, headers = read_config(folder), read_folder(folder)
    return ModelFolder(folder, *said, headers, resolve(headers, said.checkpoint))


def read_config(folder: Path) -> FolderConfig:
    """What `config.json` says.

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
