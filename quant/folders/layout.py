"""The layout and headers of new safetensors files, whose tensors are written sequentially. Without
torch.

Source: the layout that transformers writes, see `hearth.quant.safetensors_shards`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from hearth.quant.safetensors_header import TensorEntry
from hearth.quant.safetensors_shards import SINGLE_NAME
from hearth.quant.stored import ELEMENT_BYTES

_ALIGNMENT = 8
New = tuple[str, str, tuple[int, ...]]
"""A tensor: its name, its safetensors type, its shape."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be written: its header and its tensors."""

    name: str
    header: bytes
    tensors: tuple[str, ...]
    """Names, in the order of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The files, which are written as one stream: each file begins where the one before ends."""

    files: tuple[NewFile, ...]
    entries: Mapping[str, TensorEntry]
    """Tensors by name; their starts are offsets in the stream of all files."""

    @property
    def size_bytes(self) -> int:
        """Size of all files together."""
        return sum(one.size_bytes for one in self.files)

    @property
    def headers(self) -> dict[str, bytes]:
        """The header of each file, by the name of the first tensor, before which it is written."""
        return {one.tensors[0]: one.header for one in self.files}

    @property
    def index(self) -> dict[str, object]:
        """The contents of `model.safetensors.index.json`."""
        total = sum(one.nbytes for one in self.entries.values())
        places = {name: one.name for one in self.files for name in one.tensors}
        return {"metadata": {"total_size": total}, "weight_map": places}


def lay_out(units: Iterable[Sequence[New]], most_bytes: int) -> Layout:
    """Lay out files with these tensors, in their order.

    Args:
        units: each is a sequence of tensors that must be in the same file.
        most_bytes: maximum bytes of tensors in a file, unless a single unit has more.
    """
    parts: list[list[New]] = []
    size = 0
    for unit in units:
        own = sum(prod(shape) * ELEMENT_BYTES[kind] for _, kind, shape in unit)
        if not parts or size + own > most_bytes:
            parts.append([])
            size = 0
        parts[-1] += unit
        size += own
    files: list[NewFile] = []
    entries: dict[str, TensorEntry] = {}
    begin = 0
    for number, tensors in enumerate(parts, 1):
        values: dict[str, object] = {"__metadata__": {"format": "pt"}}
        places: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        end = 0
        for name, kind, shape in tensors:
            start, end = end, end + prod(shape) * ELEMENT_BYTES[kind]
            values[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
            places[name] = kind, shape, start, end
        text = json.dumps(values, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        for name, (kind, shape, start, stop) in places.items():
            place = begin + len(header) + start
            entries[name] = TensorEntry(name, shape, kind, stop - start, start=place)
        name = SINGLE_NAME
        if len(parts) > 1:
            name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        files.append(NewFile(name, header, tuple(places), len(header) + end))
        begin += len(header) + end
    return Layout(tuple(files), entries)
