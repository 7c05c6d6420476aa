"""The tensors of a GGUF model, mapped and not copied."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.mapped import MappedFile
from hearth.quant.safetensors import DTYPES
from hearth.quant.stored import StoredTensor


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
        self._stored = {tensor.name: tensor.stored for tensor in file.all_tensors}

    @property
    def stored(self) -> Mapping[str, StoredTensor]:
        """Every tensor by name."""
        return self._stored

    def read(self, name: str) -> Tensor:
        """A tensor over the map, not to be written to; of a packed one the blocks: [*shape[:-1],
        bytes of a row] uint8. Raises `KeyError` for an unknown name.
        """
        mapped, start, tensor = self._places[name]
        stored, kind = self._stored[name], tensor.type
        shape, dtype = stored.shape, DTYPES.get(stored.kind)
        if dtype is None:
            row_bytes = shape[-1] // kind.block_elements * kind.block_bytes
            shape, dtype = (*shape[:-1], row_bytes), torch.uint8
        mapped.prefetch(start, tensor.nbytes)
        return mapped.tensor(start, tensor.nbytes, dtype, shape)

    def release(self, name: str) -> None:
        """What was read of `name` was copied: it may leave this process's memory."""
        mapped, start, tensor = self._places[name]
        mapped.release(start, tensor.nbytes)

    def close(self) -> None:
        """Let go of the maps. One stays as long as a tensor over it is in use."""
        self._places.clear()
