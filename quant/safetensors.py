"""The tensors of a model in safetensors files, memory-mapped rather than copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from hearth.quant.checkpoints.modules import resolve
from hearth.quant.checkpoints.scheme import Checkpoint, QuantizedTensor
from hearth.quant.mapped import MappedFile
from hearth.quant.safetensors_header import SafetensorsHeader, TensorEntry, read_header
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.stored import StoredTensor

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I16": torch.int16,
        "U16": torch.uint16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I32": torch.int32,
        "U32": torch.uint32,
        "F32": torch.float32,
        "I64": torch.int64,
        "U64": torch.uint64,
        "F64": torch.float64,
    }
)


class SafetensorsTensors:
    """The tensors of a set of checked files; each tensor is in one of the files."""

    def __init__(
        self, headers: Sequence[SafetensorsHeader], checkpoint: Checkpoint | None = None
    ) -> None:
        """
        Args:
            checkpoint: how matrices are quantized; None if they are not.

        Raises:
            CorruptFile: a file changed after it was checked, or as in `resolve`.
            UnsupportedModel: as in `resolve`.
            OSError: a file cannot be mapped.
        """
        self.headers = tuple(headers)
        self._places: dict[str, tuple[MappedFile, TensorEntry]] = {}
        for header in self.headers:
            mapped = MappedFile(header.path, header.size_bytes)
            self._places |= {name: (mapped, entry) for name, entry in header.tensors.items()}
        self.stored: Mapping[str, StoredTensor] = resolve(self.headers, checkpoint)
        """Every tensor by name; the tensors of a quantized matrix are one `QuantizedTensor`."""

    def read(self, name: str) -> Tensor:
        """A read-only tensor over the map. Raises `KeyError` for an unknown name."""
        mapped, entry = self._places[name]
        mapped.prefetch(entry.start, entry.nbytes)
        return mapped.tensor(entry.start, entry.nbytes, DTYPES[entry.kind], entry.shape)

    def release(self, name: str) -> None:
        """Allow the data of the tensor `name`, or of the parts of the quantized matrix `name`, to
        leave this process's memory, once the caller has copied it.
        """
        stored = self.stored[name] if name not in self._places else None
        parts = stored.parts.values() if isinstance(stored, QuantizedTensor) else (name,)
        for part in parts:
            mapped, entry = self._places[part]
            mapped.release(entry.start, entry.nbytes)

    def close(self) -> None:
        """Release the maps. Each map stays open as long as a tensor over it is in use."""
        self._places.clear()


class SafetensorsFile(SafetensorsTensors):
    """One safetensors file. Raises the errors of `read_header` and `SafetensorsTensors`."""

    def __init__(self, path: str | Path) -> None:
        super().__init__((read_header(path),))


class SafetensorsFolder(SafetensorsTensors):
    """The safetensors files of a model's folder. Raises the errors of `read_folder` and
    `SafetensorsTensors`.
    """

    def __init__(self, folder: str | Path, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(read_folder(folder), checkpoint)
