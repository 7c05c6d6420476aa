"""The tensors of a GGUF model, memory-mapped rather than copied."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.mapped import MappedFile
from hearth.quant.safetensors import DTYPES
from hearth.quant.stored import StoredTensor


class GgufTensorFile:
    """The tensors of a GGUF model and its other shards. Shapes are in PyTorch's order, the reverse
    of ggml's.
    """

    def __init__(self, file: GgufFile) -> None:
        """
        Args:
            file: the result of `hearth.quant.gguf.check`.

        Raises:
            CorruptFile: the file changed after it was checked.
            OSError: the file cannot be mapped.
        """
        self.header = file
        self._places: dict[str, tuple[MappedFile, int, TensorInfo]] = {}
        for part in (file, *file.shards):
            mapped = MappedFile(part.path, part.size_bytes)
            for tensor in part.tensors:
                self._places[tensor.name] = (mapped, part.data_offset + tensor.offset, tensor)
        self.stored: Mapping[str, StoredTensor] = {
            tensor.name: tensor.stored for tensor in file.all_tensors
        }
        """Every tensor by name."""

    def read(self, name: str) -> Tensor:
        """A read-only tensor over the map; for a packed tensor its blocks, [*shape[:-1], bytes of a
        row] uint8. Raises `KeyError` for an unknown name.
        """
        mapped, start, tensor = self._places[name]
        stored = self.stored[name]
        shape, dtype = stored.shape, DTYPES.get(stored.kind)
        if dtype is None:
            shape, dtype = (*shape[:-1], tensor.type.nbytes(shape[-1])), torch.uint8
        mapped.prefetch(start, tensor.nbytes)
        return mapped.tensor(start, tensor.nbytes, dtype, shape)

    def release(self, name: str) -> None:
        """Allow the data of `name`, once it is copied, to leave this process's memory."""
        mapped, start, tensor = self._places[name]
        mapped.release(start, tensor.nbytes)

    def close(self) -> None:
        """Release the maps. Each map stays open as long as a tensor over it is in use."""
        self._places.clear()
