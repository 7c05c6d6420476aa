"""The tensors of a GGUF model, mapped and not copied."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.types import TensorType
from hearth.quant.mapped import MappedFile
from hearth.quant.stored import StoredTensor

PLAIN: Mapping[TensorType, torch.dtype] = MappingProxyType(
    {
        TensorType.F32: torch.float32,
        TensorType.F16: torch.float16,
        TensorType.BF16: torch.bfloat16,
        TensorType.F64: torch.float64,
        TensorType.I8: torch.int8,
        TensorType.I16: torch.int16,
        TensorType.I32: torch.int32,
        TensorType.I64: torch.int64,
    }
)
"""Types whose elements stand on their own; all others are packed."""


class GgufTensorFile:
    """The tensors of a GGUF model and its further shards. Shapes are PyTorch's: the reverse of
    ggml's.
    """

    def __init__(self, file: GgufFile) -> None:
        """
        Args:
            file: as `hearth.quant.gguf.check` gives it.

        Raises:
            CorruptFile: the file changed after it was checked.
            OSError: it cannot be mapped.
        """
        self.header = file
        self._places: dict[str, tuple[MappedFile, int, TensorInfo]] = {}
        for part in (file, *file.shards):
            mapped = MappedFile(part.path, part.size_bytes)
            for tensor in part.tensors:
                self._places[tensor.name] = (mapped, part.data_offset + tensor.offset, tensor)
        self._stored = {name: _stored(tensor) for name, (_, _, tensor) in self._places.items()}

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Every tensor by name."""
        return self._stored

    def read(self, name: str) -> Tensor:
        """A plain tensor over the map, not to be written to. Raises `KeyError` for an unknown name
        and `ValueError` for a packed one.
        """
        stored = self._stored[name]
        if stored.dtype is None:
            raise ValueError(f"{name} is packed as {stored.packing}: use read_packed")
        return self._over_map(name, stored.dtype, stored.shape)

    def read_packed(self, name: str) -> Tensor:
        """The blocks of a packed tensor over the map: [*shape[:-1], bytes of a row] uint8. Raises
        `KeyError` for an unknown name and `ValueError` for a plain one.
        """
        stored = self._stored[name]
        if stored.dtype is not None:
            raise ValueError(f"{name} is not packed")
        kind = self._places[name][2].type
        row_bytes = stored.shape[-1] // kind.block_elements * kind.block_bytes
        return self._over_map(name, torch.uint8, (*stored.shape[:-1], row_bytes))

    def release(self, name: str) -> None:
        """What was read of `name` was copied: it may leave this process's memory."""
        mapped, start, tensor = self._places[name]
        mapped.release(start, tensor.nbytes)

    def close(self) -> None:
        """Let go of the maps. One stays as long as a tensor over it is in use."""
        self._places.clear()

    def _over_map(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        mapped, start, tensor = self._places[name]
        mapped.prefetch(start, tensor.nbytes)
        return mapped.tensor(start, tensor.nbytes, dtype, shape)


def _stored(tensor: TensorInfo) -> StoredTensor:
    dtype = PLAIN.get(tensor.type)
    packing = "" if dtype is not None else tensor.type.name
    return StoredTensor(tensor.name, tensor.shape[::-1], dtype, packing, tensor.nbytes)
