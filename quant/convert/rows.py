"""Reads rows of a folder's tensors in the layout of GGUF, one run of rows after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from hearth.quant.checkpoints.reading import read_quantized
from hearth.quant.checkpoints.scheme import Checkpoint, QuantizedTensor
from hearth.quant.convert.blocks import ggml_blocks
from hearth.quant.convert.tensors import Found
from hearth.quant.gguf.source import Bytes
from hearth.quant.mxfp4 import pack_mxfp4
from hearth.quant.safetensors import DTYPES, SafetensorsTensors
from hearth.quant.safetensors_header import SafetensorsHeader


class FolderRows:
    """Implements `hearth.quant.gguf.source.WeightReader` over mapped files. Only the requested rows
    of a tensor are held in memory; of a transposed stack, one matrix.

    Raises:
        CorruptFile: the size of a file has changed.
        OSError: a file cannot be mapped.
    """

    def __init__(
        self,
        shards: Sequence[SafetensorsHeader],
        found: Sequence[Found],
        checkpoint: Checkpoint | None,
    ) -> None:
        self._tensors = SafetensorsTensors(shards, checkpoint)
        self._found = {one.name: one for one in found}
        self._matrix: tuple[str, int, Tensor] | None = None
        """The current transposed matrix, with its tensor and expert."""
        self._open: dict[str, Tensor] = {}
        """Stored parts of the current tensor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._matrix = None
        self._open.clear()
        self._tensors.close()

    def rows(self, name: str, first: int, count: int) -> Bytes:
        """See the protocol."""
        entry = self._found[name]
        rows = self._changed(entry, first, count)
        dtype = DTYPES.get(entry.type.name)
        plain = rows if dtype is None else rows.to(dtype)
        return plain.contiguous().view(torch.uint8).flatten().numpy().data

    def done(self, name: str) -> None:
        """Release the pages that `name` was read from."""
        self._matrix = None
        self._open.clear()
        for stored in self._found[name].part.names:
            self._tensors.release(stored)

    def _stored(self, name: str) -> Tensor:
        """A stored tensor over the map, which is prefetched once; a packed one as GGUF blocks
        [rows, bytes].
        """
        if name not in self._open:
            tensor = self._tensors.stored[name]
            self._open[name] = (
                ggml_blocks(read_quantized(tensor, self._tensors.read))
                if isinstance(tensor, QuantizedTensor)
                else self._tensors.read(name)
            )
        return self._open[name]

    def _changed(self, found: Found, first: int, count: int) -> Tensor:
        """Rows [count, row] in the layout of `found`; of a vector, all of it."""
        if found.values:
            return torch.tensor(found.values, dtype=torch.float64)
        part, names = found.part, found.part.names
        if len(found.shape) == 3:
            return self._of_stack(found, *divmod(first, found.rows), count)
        stored = self._stored(names[0])
        if found.picked is not None:
            return stored[first : first + count, found.picked]
        if found.heads:
            length = len(stored) if stored.ndim == 1 else count
            return stored[_alternating(found.heads, first, length, len(stored))]
        if stored.ndim == 1:
            return stored.float() + 1.0 if part.is_minus_one else stored
        return stored[first : first + count]

    def _of_stack(self, found: Found, expert: int, row: int, count: int) -> Tensor:
        part, names = found.part, found.part.names
        rows = slice(row, row + count)
        picked = found.picked or slice(None)
        if part.is_mxfp4:
            blocks, scales = (self._stored(name)[expert][picked][rows] for name in names)
            return pack_mxfp4(blocks, scales)
        if len(names) > 1:
            return self._stored(names[expert])[rows]
        if part.is_transposed:
            return self._transposed(found, expert, picked)[rows]
        return self._stored(names[0])[expert][picked][rows]

    def _transposed(self, found: Found, expert: int, picked: slice) -> Tensor:
        """A copy of one matrix of a transposed stack, since gathering a few of its rows from the
        file would read all of it each time.
        """
        held = self._matrix
        if held is None or held[:2] != (found.name, expert):
            stored = self._stored(found.part.names[0])[expert].transpose(0, 1)
            held = self._matrix = (found.name, expert, stored[picked].contiguous())
        return held[2]


def _alternating(heads: int, first: int, count: int, rows: int) -> Tensor:
    """[count]: the stored rows that become the rows from `first` on, so that the rows of each head
    alternate between its two rotary halves.
    """
    length = rows // heads
    place = torch.arange(first, first + count)
    within = place % length
    return place - within + within % 2 * (length // 2) + within // 2
