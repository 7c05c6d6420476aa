"""Tensors over the bytes of a memory-mapped file, without copying."""

from __future__ import annotations

import mmap
import warnings
from pathlib import Path

import torch
from torch import Tensor

from hearth.quant.errors import CorruptFile


class MappedFile:
    """The bytes of `path`, read-only: writing to one of its tensors crashes the process.

    Bytes are read when they are first used. The map lives as long as any tensor over it.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        """
        Args:
            size_bytes: the file size when its header was checked.

        Raises:
            CorruptFile: the size of the file has changed.
            OSError: the file cannot be opened or mapped.
        """
        with path.open("rb") as stream:
            size_now = stream.seek(0, 2)
            if size_now != size_bytes:
                raise CorruptFile(
                    f"{path.name} had {size_bytes:,} bytes and has {size_now:,} now.",
                    "Try again once nobody writes to it.",
                    field="file",
                    path=str(path),
                )
            self._map = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            # The buffer is read-only on purpose.
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    def tensor(self, start: int, nbytes: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """`nbytes` from byte `start` on, as a tensor over the map; a copy if `start` is not aligned
        to the dtype.
        """
        part = self._bytes[start : start + nbytes]
        if start % dtype.itemsize:
            part = part.clone()
        return part.view(dtype).view(shape)

    def prefetch(self, start: int, nbytes: int) -> None:
        """Ask the system to start reading these bytes."""
        self._advise("MADV_WILLNEED", start, nbytes)

    def release(self, start: int, nbytes: int) -> None:
        """Allow these bytes to leave this process's memory. They are read from the file again if
        they are used later.
        """
        self._advise("MADV_DONTNEED", start, nbytes)

    def _advise(self, advice: str, start: int, nbytes: int) -> None:
        number = getattr(mmap, advice, None)
        if number is None or not nbytes:
            return
        first = start - start % mmap.PAGESIZE
        self._map.madvise(number, first, start + nbytes - first)
