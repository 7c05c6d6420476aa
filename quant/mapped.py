"""A file's bytes as tensors, mapped and not copied."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path

import torch
from torch import Tensor

from hearth.quant.errors import CorruptFile


class MappedFile:
    """The bytes of `path`, read-only: to write to a tensor of it ends the process.

    Nothing is read before it is used. The map lives as long as a tensor of it does.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        """
        Args:
            size_bytes: how many bytes its header was checked against.

        Raises:
            CorruptFile: the file has another size by now.
            OSError: it cannot be opened or mapped.
        """
        with path.open("rb") as stream:
            found = stream.seek(0, 2)
            if found != size_bytes:
                raise CorruptFile(
                    f"{path.name} had {size_bytes:,} bytes and has {found:,} now.",
                    "Try again once nobody writes to it.",
                    field="file",
                    path=str(path),
                )
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            # That it cannot be written to is what is wanted.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def tensor(self, start: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """`nbytes` from byte `start` on, as a tensor over the map; a copy where that would begin
        at an address that the processor does not read such numbers from.
        """
        part = self._bytes[start : start + nbytes]
        if start % dtype.itemsize:
            part = part.clone()
        return part.view(dtype).view(shape)

    def prefetch(self, start: int, nbytes: int) -> None:
        """Let the system begin to read these bytes."""
        self._advise("MADV_WILLNEED", start, nbytes)

    def release(self, start: int, nbytes: int) -> None:
        """These bytes are not needed any more: they may leave this process's memory. They are read
        again should they be needed after all.
        """
        self._advise("MADV_DONTNEED", start, nbytes)

    def _advise(self, advice: str, start: int, nbytes: int) -> None:
        number = getattr(mmap, advice, None)
        if number is None or not nbytes:
            return
        first = start - start % mmap.PAGESIZE
        self._map.madvise(number, first, start + nbytes - first)
