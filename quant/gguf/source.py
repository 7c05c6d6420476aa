"""Sources that a GGUF file is made from: another GGUF file, or something that is read like one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.writer import metadata_bytes

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source."""

    path: Path
    size_bytes: int


class WeightReader(Protocol):
    """Reads the weights of an open source."""

    def rows(self, name: str, first: int, count: int) -> Bytes:
        """`count` rows of the tensor `name` from row `first` on, in the type given by the source's
        header; they must not span two experts.

        Raises:
            CorruptFile: the source no longer matches its header.
        """
        ...

    def done(self, name: str) -> None:
        """Release the tensor `name`, which will not be read again."""
        ...


class WeightSource(Protocol):
    """Weights with a header."""

    @property
    def header(self) -> GgufFile:
        """The header of the source, or the one it would have as a GGUF file with the stored number
        types. Its `path` is that of the source.
        """
        ...

    @property
    def converts(self) -> bool:
        """Whether the source is not a GGUF file, so that a new file is made even if no tensor
        changes.
        """
        ...

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All files that are read."""
        ...

    def home(self, name: str) -> Path:
        """The file that holds the tensor `name`, or its first part."""
        ...

    def pairs(self) -> Mapping[str, bytes]:
        """The metadata in the form that `writer.metadata_bytes` returns."""
        ...

    def open(self) -> AbstractContextManager[WeightReader]:
        """Open all files. Raises `OSError`, and `CorruptFile` if a file changed."""
        ...


class GgufSource:
    """A GGUF file with its other shards."""

    converts = False

    def __init__(self, header: GgufFile) -> None:
        """`header`: the result of `preflight.check`."""
        self.header = header
        self._parts = (header, *header.shards)
        self._homes = {tensor.name: part for part in self._parts for tensor in part.tensors}

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple(SourceFile(part.path, part.size_bytes) for part in self._parts)

    def home(self, name: str) -> Path:
        return self._homes[name].path

    def pairs(self) -> Mapping[str, bytes]:
        """The metadata of the first file. Raises `CorruptFile` or `OSError` if it changed."""
        return metadata_bytes(self.header.path)

    @contextmanager
    def open(self) -> Iterator[WeightReader]:
        with ExitStack() as leaving:
            streams = {
                part.path: leaving.enter_context(part.path.open("rb", buffering=0))
                for part in self._parts
            }
            yield _GgufReader(self._parts, streams)


@dataclass(frozen=True, slots=True)
class _Stretch:
    stream: FileIO
    path: Path
    start: int
    row_bytes: int


class _GgufReader:
    def __init__(self, parts: tuple[GgufFile, ...], streams: Mapping[Path, FileIO]) -> None:
        self._stretches = {
            tensor.name: _Stretch(
                streams[part.path],
                part.path,
                part.data_offset + tensor.offset,
                tensor.nbytes * tensor.shape[0] // tensor.elements,
            )
            for part in parts
            for tensor in part.tensors
        }

    def rows(self, name: str, first: int, count: int) -> Bytes:
        stretch = self._stretches[name]
        data = bytearray(count * stretch.row_bytes)
        view, filled = memoryview(data), 0
        stretch.stream.seek(stretch.start + first * stretch.row_bytes)
        while filled < len(data):
            got = stretch.stream.readinto(view[filled:])
            if not got:
                raise CorruptFile(
                    f"{stretch.path.name} became shorter while it was read.",
                    field=f"tensor {name}",
                    path=str(stretch.path),
                )
            filled += got
        return data

    def done(self, name: str) -> None:
        """Does nothing: no data is kept."""
