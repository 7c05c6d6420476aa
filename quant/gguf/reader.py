"""The structure of a GGUF file, read as untrusted input.

Source: the format's description (ggml `docs/gguf.md`) and what ggml's own reader accepts.
Guards against the classes of CVE-2024-21802, -21825, -21836, -23496, -23605, CVE-2025-53630,
CVE-2026-7482, -27940 and -33298.
"""

from __future__ import annotations

import os
import stat
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import BinaryIO

from hearth.quant.gguf.cursor import HeaderCursor
from hearth.quant.gguf.faults import corrupt, quoted, unsupported
from hearth.quant.gguf.file import GgufFile, TensorInfo, Value
from hearth.quant.gguf.types import NUMBER_FORMATS, TensorType, ValueType

MAX_ENTRIES = 65_536
"""Maximum number of metadata keys and of tensors in one file."""
MAX_KEY_BYTES = 65_536
MAX_TENSOR_NAME_BYTES = 63
MAX_DIMS = 4
MIN_ALIGNMENT, MAX_ALIGNMENT, DEFAULT_ALIGNMENT = 8, 65_536, 32
ALIGNMENT_KEY = "general.alignment"

_MAGIC = b"GGUF"
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
_VERSIONS = (2, 3)
_INT64_MAX = (1 << 63) - 1


def read_header(path: str | Path) -> GgufFile:
    """Metadata and tensor list of the GGUF file at `path`; no tensor data is read.

    Raises:
        CorruptFile: the file violates the format; `field` in `data` names the place.
        UnsupportedModel: a version, byte order or tensor type that llama.cpp does not read either,
            or a pipe, socket or device.
        OSError: the file cannot be opened.
    """
    location = Path(path)
    mode = location.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Opening a pipe would wait for a writer.
        raise unsupported(location, "file type", "is a pipe, socket or device, not a file")
    with location.open("rb") as stream:
        return parse_header(stream, os.fstat(stream.fileno()).st_size, location)


def parse_header(stream: BinaryIO, size: int, path: Path) -> GgufFile:
    """The header at the beginning of `stream`.

    Args:
        size: bytes of the whole file; `stream` itself may end after the header.
        path: of the file, for messages.

    Raises:
        CorruptFile, UnsupportedModel: as in `read_header`.
    """
    cursor = HeaderCursor(stream, size, path)
    version = _read_version(cursor)
    tensor_count = _read_count(cursor, "header tensor count")
    key_count = _read_count(cursor, "header key count")
    metadata, value_types = _read_metadata(cursor, key_count)
    alignment = _alignment(path, metadata, value_types)
    tensors = _read_tensors(cursor, tensor_count)
    data_offset = -(-cursor.pos // alignment) * alignment
    cursor.finish()
    _check_layout(path, tensors, alignment, data_offset, cursor.size)
    return GgufFile(
        path=path,
        size_bytes=cursor.size,
        version=version,
        metadata=metadata,
        value_types=value_types,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
    )


def _read_version(cursor: HeaderCursor) -> int:
    if cursor.size < len(_MAGIC):
        raise corrupt(cursor.path, "header magic", f"the file has only {cursor.size} bytes")
    magic = cursor.u32("header magic").to_bytes(4, "little")
    if magic in _OLD_MAGICS:
        raise unsupported(
            cursor.path,
            "header magic",
            "is in a format older than GGUF",
            "Convert the original model again, or download a GGUF of it.",
        )
    if magic != _MAGIC:
        raise corrupt(
            cursor.path,
            "header magic",
            f"the file starts with {magic!r}, not {_MAGIC!r}",
            _not_gguf_hint(magic),
        )
    version = cursor.u32("header version")
    if version in _VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version & 0xFFFF == 0 and swapped:
        raise unsupported(
            cursor.path,
            "header version",
            f"is a big-endian GGUF (version {swapped}); only little-endian ones can be loaded",
            "Download the little-endian file.",
        )
    if version == 0:
        raise corrupt(cursor.path, "header version", "0, expected 2 or 3")
    raise unsupported(
        cursor.path,
        "header version",
        f"is a GGUF of version {version}; versions 2 and 3 can be loaded",
        "Download a newer conversion." if version < 2 else "Update Hearth.",
    )


def _not_gguf_hint(magic: bytes) -> str:
    if magic == b"vers":
        return "This looks like a Git LFS pointer: download the file itself, not its pointer."
    return "Pass a .gguf file; if this should be one, download it again."


def _read_count(cursor: HeaderCursor, field: str) -> int:
    count = cursor.u64(field)
    if count > MAX_ENTRIES:
        raise corrupt(cursor.path, field, f"{count:,}, at most {MAX_ENTRIES:,} allowed")
    return count


def _read_metadata(
    cursor: HeaderCursor, count: int
) -> tuple[dict[str, Value], dict[str, ValueType]]:
    metadata: dict[str, Value] = {}
    value_types: dict[str, ValueType] = {}
    for index in range(count):
        place = f"key {index} of {count}"
        key = _name(cursor, place, MAX_KEY_BYTES)
        field = f"key {quoted(key)}"
        if key in metadata:
            raise corrupt(cursor.path, field, "appears twice")
        kind = _value_type(cursor, f"{field} type")
        value_types[key] = kind
        metadata[key] = read_value(cursor, kind, field)
    return metadata, value_types


def _name(cursor: HeaderCursor, field: str, longest: int) -> str:
    """A key or a tensor's name: 1 to `longest` bytes of UTF-8 without NUL."""
    raw = cursor.text(f"{field} name", longest)
    if not raw:
        raise corrupt(cursor.path, f"{field} name", "is empty")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        shown = quoted(raw.decode("utf-8", "replace"))
        raise corrupt(cursor.path, f"{field} name", f"{shown} is not UTF-8") from error
    if "\0" in name:
        raise corrupt(cursor.path, f"{field} name", f"{quoted(name)} holds a NUL")
    return name


def _value_type(cursor: HeaderCursor, field: str) -> ValueType:
    number = cursor.u32(field)
    if number > max(ValueType):
        raise corrupt(cursor.path, field, f"{number}, known types are 0 to {max(ValueType):d}")
    return ValueType(number)


def read_value(cursor: HeaderCursor, kind: ValueType, field: str) -> Value:
    """The value of type `kind` at the cursor. Raises `CorruptFile`."""
    if kind in NUMBER_FORMATS:
        return cursor.number(kind, field)
    if kind is ValueType.STRING:
        return cursor.text(field).decode("utf-8", "replace")
    element_type = _value_type(cursor, f"{field} element type")
    count = cursor.u64(f"{field} count")
    if element_type is ValueType.ARRAY:
        raise corrupt(cursor.path, f"{field} element type", "arrays of arrays are not allowed")
    if element_type is ValueType.STRING:
        return cursor.strings(field, count)
    return cursor.numbers(field, element_type, count)


def _alignment(path: Path, metadata: dict[str, Value], value_types: dict[str, ValueType]) -> int:
    alignment = metadata.get(ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    field = f"key '{ALIGNMENT_KEY}'"
    kind = value_types.get(ALIGNMENT_KEY, ValueType.U32)
    if not isinstance(alignment, int) or kind is not ValueType.U32:
        raise corrupt(path, field, f"is of type {kind.name}, must be U32")
    if not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise corrupt(
            path,
            field,
            f"{alignment}, must be a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT:,}",
        )
    return alignment


def _read_tensors(cursor: HeaderCursor, count: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(count):
        name = _name(cursor, f"tensor {index} of {count}", MAX_TENSOR_NAME_BYTES)
        field = f"tensor {quoted(name)}"
        if name in tensors:
            raise corrupt(cursor.path, field, "appears twice")
        shape = _read_shape(cursor, field)
        kind = _tensor_type(cursor, field)
        nbytes = _nbytes(cursor.path, field, shape, kind)
        offset = cursor.u64(f"{field} offset")
        tensors[name] = TensorInfo(name, shape, kind, offset, nbytes)
    return tuple(tensors.values())


def _read_shape(cursor: HeaderCursor, field: str) -> tuple[int, ...]:
    dims = cursor.u32(f"{field} dimension count")
    if not 1 <= dims <= MAX_DIMS:
        raise corrupt(
            cursor.path, f"{field} dimension count", f"{dims}, must be from 1 to {MAX_DIMS}"
        )
    shape = tuple(cursor.u64(f"{field} shape") for _ in range(dims))
    elements = 1
    for length in shape:
        if not 1 <= length <= _INT64_MAX:
            raise corrupt(
                cursor.path, f"{field} shape", f"{shape}: a dimension must be from 1 to 2**63 - 1"
            )
        elements *= length
        if elements > _INT64_MAX:
            raise corrupt(
                cursor.path, f"{field} shape", f"{shape} has more than 2**63 - 1 elements"
            )
    return shape


def _tensor_type(cursor: HeaderCursor, field: str) -> TensorType:
    number = cursor.u32(f"{field} type")
    try:
        return TensorType(number)
    except ValueError as error:
        problem = f"has {field} of type {number}, which this version does not know"
        raise unsupported(
            cursor.path, f"{field} type", problem, "Choose another quantization, or update Hearth."
        ) from error


def _nbytes(path: Path, field: str, shape: tuple[int, ...], kind: TensorType) -> int:
    if shape[0] % kind.block_elements:
        raise corrupt(
            path,
            f"{field} shape",
            f"rows of {shape[0]:,} elements, {kind.name} needs a multiple of {kind.block_elements}",
        )
    return kind.nbytes(prod(shape))


def _check_layout(
    path: Path, tensors: tuple[TensorInfo, ...], alignment: int, data_offset: int, size: int
) -> None:
    """Check that tensors are aligned, inside the data section, and do not overlap."""
    available = max(0, size - data_offset)
    for tensor in tensors:
        field = f"tensor {quoted(tensor.name)} offset"
        if tensor.offset % alignment:
            raise corrupt(path, field, f"{tensor.offset:,} is not a multiple of {alignment}")
        if tensor.offset + tensor.nbytes > available:
            raise corrupt(
                path,
                field,
                f"{tensor.nbytes:,} bytes at {tensor.offset:,}, but the file holds "
                f"{available:,} bytes of tensor data",
                "The file is shorter than its header says: resume or repeat the download.",
            )
    ordered = sorted(tensors, key=lambda tensor: tensor.offset)
    for before, after in pairwise(ordered):
        end = before.offset + before.nbytes
        if after.offset < end:
            raise corrupt(
                path,
                f"tensor {quoted(after.name)} offset",
                f"{after.offset:,} overlaps {quoted(before.name)}, which ends at {end:,}",
            )
