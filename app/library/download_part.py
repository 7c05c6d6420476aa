"""A file that is not complete yet, and the journal of what of it is there.

The journal has a line for the file and one for each range whose bytes are on the disk for sure: the
bytes are synced before the line is written, and the line is synced before anything counts on it. A
line has its own checksum: one that a power cut left incomplete does not count, nor do those after
it. Only the process that holds the content's lock may open it.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from hearth.app.library.cache_layout import sync_folder
from hearth.app.library.download_ranges import Range, Ranges
from hearth.app.library.errors import DiskFull

log = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_READ_BYTES: Final = 8 << 20
T = TypeVar("T")
FreeBytes = Callable[[Path], int]


class PartFile:
    """The bytes of one file as they arrive, in any order.

    Args:
        path, journal: where they are; the folder exists. A journal of another file or of another
            size does not count, and the part starts again.
        name: of the file, for errors.
        etag, size_bytes: which content it will be.
        sync_bytes: maximum number of bytes that wait to be synced, and of those being synced.
        reserve_bytes: of the disk that is never used up.
        free_bytes: returns the free bytes of a folder's disk.
    """

    def __init__(
        self,
        path: Path,
        journal: Path,
        *,
        name: str,
        etag: str,
        size_bytes: int,
        sync_bytes: int,
        reserve_bytes: int,
        free_bytes: FreeBytes,
    ) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._journal_path = journal
        self._name = name
        self._title = f"{etag} {size_bytes}"
        self._sync_bytes = sync_bytes
        self._reserve_bytes = reserve_bytes
        self._free_bytes = free_bytes
        self._syncing = asyncio.Lock()
        self._grown = asyncio.Event()
        self._unsynced = Ranges()
        self.there = kept_ranges(path, journal, self._title, size_bytes)
        fresh = not self.there
        self._file = path.open("w+b" if fresh else "r+b", buffering=0)
        self._journal = journal.open("wb" if fresh else "ab", buffering=0)
        if fresh:
            with self._disk():
                self._file.truncate(size_bytes)
                self._log([self._title])
                sync_folder(path.parent)
        else:
            self._end_last_line()

    async def write(self, start: int, data: bytes) -> None:
        """Put `data` at `start`. Raises `DiskFull`; what was synced before stays."""
        with self._disk():
            self._file.seek(start)
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._unsynced.add(start, start + len(data))
        self.there.add(start, start + len(data))
        self._grown.set()
        if self._unsynced.total >= self._sync_bytes:
            await self.sync()

    async def sync(self) -> None:
        """From now on what was written outlasts a crash. Raises `DiskFull`."""
        async with self._syncing:
            if not self._unsynced:
                return
            batch, self._unsynced = self._unsynced, Ranges()
            with self._disk():
                await _in_thread(self._sync, list(batch))
            self._watch_disk()

    async def digest(self, sha256: bool) -> str:
        """The checksum of the whole file, hexadecimal; computed from what is on the disk while it
        arrives.

        Args:
            sha256: SHA-256; else git's SHA-1 of the content as a blob.
        """
        hasher = hashlib.sha256() if sha256 else git_blob_hash(self.size_bytes)
        position = 0
        with self.path.open("rb", buffering=0) as file:
            while position < self.size_bytes:
                while self.there.prefix <= position:
                    self._grown.clear()
                    await self._grown.wait()
                wanted = min(self.there.prefix - position, _READ_BYTES)
                data = await _in_thread(file.read, wanted)
                await _in_thread(hasher.update, data)
                position += len(data)
        return hasher.hexdigest()

    async def close(self) -> None:
        """Sync what can be synced, and close; what is there can be opened again."""
        try:
            await self.sync()
        except DiskFull as error:
            log.warning("what arrived last of %s is lost: %s", self._name, error.message)
        finally:
            self._file.close()
            self._journal.close()

    def discard(self) -> None:
        """Close, and remove it."""
        self._unsynced = Ranges()
        self._file.close()
        self._journal.close()
        remove_part(self.path, self._journal_path)

    def _sync(self, batch: list[Range]) -> None:
        os.fsync(self._file.fileno())
        self._log([f"{start} {end}" for start, end in batch])

    def _log(self, lines: list[str]) -> None:
        data = "".join(f"{line} {zlib.crc32(line.encode()):08x}\n" for line in lines).encode()
        if self._journal.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(self._journal.fileno())

    def _end_last_line(self) -> None:
        """End an incomplete last line, so that it does not spoil the next one."""
        if not self._journal_path.read_bytes().endswith(b"\n"):
            with self._disk():
                self._journal.write(b"\n")

    def _watch_disk(self) -> None:
        free = self._free_bytes(self.path.parent)
        if free < self._reserve_bytes and self.there.total < self.size_bytes:
            raise disk_full(self._name, self.size_bytes - self.there.total, free, self.path.parent)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Inside, a system's "no space left" is `DiskFull`."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            missing = self.size_bytes - self.there.total
            free = self._free_bytes(self.path.parent)
            raise disk_full(self._name, missing, free, self.path.parent) from error


async def _in_thread(work: Callable[..., T], *arguments: object) -> T:
    """What `work` returns, from another thread. Cancelled, this still waits for the thread's end:
    the file that it uses must not be closed under it.
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
        f"The disk is full: {name} needs {_in_gb(missing_bytes)} more, and {folder} has "
        f"{_in_gb(free_bytes)} free.",
        "Make room (`hearth rm` removes models), then resume: what was downloaded is kept.",
        needed_bytes=missing_bytes,
        free_bytes=free_bytes,
    )


def _in_gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.1f} MB"


def kept_ranges(path: Path, journal: Path, title: str, size_bytes: int) -> Ranges:
    """What of a part is there for sure; nothing if it is about something else.

    Args:
        title: the first line that the journal must have.
    """
    try:
        lines = journal.read_bytes().split(b"\n")
        if path.stat().st_size != size_bytes:
            return Ranges()
    except FileNotFoundError:
        return Ranges()
    ranges = Ranges()
    for number, line in enumerate(lines):
        text, _, check = line.decode("ascii", "replace").rpartition(" ")
        if not text or check != f"{zlib.crc32(text.encode()):08x}":
            if number == 0:
                return Ranges()
            continue
        if number == 0:
            if text != title:
                return Ranges()
            continue
        start, _, end = text.partition(" ")
        ranges.add(int(start), min(int(end), size_bytes))
    return ranges


def git_blob_hash(size_bytes: int) -> hashlib._Hash:
    """Git's SHA-1 of a blob of `size_bytes`, before its first byte."""
    return hashlib.sha1(b"blob %d\0" % size_bytes, usedforsecurity=False)


def remove_part(path: Path, journal: Path) -> None:
    """Remove a part; the journal goes first, so that it never describes another file's bytes."""
    journal.unlink(missing_ok=True)
    path.unlink(missing_ok=True)
