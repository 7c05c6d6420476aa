"""An incomplete file, and the journal of the ranges of it that are on the disk.

The journal has a line for the file and one for each range whose bytes are certainly on the disk:
the bytes are synced before the line is written, and the line is synced before anything relies on
it. Each line has a checksum, so that a line left incomplete by a power cut is ignored. Only the
process that holds the content's lock may open the file.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from hearth.app.format import size
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.errors import DiskFull
from hearth.app.library.hub import RepositoryFile
from hearth.quant.gguf.quantize_file import sync_folder

log = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_READ_BYTES: Final = 8 << 20
T = TypeVar("T")
FreeBytes = Callable[[Path], int]
Range = tuple[int, int]
"""(first byte, byte after the last)."""


class Ranges:
    """A set of bytes, stored as ordered ranges that neither touch nor overlap."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(tuple(self._ranges))

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def total(self) -> int:
        """Number of bytes in the set."""
        return sum(end - start for start, end in self._ranges)

    @property
    def prefix(self) -> int:
        """Number of bytes from the file's beginning to the first gap."""
        return self._ranges[0][1] if self._ranges and self._ranges[0][0] == 0 else 0

    def add(self, start: int, end: int) -> None:
        """Add the bytes from `start` to before `end`; none if these are equal."""
        if start >= end:
            return
        first = bisect_left(self._ranges, start, key=itemgetter(1))
        last = bisect_right(self._ranges, end, key=itemgetter(0))
        joined = [*self._ranges[first:last], (start, end)]
        self._ranges[first:last] = [(min(joined)[0], max(end for _, end in joined))]

    def missing(self, size_bytes: int) -> list[Range]:
        """The ranges that a file of `size_bytes` lacks, in order."""
        edges = [min(edge, size_bytes) for edge in (0, *chain(*self._ranges), size_bytes)]
        gaps = zip(edges[::2], edges[1::2], strict=True)
        return [(start, end) for start, end in gaps if start < end]


def pieces(ranges: Iterable[Range], most_bytes: int) -> list[Range]:
    """`ranges`, split so that none is longer than `most_bytes`."""
    return [
        (cut, min(cut + most_bytes, end))
        for start, end in ranges
        for cut in range(start, end, most_bytes)
    ]


class PartFile:
    """The bytes of `file` as they arrive, in any order; the folder must exist.

    A journal of another file or of another size is ignored, and the part starts again.

    Args:
        sync_bytes: maximum number of bytes that wait to be synced, and of those being synced.
        reserve_bytes: disk space that always stays free.
        free_bytes: returns the free bytes of a folder's disk.
    """

    def __init__(
        self,
        place: RepositoryCache,
        file: RepositoryFile,
        *,
        sync_bytes: int,
        reserve_bytes: int,
        free_bytes: FreeBytes,
    ) -> None:
        self.path = place.part(file.etag)
        self.file = file
        self.there = kept_ranges(place, file)
        self._place = place
        self._sync_bytes = sync_bytes
        self._reserve_bytes = reserve_bytes
        self._free_bytes = free_bytes
        self._syncing = asyncio.Lock()
        self._grown = asyncio.Event()
        self._unsynced = Ranges()
        journal = place.journal(file.etag)
        self._bytes = self.path.open("r+b" if self.there else "w+b", buffering=0)
        self._journal = journal.open("ab" if self.there else "wb", buffering=0)
        with self._disk():
            if not self.there:
                self._bytes.truncate(file.size_bytes)
                self._log([_title(file)])
                sync_folder(self.path.parent)
            elif not journal.read_bytes().endswith(b"\n"):
                self._journal.write(b"\n")  # An incomplete last line must not spoil the next one.

    async def write(self, start: int, data: bytes) -> None:
        """Write `data` at `start`. Raises `DiskFull`; bytes that were synced before are kept."""
        with self._disk():
            self._bytes.seek(start)
            rest = memoryview(data)
            while rest:
                rest = rest[self._bytes.write(rest) :]
        self._unsynced.add(start, start + len(data))
        self.there.add(start, start + len(data))
        self._grown.set()
        if self._unsynced.total >= self._sync_bytes:
            await self.sync()

    async def sync(self) -> None:
        """Make everything written so far outlast a crash. Raises `DiskFull`."""
        async with self._syncing:
            if not self._unsynced:
                return
            batch, self._unsynced = self._unsynced, Ranges()
            with self._disk():
                await _in_thread(self._sync, batch)
            is_complete = self.there.total >= self.file.size_bytes
            if not is_complete and self._free_bytes(self.path.parent) < self._reserve_bytes:
                raise self._full()

    async def digest(self) -> str:
        """The checksum of the whole file, in hexadecimal, computed from the disk while it arrives.

        It is SHA-256 for a file in LFS, else git's SHA-1 of the content as a blob.
        """
        size_bytes = self.file.size_bytes
        hasher = hashlib.sha256()
        if self.file.sha256 is None:
            hasher = hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)
        position = 0
        with self.path.open("rb", buffering=0) as file:
            while position < size_bytes:
                while self.there.prefix <= position:
                    self._grown.clear()
                    await self._grown.wait()
                wanted = min(self.there.prefix - position, _READ_BYTES)
                data = await _in_thread(file.read, wanted)
                await _in_thread(hasher.update, data)
                position += len(data)
        return hasher.hexdigest()

    async def close(self) -> None:
        """Sync if possible, and close; the part can be opened again."""
        try:
            await self.sync()
        except DiskFull as error:
            log.warning("what arrived last of %s is lost: %s", self.file.path, error.message)
        finally:
            self._bytes.close()
            self._journal.close()

    def discard(self) -> None:
        """Close the part and remove it."""
        self._unsynced = Ranges()
        self._bytes.close()
        self._journal.close()
        remove_part(self._place, self.file)

    def _sync(self, batch: Ranges) -> None:
        os.fsync(self._bytes.fileno())
        self._log([b"%d %d" % span for span in batch])

    def _log(self, lines: list[bytes]) -> None:
        data = b"".join(_checked(line) + b"\n" for line in lines)
        if self._journal.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._journal.fileno())

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Raise `DiskFull` for the system's "no space left" within the block."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise self._full() from error

    def _full(self) -> DiskFull:
        missing_bytes = self.file.size_bytes - self.there.total
        folder = self.path.parent
        return disk_full(self.file.path, missing_bytes, self._free_bytes(folder), folder)


async def _in_thread(work: Callable[..., T], *arguments: object) -> T:
    """The result of `work`, run in another thread.

    If cancelled, this still waits for the end of `work`, because the file that it uses must not be
    closed before.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def disk_full(name: str, missing_bytes: int, free_bytes: int, folder: Path) -> DiskFull:
    """The error for `name`, which needs `missing_bytes` more in `folder`."""
    return DiskFull(
        f"The disk is full: {name} needs {size(missing_bytes)} more, and {folder} has "
        f"{size(free_bytes)} free.",
        "Make room (`hearth rm` removes models), then resume: what was downloaded is kept.",
        needed_bytes=missing_bytes,
        free_bytes=free_bytes,
    )


def kept_ranges(place: RepositoryCache, file: RepositoryFile) -> Ranges:
    """The ranges of the part of `file` that are certainly on the disk.

    Empty if the journal is that of another file.
    """
    try:
        lines = place.journal(file.etag).read_bytes().split(b"\n")
        is_of_size = place.part(file.etag).stat().st_size == file.size_bytes
    except FileNotFoundError:
        return Ranges()
    texts = [text for line in lines if _checked(text := line.rpartition(b" ")[0]) == line and text]
    if not is_of_size or texts[:1] != [_title(file)]:
        return Ranges()
    spans = (map(int, text.split()) for text in texts[1:])
    return Ranges((start, min(end, file.size_bytes)) for start, end in spans)


def _title(file: RepositoryFile) -> bytes:
    """The required first line of the journal."""
    return f"{file.etag} {file.size_bytes}".encode()


def _checked(text: bytes) -> bytes:
    """A line of the journal: `text` and its checksum."""
    return b"%s %08x" % (text, zlib.crc32(text))


def remove_part(place: RepositoryCache, file: RepositoryFile) -> None:
    """Remove a part, its journal first, so that this never describes another file's bytes."""
    place.journal(file.etag).unlink(missing_ok=True)
    place.part(file.etag).unlink(missing_ok=True)
