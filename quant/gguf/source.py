"""What a GGUF file is made of: another one, or something that is read as if it were one."""

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
    """One of the files that a source consists of."""

    path: Path
    size_bytes: int


class WeightReader(Protocol):
    """Reads the weights of an open source."""

    def rows(self, name: str, first: int, count: int) -> Bytes:
        """`count` rows of the tensor `name` from row `first` on, in the type that the source's
        header gives it; they do not go from one expert to the next.

        Raises:
            CorruptFile: the source is not any more what its header says.
        """
        ...

    def done(self, name: str) -> None:
        """Nothing of the tensor `name` will be read any more."""
        ...


class WeightSource(Protocol):
    """Weights with a header."""

    @property
    def header(self) -> GgufFile:
        """Of the source, or that it would have as a GGUF file of the numbers that are stored.
        `path` is that of the source.
        """
        ...

    @property
    def converts(self) -> bool:
        """The source is no GGUF file: even where no tensor changes, there is something to make."""
        ...

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """Everything that is read."""
        ...

    def home(self, name: str) -> Path:
        """The file that holds the tensor `name`, or the first part of it."""
        ...

    def pairs(self) -> Mapping[str, bytes]:
        """The metadata, as `writer.metadata_bytes` gives it."""
        ...

    def open(self) -> AbstractContextManager[WeightReader]:
        """Open every file. Raises `OSError`, and `CorruptFile` for one that changed."""
        ...


class GgufSource:
    """A GGUF file, with its further parts."""

    converts = False

    def __init__(self, header: GgufFile) -> None:
        """`header`: as `preflight.check` gives it."""
        self.header = header
        self._parts = (header, *header.shards)
        self._homes = {tensor.name: part for part in self._parts for tensor in part.tensors}

    @property
    def files(self) -> tuple[SourceFile, ...]:
        return tuple(SourceFile(part.path, part.size_bytes) for part in self._parts)

    def home(self, name: str) -> Path:
        return self._homes[name].path

    def pairs(self) -> Mapping[str, bytes]:
        """Those of the first part. Raises `CorruptFile` or `OSError` where it changed."""
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
        found = self._stretches[name]
        data = bytearray(count * found.row_bytes)
        view, filled = memoryview(data), 0
        found.stream.seek(found.start + first * found.row_bytes)
        while filled < len(data):
            got = found.stream.readinto(view[filled:])
            if not got:
                raise CorruptFile(
                    f"{found.path.name} became shorter while it was read.",
                    field=f"tensor {name}",
                    path=str(found.path),
                )
            filled += got
        return data

    def done(self, name: str) -> None:
        """Nothing is kept."""
