"""Downloads the files of one commit into the shared cache.

Several ranges are downloaded at once, each byte is written to the disk only once, and a download
resumes where it stopped, however it ended. A content gets its name in the cache only after the
checksum of the bytes on the disk has been verified.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.download_part import (
    FreeBytes,
    PartFile,
    disk_full,
    kept_ranges,
    pieces,
    remove_part,
)
from hearth.app.library.download_source import BrokenOff, Changed, FileSource, NoRanges
from hearth.app.library.errors import DownloadCorrupt, HubUnreachable, RepositoryChanged
from hearth.app.library.hub import Download, RepositoryFile
from hearth.app.machine import free_disk_bytes
from hearth.app.tasks import all_of
from hearth.backends.machine.lock import LockFile
from hearth.quant.gguf.quantize_file import sync_folder

_LOCK_POLL_S: Final = 0.5
_MOST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a download.

    Attributes:
        connections: number of simultaneous connections.
        range_bytes: maximum number of bytes that one request asks for.
        sync_bytes: the file is synced after this many bytes; a crash loses at most twice as many,
            and the buffers of the connections.
        reserve_bytes: disk space that always stays free.
        stall_s: time without data after which a connection counts as broken.
        tries: number of tries in a row without data after which the download fails.
        backoff_s: the first wait between tries.
    """

    connections: int = 4
    range_bytes: int = 64 << 20
    sync_bytes: int = 8_000_000
    reserve_bytes: int = 64_000_000
    stall_s: float = 30.0
    tries: int = 6
    backoff_s: float = 1.0


class Downloader:
    """One run of one download.

    Args:
        cache: the shared cache's folder.
        endpoint: the Hub's address.
        on_progress: called with JSON values: `state` (downloading, waiting, checking), `file`,
            `done_bytes`, `total_bytes`.
        free_bytes: returns the free bytes of a folder's disk.
    """

    def __init__(
        self,
        download: Download,
        cache: Path,
        endpoint: str,
        on_progress: Callable[..., None],
        limits: Limits | None = None,
        free_bytes: FreeBytes = free_disk_bytes,
    ) -> None:
        self._download = download
        self._place = RepositoryCache(cache, download.repo_id)
        self._on_progress = on_progress
        self._limits = limits or Limits()
        self._free_bytes = free_bytes
        self._done_bytes = 0
        self._source = FileSource(
            endpoint, download.repo_id, download.commit, stall_s=self._limits.stall_s
        )

    async def run(self) -> Path:
        """Download the missing files; returns the folder of the commit's files.

        If it is cancelled or fails with `DiskFull` or `HubUnreachable`, the bytes that arrived are
        kept.

        Raises:
            DiskFull: before the first byte, or while writing.
            HubUnreachable: the connection broke off too often.
            DownloadCorrupt, RepositoryChanged: the content is wrong, also when fetched again.
            GatedRepository, RepositoryNotFound, HubRefused, OfflineError: the Hub does not deliver
                the files.
            UnsafeName: a name in the repository would lead out of the cache.
        """
        commit = self._download.commit
        lacking = [file for file in self._download.files if not self._is_there(file)]
        self._done_bytes = self._download.size_bytes - sum(file.size_bytes for file in lacking)
        (self._place.folder / "blobs").mkdir(parents=True, exist_ok=True)
        self._require_room(lacking)
        async with self._source:
            for file in lacking:
                await self._take(file)
        for file in self._download.files:
            if not self._place.is_there(commit, file.path):
                self._place.place(commit, file.path, file.etag)
        discard_parts(self._download, self._place.cache)  # Left behind by a crash at the end.
        self._place.set_revision(self._download.revision, commit)
        return self._place.snapshot(commit)

    def _is_there(self, file: RepositoryFile) -> bool:
        """Whether the content of `file` is complete, for this commit or for another."""
        there = self._place.is_there(self._download.commit, file.path)
        return there or self._place.blob(file.etag).exists()

    def _require_room(self, lacking: Sequence[RepositoryFile]) -> None:
        """Raises `DiskFull` if not all of `lacking` fits."""
        missing = sum(
            file.size_bytes - kept_ranges(self._place, file).total
            for file in {file.etag: file for file in lacking}.values()
        )
        free = self._free_bytes(self._place.folder)
        if missing and missing + self._limits.reserve_bytes > free:
            raise disk_full(self._download.repo_id, missing, free, self._place.folder)

    async def _take(self, file: RepositoryFile) -> None:
        """Fetch `file` unless another process has done so meanwhile, and give it its name."""
        path = self._place.lock(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = LockFile(path)
        while not lock.acquire():
            self._report("waiting", file, 0)
            await asyncio.sleep(_LOCK_POLL_S)
        try:
            if not self._is_there(file):
                await self._fetch(file)
            remove_part(self._place, file)
            self._place.place(self._download.commit, file.path, file.etag)
        finally:
            lock.release()
        self._done_bytes += file.size_bytes

    async def _fetch(self, file: RepositoryFile) -> None:
        """Fetch and verify the content of `file`, and store it as its blob.

        Wrong content is fetched once more.
        """
        wrong: list[str] = []
        while True:
            part = PartFile(
                self._place,
                file,
                sync_bytes=self._limits.sync_bytes,
                reserve_bytes=self._limits.reserve_bytes,
                free_bytes=self._free_bytes,
            )
            try:
                digest = await self._fill(part)
                if digest == file.etag:
                    break
                part.discard()
                wrong.append(digest)
            except Changed as error:
                part.discard()
                if wrong:
                    raise RepositoryChanged(
                        f"The Hub's {file.path} of {self._download.repo_id} is not what its list "
                        f"says: {error}.",
                        "Look the repository up again and restart the download.",
                    ) from error
                wrong.append(str(error))
                continue
            finally:
                await part.close()
            if len(wrong) > 1:
                raise DownloadCorrupt(
                    f"{file.path} of {self._download.repo_id} arrived with a wrong checksum, "
                    f"twice: {digest[:12]}…, not {file.etag[:12]}…. It was thrown away.",
                    "Try again later, or over another connection; a proxy may change what it "
                    "passes on.",
                    expected=file.etag,
                    got=wrong,
                )
        blob = self._place.blob(file.etag)
        os.replace(part.path, blob)
        sync_folder(blob.parent)

    async def _fill(self, part: PartFile) -> str:
        """Fetch the missing ranges of `part`; returns the checksum of the whole file.

        Several ranges are fetched at once. If the server sends only whole files, the file is
        fetched from its beginning over one connection.
        """
        size_bytes = part.file.size_bytes
        self._report("downloading", part.file, part.there.total)
        ranges = pieces(part.there.missing(size_bytes), self._limits.range_bytes)
        checking = asyncio.create_task(part.digest())
        try:
            try:
                await all_of(
                    lambda span: self._receive(part, *span), ranges, self._limits.connections
                )
            except NoRanges:
                await self._receive(part, 0, size_bytes, whole=True)
            await part.sync()
            self._report("checking", part.file, part.there.total)
            return await checking
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)

    async def _receive(self, part: PartFile, start: int, end: int, *, whole: bool = False) -> None:
        """Fetch the bytes from `start` to before `end`, over as many connections as necessary.

        Args:
            whole: whether the next connection must start again at `start` after one broke off.
        """
        position, tries = start, 0
        while position < end:
            try:
                async with aclosing(self._source.stream(part.file, position, end)) as stream:
                    async for data in stream:
                        await part.write(position, data)
                        position += len(data)
                        tries = tries if whole else 0
                        self._report("downloading", part.file, part.there.total)
            except BrokenOff as error:
                tries += 1
                position = start if whole else position
                if tries >= self._limits.tries:
                    raise HubUnreachable(
                        f"{part.file.path} broke off {tries} times in a row: {error}.",
                        "Check the connection and resume: what was downloaded is kept.",
                        endpoint=self._source.endpoint,
                    ) from error
                pause_s = min(self._limits.backoff_s * 2 ** (tries - 1), _MOST_PAUSE_S)
                await asyncio.sleep(max(error.retry_after_s, pause_s))

    def _report(self, state: str, file: RepositoryFile, there_bytes: int) -> None:
        self._on_progress(
            state=state,
            file=file.path,
            done_bytes=self._done_bytes + there_bytes,
            total_bytes=self._download.size_bytes,
        )


def discard_parts(download: Download, cache: Path) -> None:
    """Remove incomplete contents of `download`, unless they are being downloaded."""
    if download.repo_id.startswith("pypi.org/"):
        from hearth.app.library.package_model import SMOLLM2
        from hearth.app.paths import find_paths

        SMOLLM2.part(find_paths().models).unlink(missing_ok=True)
        return
    place = RepositoryCache(cache, download.repo_id)
    for file in download.files:
        if not place.part(file.etag).exists() and not place.journal(file.etag).exists():
            continue
        path = place.lock(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = LockFile(path)
        if lock.acquire():
            try:
                remove_part(place, file)
            finally:
                lock.release()
