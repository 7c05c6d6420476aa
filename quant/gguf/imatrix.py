"""Importance matrices: how much an error in each input column of each weight matrix matters.

`hearth.quant.gguf.imatrix_sums` makes them. They are read from GGUF (`<tensor>.in_sum2` and
`<tensor>.counts`) and from the older format (.dat). Source: `load_imatrix` and
`load_legacy_imatrix` in llama.cpp's `tools/quantize/quantize.cpp`. The meaning is the same: an
importance is the mean of squared activations, and 1 for an expert that never received a token. Both
formats are read as untrusted input. Only names and offsets are read until values are requested;
only the values need numpy.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hearth.quant.gguf.faults import corrupt, quoted, unsupported
from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.reader import MAX_ENTRIES, MAX_TENSOR_NAME_BYTES, read_header
from hearth.quant.gguf.types import TensorType
from hearth.quant.gguf.values import StringArray

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

WINDOW_TOKENS = 512
"""Tokens of a window when a matrix is made; windows are independent of each other."""
PART_TOKENS = 128
"""Tokens of a window that llama.cpp computes at once, with logits for each."""
_MAGIC = b"GGUF"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_FLOAT_BYTES = 4
_I32 = struct.Struct("<i")
_MAX_DATASET_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """Location of the importances of one tensor: `matrices` experts with `columns` inputs each."""

    columns: int
    matrices: int
    sums_at: int
    """Byte of the file where the sums, [matrices, columns] float32, begin."""
    counts_at: int
    """Byte of the file where the counts, [matrices] float32, begin; 0: all sums are divided by
    `calls`."""
    calls: int = 0

    @property
    def values(self) -> int:
        return self.columns * self.matrices


@dataclass(frozen=True, slots=True)
class ImportanceMatrix:
    """The table of contents of an importance matrix file, checked by `read`."""

    path: Path
    entries: Mapping[str, Entry] = field(repr=False)
    dataset: str
    """The text that it was made from, as declared in the file; "" if unknown."""
    chunks: int
    """Number of chunks of that text; 0 if unknown."""
    is_planned: bool = False
    """The matrix has yet to be made: there is no file, and `entries` are those it will have."""

    def columns(self, name: str) -> Floats | None:
        """[values] float32, finite and not negative; None if there is no entry of that name.

        Raises:
            CorruptFile: a value is negative or not finite, or the file has changed.
        """
        import numpy as np

        entry = self.entries.get(name)
        if entry is None:
            return None
        with self.path.open("rb") as stream:
            sums = self._floats(stream, entry.sums_at, entry.values, name)
            values = sums.reshape(entry.matrices, entry.columns)
            if entry.counts_at:
                counts = self._floats(stream, entry.counts_at, entry.matrices, name)
                seen = counts > 0
                divisors = np.where(seen, counts, np.float32(1))[:, None]
                with np.errstate(over="ignore"):  # Detected below.
                    values = np.where(seen[:, None], values / divisors, np.float32(1))
            elif entry.calls > 0:
                values = values / np.float32(entry.calls)
        return self._checked(np.ascontiguousarray(values, dtype=np.float32), name).reshape(-1)

    def _floats(self, stream: BinaryIO, start: int, count: int, name: str) -> Floats:
        import numpy as np

        stream.seek(start)
        data = stream.read(count * _FLOAT_BYTES)
        if len(data) < count * _FLOAT_BYTES:
            raise corrupt(self.path, f"entry {quoted(name)}", "the file has become shorter")
        return self._checked(np.frombuffer(data, dtype="<f4").astype(np.float32), name)

    def _checked(self, values: Floats, name: str) -> Floats:
        import numpy as np

        if not np.isfinite(values).all() or (values < 0).any():
            raise corrupt(
                self.path,
                f"entry {quoted(name)}",
                "a value is negative or no finite number",
                "Compute the importance matrix again.",
            )
        return values


def planned(source: GgufFile, dataset: str) -> ImportanceMatrix:
    """The matrix that running `source` over a text will produce.

    Args:
        dataset: name of the text.
    """
    entries = {
        name: Entry(tensor.shape[0], prod(tensor.shape[2:]), 0, 0)
        for name, tensor in weighed(source.all_tensors).items()
    }
    return ImportanceMatrix(planned_path(source, Path()), entries, dataset, 1, is_planned=True)


def planned_path(source: GgufFile, folder: Path) -> Path:
    """The path of the matrix of `source` in `folder`."""
    return folder / f"{source.path.stem}.imatrix.gguf"


def weighed(tensors: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """The tensors that get importances, by name: the matrices of layers, as `llama-imatrix` does by
    default. The output matrix and the embedding get none.
    """
    return {
        tensor.name: tensor
        for tensor in tensors
        if tensor.name.startswith("blk.")
        and tensor.name.endswith(".weight")
        and len(tensor.shape) > 1
    }


def read(path: str | Path) -> ImportanceMatrix:
    """The contents of the importance matrix at `path`, in either format.

    Raises:
        CorruptFile: the file violates its format.
        UnsupportedModel: the file is a GGUF file, but not an importance matrix.
        OSError: the file cannot be opened.
    """
    location = Path(path)
    with location.open("rb") as stream:
        if stream.read(len(_MAGIC)) != _MAGIC:
            stream.seek(0)
            return _read_legacy(stream, location)
    return _read_gguf(read_header(location))


def _read_gguf(file: GgufFile) -> ImportanceMatrix:
    if file.value("general.type") != "imatrix":
        raise unsupported(
            file.path,
            "key 'general.type'",
            "is no importance matrix",
            "Pass the file that llama-imatrix wrote.",
        )
    tensors = {tensor.name: tensor for tensor in file.tensors}
    entries: dict[str, Entry] = {}
    for name, tensor in tensors.items():
        stem = name.removesuffix(_SUMS)
        other = tensors.get(stem + _COUNTS) if stem != name else None
        if stem == name:
            if not (name.endswith(_COUNTS) and name.removesuffix(_COUNTS) + _SUMS in tensors):
                raise corrupt(file.path, f"tensor {quoted(name)}", "belongs to no entry")
            continue
        if other is None:
            raise corrupt(file.path, f"tensor {quoted(name)}", f"has no {quoted(stem + _COUNTS)}")
        entries[stem] = _entry(file, tensor, other)
    if not entries:
        raise corrupt(file.path, "header tensor count", "no entries")
    datasets = file.value("imatrix.datasets")
    dataset = datasets[0] if isinstance(datasets, StringArray) and len(datasets) else ""
    chunks = file.integer("imatrix.chunk_count", 0)
    return ImportanceMatrix(file.path, entries, dataset, max(0, chunks))


def _entry(file: GgufFile, sums: TensorInfo, counts: TensorInfo) -> Entry:
    for tensor in (sums, counts):
        if tensor.type is not TensorType.F32:
            raise corrupt(
                file.path, f"tensor {quoted(tensor.name)} type", f"{tensor.type.name}, must be F32"
            )
    matrices = sums.elements // sums.shape[0]
    if counts.elements != matrices:
        raise corrupt(
            file.path,
            f"tensor {quoted(counts.name)} shape",
            f"{counts.elements:,} counts for {matrices:,} matrices",
        )
    return Entry(
        columns=sums.shape[0],
        matrices=matrices,
        sums_at=file.data_offset + sums.offset,
        counts_at=file.data_offset + counts.offset,
    )


def _read_legacy(stream: BinaryIO, path: Path) -> ImportanceMatrix:
    """The older format: a count, then the name, calls and values of each entry; then, in most
    files, the number of chunks and the name of the text.
    """
    size = os.fstat(stream.fileno()).st_size
    count = _integer(stream, path, "entry count")
    if not 1 <= count <= MAX_ENTRIES:
        raise corrupt(
            path,
            "entry count",
            f"{count:,}, must be from 1 to {MAX_ENTRIES:,}",
            "This may be no importance matrix: pass the file that llama-imatrix wrote.",
        )
    entries: dict[str, Entry] = {}
    for index in range(count):
        place = f"entry {index} of {count}"
        name = _text(stream, path, f"{place} name", MAX_TENSOR_NAME_BYTES)
        if not name or name in entries:
            raise corrupt(path, f"{place} name", f"{quoted(name)} is empty or appears twice")
        calls = _integer(stream, path, f"{place} calls")
        values = _integer(stream, path, f"{place} values")
        start = stream.tell()
        if calls < 0 or not 1 <= values <= (size - start) // _FLOAT_BYTES:
            raise corrupt(
                path,
                f"entry {quoted(name)}",
                f"{calls:,} calls and {values:,} values, but {size - start:,} bytes are left",
            )
        entries[name] = Entry(values, 1, start, 0, calls)
        stream.seek(start + values * _FLOAT_BYTES)
    chunks, dataset = 0, ""
    if stream.tell() < size:
        chunks = _integer(stream, path, "chunk count")
        dataset = _text(stream, path, "dataset name", _MAX_DATASET_BYTES)
    if stream.tell() != size:
        raise corrupt(path, "end", f"{size - stream.tell():,} bytes follow the last field")
    return ImportanceMatrix(path, entries, dataset, max(0, chunks))


def _integer(stream: BinaryIO, path: Path, name: str) -> int:
    data = stream.read(_I32.size)
    if len(data) < _I32.size:
        raise corrupt(path, name, "the file ends before it")
    value: Any = _I32.unpack(data)[0]
    return int(value)


def _text(stream: BinaryIO, path: Path, name: str, longest: int) -> str:
    length = _integer(stream, path, f"{name} length")
    if not 0 <= length <= longest:
        raise corrupt(path, f"{name} length", f"{length:,}, must be from 0 to {longest:,}")
    data = stream.read(length)
    if len(data) < length:
        raise corrupt(path, name, "the file ends inside it")
    return data.decode("utf-8", "replace")
