"""The header of a new safetensors file whose tensors are written one after the other. Without
torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from hearth.quant.safetensors_header import TensorEntry
from hearth.quant.stored import ELEMENT_BYTES

_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file before its data."""

    header: bytes
    entries: Mapping[str, TensorEntry]
    size_bytes: int
    """Of the whole file."""


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> FileLayout:
    """A file with these tensors (name, type as safetensors name it, shape), in their order."""
    values: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
    end = 0
    for name, kind, shape in tensors:
        start, end = end, end + prod(shape) * ELEMENT_BYTES[kind]
        values[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
        starts[name] = kind, shape, start, end
    text = json.dumps(values, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    entries = {
        name: TensorEntry(name, shape, kind, stop - start, start=len(header) + start)
        for name, (kind, shape, start, stop) in starts.items()
    }
    return FileLayout(header, entries, len(header) + end)
