"""The header of a new GGUF file: metadata, which can be copied from another file byte for byte, and
a tensor list.

The layout is that of ggml's own writer (`gguf_write_out` in ggml's `gguf.cpp`): version 3, tensors
in the order of the list, each padded to the alignment, including the last one. Pure Python.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hearth.quant.gguf.cursor import HeaderCursor
from hearth.quant.gguf.reader import DEFAULT_ALIGNMENT, read_value
from hearth.quant.gguf.types import NUMBER_FORMATS, TensorType, ValueType

_START = struct.Struct("<4sIQQ")
_MAGIC = b"GGUF"
_VERSION = 3
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a new file: the bytes of its header, padding included, and its size."""

    header: bytes
    alignment: int
    size: int
    """Bytes of the whole file."""


def metadata_bytes(path: Path) -> dict[str, bytes]:
    """The key-value pairs of the GGUF file at `path`, each as encoded in the file: key, type and
    value. Values that are not UTF-8 are thus preserved.

    Raises:
        CorruptFile: as in `read_header`, which the file has passed.
        OSError: the file cannot be opened.
    """
    pairs: dict[str, bytes] = {}
    with path.open("rb") as stream:
        cursor = HeaderCursor(stream, os.fstat(stream.fileno()).st_size, path)
        cursor.u64("header magic and version")
        cursor.u64("header tensor count")
        for _ in range(cursor.u64("header key count")):
            start = cursor.pos
            key = cursor.text("key").decode("utf-8")
            read_value(cursor, ValueType(cursor.u32(key)), key)
            pairs[key] = bytes(cursor.buffer[start : cursor.pos])
    return pairs


def pair_bytes(key: str, kind: ValueType, value: int | float | bool | str) -> bytes:
    """A key-value pair as encoded in a file."""
    start = _string(key) + _U32.pack(kind)
    if isinstance(value, str):
        return start + _string(value)
    return start + struct.pack("<" + NUMBER_FORMATS[kind], value)


def strings_bytes(key: str, texts: Sequence[str]) -> bytes:
    """A list of strings as encoded in a file."""
    start = _string(key) + _U32.pack(ValueType.ARRAY) + _U32.pack(ValueType.STRING)
    return b"".join([start, _U64.pack(len(texts)), *map(_string, texts)])


def numbers_bytes(
    key: str, kind: ValueType, values: Sequence[int] | Sequence[float] | Sequence[bool]
) -> bytes:
    """A list of numbers as encoded in a file."""
    start = _string(key) + _U32.pack(ValueType.ARRAY) + _U32.pack(kind)
    packed = struct.pack(f"<{len(values)}{NUMBER_FORMATS[kind]}", *values)
    return start + _U64.pack(len(values)) + packed


def lay_out(
    pairs: Mapping[str, bytes],
    tensors: Sequence[tuple[str, tuple[int, ...], TensorType, int]],
    alignment: int = DEFAULT_ALIGNMENT,
) -> Layout:
    """The layout of a file with these pairs and tensors, in this order.

    Args:
        pairs: encoded pairs by key, as from `metadata_bytes`.
        tensors: (name, shape in ggml's order, type, bytes of data).
    """
    parts = [_START.pack(_MAGIC, _VERSION, len(tensors), len(pairs)), *pairs.values()]
    offset = 0
    for name, shape, kind, size in tensors:
        parts += [_string(name), _U32.pack(len(shape)), *map(_U64.pack, shape)]
        parts += [_U32.pack(kind), _U64.pack(offset)]
        offset += padded(size, alignment)
    header = b"".join(parts)
    header += bytes(padded(len(header), alignment) - len(header))
    return Layout(header, alignment, len(header) + offset)


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return _U64.pack(len(data)) + data
