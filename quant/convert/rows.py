"""Rows of a folder's tensors as GGUF has them, read one run after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from hearth.quant.convert.inventory import Found
from hearth.quant.convert.origin import Origin
from hearth.quant.gguf.source import Bytes
from hearth.quant.gguf.types import TensorType
from hearth.quant.mxfp4 import pack_mxfp4
from hearth.quant.safetensors import SafetensorsTensors
from hearth.quant.safetensors_header import SafetensorsHeader

_DTYPES = {
    TensorType.F32: torch.float32,
    TensorType.F16: torch.float16,
    TensorType.BF16: torch.bfloat16,
}


class FolderRows:
    """Implements `hearth.quant.gguf.source.WeightReader` over mapped files: what a tensor takes in
    memory are the rows that are asked for, and of a transposed stack one matrix.

    Raises:
        CorruptFile: a file has another size by now.
        OSError: one cannot be mapped.
    """

    def __init__(self, shards: Sequence[SafetensorsHeader], found: Sequence[Found]) -> None:
        self._tensors = SafetensorsTensors(shards)
        self._found = {one.name: one for one in found}
        self._matrix: tuple[str, int, Tensor] | None = None
        """The transposed matrix at hand: of which tensor, and of which expert."""
        self._open: dict[str, Tensor] = {}
        """What is stored of the tensor at hand."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._matrix = None
        self._open.clear()
        self._tensors.close()

    def rows(self, name: str, first: int, count: int) -> Bytes:
        """See the protocol."""
        found = self._found[name]
        rows = self._changed(found, first, count)
        dtype = _DTYPES.get(found.type)
        plain = rows if dtype is None else rows.to(dtype)
        return plain.contiguous().view(torch.uint8).flatten().numpy().data

    def done(self, name: str) -> None:
        """Let go of the pages that `name` was read from."""
        self._matrix = None
        self._open.clear()
        for stored in self._found[name].origin.names:
            self._tensors.release(stored)

    def _stored(self, name: str) -> Tensor:
        """A stored tensor over the map, which the system is told of once."""
        if name not in self._open:
            self._open[name] = self._tensors.read(name)
        return self._open[name]

    def _changed(self, found: Found, first: int, count: int) -> Tensor:
        """The rows as `found.origin` says: [count, row] or, of a vector, all of it."""
        origin = found.origin
        if origin.values:
            return torch.tensor(origin.values, dtype=torch.float64)
        if len(found.shape) == 1:
            vector = self._stored(origin.names[0])
            if origin.heads:
                vector = vector[_alternating(origin.heads, 0, len(vector), len(vector))]
            return vector.float() + 1.0 if origin.plus_one else vector
        if len(found.shape) == 3 or origin.picked is not None:
            return self._of_stack(found, first, count)
        matrix = self._stored(origin.names[0])
        if origin.heads:
            return matrix[_alternating(origin.heads, first, count, found.rows)]
        return matrix[first : first + count]

    def _of_stack(self, found: Found, first: int, count: int) -> Tensor:
        origin = found.origin
        if len(found.shape) == 2:
            assert origin.picked is not None
            return self._stored(origin.names[0])[first : first + count, origin.picked.rows]
        expert, row = divmod(first, found.rows)
        rows = slice(row, row + count)
        if origin.packed:
            blocks, scales = (
                _picked(self._stored(name)[expert], origin)[rows] for name in origin.names
            )
            return pack_mxfp4(blocks, scales)
        if len(origin.names) > 1:
            return self._stored(origin.names[expert])[rows]
        if origin.transposed:
            return self._transposed(found, expert)[rows]
        return _picked(self._stored(origin.names[0])[expert], origin)[rows]

    def _transposed(self, found: Found, expert: int) -> Tensor:
        """One matrix of a transposed stack, in memory of its own: to gather a few rows of it from
        the file would read all of it each time.
        """
        held = self._matrix
        if held is None or held[:2] != (found.name, expert):
            stored = self._stored(found.origin.names[0])[expert].transpose(0, 1)
            held = (found.name, expert, _picked(stored, found.origin).contiguous())
            self._matrix = held
        return held[2]


def _picked(matrix: Tensor, origin: Origin) -> Tensor:
    return matrix if origin.picked is None else matrix[origin.picked.rows]


def _alternating(heads: int, first: int, count: int, rows: int) -> Tensor:
    """[count] which stored rows become the rows from `first` on, where each head's are to alternate
    between its two rotary halves.
    """
    length = rows // heads
    place = torch.arange(first, first + count)
    within = place % length
    return place - within + within % 2 * (length // 2) + within // 2
