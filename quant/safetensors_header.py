"""The header of a safetensors file, read as untrusted input. Standard library only.

Source: the format's description (github.com/huggingface/safetensors, README "Format") and what its
own reader refuses: eight bytes of length, that many bytes of JSON, then the tensors' bytes without
holes. Nothing in such a file is ever executed; a pickle with this file name is only reported.
"""

from __future__ import annotations

import errno
import json
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.faults import corrupt, quoted, unsupported
from hearth.quant.stored import ELEMENT_BYTES, StoredTensor

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_TENSORS = 262_144
MAX_DIMS = 8

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_FIELDS = {"dtype", "shape", "data_offsets"}
_OTHER_TYPES = frozenset(
    {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"}
)
_SEPARATORS_A_TENSOR = 8 + MAX_DIMS
_INT64_MAX = (1 << 63) - 1
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive, as PyTorch's pickles are; it was not opened"),
    (b"\x80", "a pickle, which may run code when it is opened; it was not opened"),
    (b"GGUF", "a GGUF file"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"<", "a web page"),
    (b"{", "JSON"),
)


@dataclass(frozen=True, slots=True)
class TensorEntry(StoredTensor):
    """One tensor of the file; its bytes begin at byte `start`."""

    start: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What a safetensors file declares, as checked by `read_header`."""

    path: Path
    size_bytes: int
    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]

    @property
    def header_bytes(self) -> int:
        """Bytes before the data of the first tensor."""
        return min((entry.start for entry in self.tensors.values()), default=self.size_bytes)


def read_header(path: str | Path) -> SafetensorsHeader:
    """The header of the safetensors file at `path`; none of its tensors is read.

    Raises:
        CorruptFile: the file violates the format, or is of another one; `field` in `data` names
            the place.
        UnsupportedModel: a tensor is of a type that cannot be read.
        OSError: the file cannot be opened.
    """
    location = Path(path)
    size = regular_size(location)
    with location.open("rb") as stream:
        raw = _read_json(location, stream, size)
    values = parse_object(location, raw, "header")
    metadata = _metadata(location, values.pop(_METADATA, {}))
    first_byte = _LENGTH_BYTES + len(raw)
    tensors = {
        name: _entry(location, name, value, first_byte, size) for name, value in values.items()
    }
    _check_layout(location, tuple(tensors.values()), first_byte, size)
    return SafetensorsHeader(location, size, metadata, tensors)


def parse_object(path: Path, raw: bytes, field: str) -> dict[str, Any]:
    """The JSON object in `raw`, which is `field` of `path`. Names must be unique.

    Raises:
        CorruptFile: `raw` is not UTF-8, not JSON, not an object, or has too many values.
    """
    values = raw.count(b",")
    if values > MAX_TENSORS * _SEPARATORS_A_TENSOR:
        raise corrupt(path, field, f"{values:,} values, more than {MAX_TENSORS:,} tensors need")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise corrupt(path, f"{field} name {quoted(twice)}", "appears twice")
        return entries

    def not_a_number(name: str) -> Any:
        raise corrupt(path, field, f"{name} is no number in JSON")

    try:
        parsed = json.loads(
            raw.decode("utf-8"), object_pairs_hook=unique, parse_constant=not_a_number
        )
    except UnicodeDecodeError as error:
        raise corrupt(path, field, f"is not UTF-8 at byte {error.start:,}") from error
    except RecursionError as error:
        raise corrupt(path, field, "is nested too deeply") from error
    except ValueError as error:
        raise corrupt(path, field, f"is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise corrupt(path, field, f"is {_kind(parsed)}, not an object")
    return parsed


def regular_size(path: Path) -> int:
    """Size in bytes of the file at `path`.

    Raises:
        CorruptFile: it is not a regular file, or it is a dangling link.
        OSError: there is no such file.
    """
    try:
        status = path.stat()
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise corrupt(path, "file", "is a link that leads back to itself") from error
        if path.is_symlink():
            raise corrupt(path, "file", "is a link to a file that is not there") from error
        raise
    if not stat.S_ISREG(status.st_mode):
        raise corrupt(path, "file", "is no regular file")
    return status.st_size


def _read_json(path: Path, stream: BinaryIO, size: int) -> bytes:
    """The bytes between the length and the tensors."""
    start = stream.read(32)
    if not start:
        raise corrupt(path, "header length", "the file is empty")
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    problem = ""
    if size < _LENGTH_BYTES:
        problem = f"the file has only {size} bytes"
    elif length > MAX_HEADER_BYTES:
        problem = f"{length:,} bytes, at most {MAX_HEADER_BYTES:,} allowed"
    elif length > size - _LENGTH_BYTES:
        problem = f"{length:,} bytes, but only {size - _LENGTH_BYTES:,} follow it"
    elif length < 2:
        problem = f"{length} bytes, a header has at least 2"
    if problem:
        raise _foreign(path, start) or corrupt(path, "header length", problem)
    stream.seek(_LENGTH_BYTES)
    raw = stream.read(length)
    if len(raw) < length:
        raise corrupt(path, "header", f"the file shrank to {_LENGTH_BYTES + len(raw):,} bytes")
    if not raw.startswith(b"{"):
        raise _foreign(path, start) or corrupt(
            path, "header", f"begins with {raw[:8]!r}, must begin with '{{'"
        )
    return raw


def _foreign(path: Path, start: bytes) -> CorruptFile | None:
    """The error for a file whose first bytes are those of another format; None if unknown."""
    for magic, what in _FOREIGN:
        if start.startswith(magic):
            return corrupt(
                path,
                "format",
                f"it is no safetensors file but {what}",
                "Download the model's .safetensors files.",
            )
    return None


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise corrupt(path, _METADATA, f"is {_kind(value)}, not an object")
    for key, text in value.items():
        if not isinstance(text, str):
            raise corrupt(path, f"{_METADATA} {quoted(key)}", f"is {_kind(text)}, not a string")
    return value


def _entry(path: Path, name: str, value: Any, first_byte: int, size: int) -> TensorEntry:
    if not name:
        raise corrupt(path, "tensor name", "is empty")
    field = f"tensor {quoted(name)}"
    if not isinstance(value, dict):
        raise corrupt(path, field, f"is {_kind(value)}, not an object")
    if missing := sorted(_FIELDS - value.keys()):
        raise corrupt(path, field, f"has no '{missing[0]}'")
    if unknown := sorted(value.keys() - _FIELDS):
        raise corrupt(path, field, f"has an unknown field {quoted(unknown[0])}")
    dtype = _dtype(path, field, value["dtype"])
    shape = _shape(path, field, value["shape"])
    start, end = _offsets(path, field, value["data_offsets"])
    nbytes = ELEMENT_BYTES[dtype]
    for length in shape:
        nbytes *= length
        if nbytes > _INT64_MAX:
            raise corrupt(path, f"{field} shape", f"{list(shape)} is more than 2**63 - 1 bytes")
    if end - start != nbytes:
        raise corrupt(
            path,
            f"{field} data_offsets",
            f"{end - start:,} bytes for {dtype} of shape {list(shape)}, which has {nbytes:,}",
        )
    if first_byte + end > size:
        raise corrupt(
            path,
            f"{field} data_offsets",
            f"end at byte {first_byte + end:,}, but the file ends at byte {size:,}",
            "The file is shorter than its header says: resume or repeat the download.",
        )
    return TensorEntry(name, shape, dtype, nbytes, first_byte + start)


def _dtype(path: Path, field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise corrupt(path, f"{field} dtype", f"is {_kind(value)}, not a string")
    if value in _OTHER_TYPES:
        raise unsupported(
            path,
            f"{field} dtype",
            f"has {field} of type {value}, which cannot be read",
            "Choose a model in F32, F16 or BF16, or a GGUF of it.",
        )
    if value not in ELEMENT_BYTES:
        known = ", ".join(ELEMENT_BYTES)
        raise corrupt(path, f"{field} dtype", f"{quoted(value)} is no type; there are {known}")
    return value


def _shape(path: Path, field: str, value: Any) -> tuple[int, ...]:
    shape = _integers(path, f"{field} shape", value)
    if len(shape) > MAX_DIMS:
        raise corrupt(path, f"{field} shape", f"{len(shape)} dimensions, at most {MAX_DIMS}")
    return shape


def _offsets(path: Path, field: str, value: Any) -> tuple[int, int]:
    field = f"{field} data_offsets"
    offsets = _integers(path, field, value)
    if len(offsets) != 2:
        raise corrupt(path, field, f"{len(offsets)} numbers, must be begin and end")
    start, end = offsets
    if end < start:
        raise corrupt(path, field, f"end at {end:,}, before they begin at {start:,}")
    return start, end


def _integers(path: Path, field: str, value: Any) -> tuple[int, ...]:
    """A list of integers from 0 to 2**63 - 1."""
    if not isinstance(value, list):
        raise corrupt(path, field, f"is {_kind(value)}, not a list")
    for number in value:
        if isinstance(number, bool) or not isinstance(number, int):
            raise corrupt(path, field, f"holds {_kind(number)}, not an integer")
        if not 0 <= number <= _INT64_MAX:
            raise corrupt(path, field, f"holds {number:,}, must be from 0 to 2**63 - 1")
    return tuple(value)


def _check_layout(path: Path, tensors: tuple[TensorEntry, ...], first_byte: int, size: int) -> None:
    """Check that the tensors follow each other without overlaps or holes up to the end of the
    file."""
    if len(tensors) > MAX_TENSORS:
        raise corrupt(path, "header", f"{len(tensors):,} tensors, at most {MAX_TENSORS:,}")
    nowhere = TensorEntry("", (0,), "U8", 0, first_byte)
    ordered = sorted(tensors, key=lambda entry: (entry.start, entry.nbytes))
    for before, after in pairwise((nowhere, *ordered)):
        end = before.start + before.nbytes
        field = f"tensor {quoted(after.name)} data_offsets"
        if after.start < end:
            raise corrupt(
                path,
                field,
                f"begin at byte {after.start:,} and overlap {quoted(before.name)}, which ends at "
                f"{end:,}",
            )
        if after.start > end:
            raise corrupt(
                path, field, f"leave a hole of {after.start - end:,} bytes from byte {end:,} on"
            )
    end = ordered[-1].start + ordered[-1].nbytes if ordered else first_byte
    if end < size:
        raise corrupt(
            path, "file", f"{size - end:,} bytes follow the last tensor, which ends at {end:,}"
        )


def _kind(value: Any) -> str:
    """The JSON name of a value's type, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
