"""The headers of new safetensors files, whose tensors are written one after the other. Without
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
"""A tensor: its name, its type as safetensors name it, its shape."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file before its data."""

    name: str
    header: bytes
    tensors: tuple[str, ...]
    """Names, in the order of the file."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The files, which are written as if they were one: each goes on where the one before ends."""

    files: tuple[NewFile, ...]
    entries: Mapping[str, TensorEntry]
    """Their starts are counted over all files."""

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(one.size_bytes for one in self.files)

    @property
    def headers(self) -> dict[str, bytes]:
        """By the name of the first tensor of each file: what is written before it."""
        return {one.tensors[0]: one.header for one in self.files}

    @property
    def index(self) -> dict[str, object]:
        """What `model.safetensors.index.json` says."""
        total = sum(one.nbytes for one in self.entries.values())
        places = {name: one.name for one in self.files for name in one.tensors}
        return {"metadata": {"total_size": total}, "weight_map": places}


def lay_out(units: Iterable[Sequence[New]], most_bytes: int) -> Layout:
    """Files with these tensors, in their order.

    Args:
        units: tensors that are in the same file.
        most_bytes: of tensors in a file, unless a single unit has more.
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
