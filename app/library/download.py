"""Downloads files of one commit into the shared cache: several ranges at once, each byte on its way
to the disk once, resumed where it was left however it ended.

A content gets its name in the cache when the checksum of what is on the disk is right, not before.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from hearth.app.library.cache_layout import RepositoryCache, sync_folder
from hearth.app.library.download_part import (
    FreeBytes,
    PartFile,
    disk_full,
    kept_ranges,
    remove_part,
)
from hearth.app.library.download_ranges import Range, pieces
from hearth.app.library.download_source import (
    BrokenOff,
    Changed,
    FileSource,
    NoRanges,
    changed,
    pause_before_retry,
    unreachable,
)
from hearth.app.library.errors import DownloadCorrupt
from hearth.app.library.hub import RepositoryFile
from hearth.backends.lock import LockFile

Values = dict[str, Any]
_LOCK_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Download:
    """Which files of which commit.

    Attributes:
        revision: what `commit` was asked for by; remembered in the cache.
    """

    repo_id: str
    revision: str
    commit: str
    files: tuple[RepositoryFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> Values:
        """As JSON values, for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Values) -> Download:
        """What `to_json` made."""
        files = tuple(RepositoryFile(**file) for file in values["files"])
        return cls(values["repo_id"], values["revision"], values["commit"], files)


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard a download tries.

    Attributes:
        connections: at once.
        range_bytes: that one request asks for.
        sync_bytes: after this many bytes the file is synced; a crash loses at most twice that and
            the buffers of the connections.
        reserve_bytes: of the disk that is never used up.
        stall_s: without data, after which a connection counts as broken.
        tries: in a row that may bring nothing.
        backoff_s: the first wait between tries.
    """

    connections: int = 4
    range_bytes: int = 64 << 20
    sync_bytes: int = 8_000_000
    reserve_bytes: int = 64_000_000
    stall_s: float = 30.0
    tries: int = 6
    backoff_s: float = 1.0


class Watcher(Protocol):
    """Receives the progress."""

    def progress(self, **values: Any) -> None:
        """JSON values: `state` (downloading, waiting, checking), `file`, `done_bytes`,
        `total_bytes`.
        """


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of `folder`, for this user."""
    return shutil.disk_usage(folder).free


class Downloader:
    """One run of one download.

    Args:
        cache: the shared cache's folder.
        endpoint: the Hub's address.
        watcher: receives the progress.
        free_bytes: returns the free bytes of a folder's disk.
    """

    def __init__(
        self,
        download: Download,
        cache: Path,
        endpoint: str,
        watcher: Watcher,
        limits: Limits | None = None,
        free_bytes: FreeBytes = free_bytes,
    ) -> None:
        self._download = download
        self._place = RepositoryCache(cache, download.repo_id)
        self._endpoint = endpoint
        self._watcher = watcher
        self._limits = limits or Limits()
        self._free_bytes = free_bytes
        self._done_bytes = 0

    async def run(self) -> Path:
        """Download what is missing; returns the folder of the commit's files.

        Cancelling it keeps what arrived.

        Raises:
            DiskFull: before the first byte, or while writing; what arrived is kept.
            HubUnreachable: it broke off too often; what arrived is kept.
            DownloadCorrupt, RepositoryChanged: it is wrong, also when fetched again.
            GatedRepository, RepositoryNotFound, HubRefused, OfflineError: the Hub will not.
            UnsafeName: a name in the repository would lead out of the cache.
        """
        commit = self._download.commit
        lacking = [file for file in self._download.files if not self._is_there(file)]
        self._done_bytes = self._download.size_bytes - sum(file.size_bytes for file in lacking)
        (self._place.folder / "blobs").mkdir(parents=True, exist_ok=True)
        self._require_room(lacking)
        async with FileSource(
            self._endpoint, self._download.repo_id, commit, stall_s=self._limits.stall_s
        ) as source:
            for file in lacking:
                await self._take(file, source)
        for file in self._download.files:
            if not self._place.is_there(commit, file.path):
                self._place.place(commit, file.path, file.etag)
        discard_parts(self._download, self._place.cache)  # What a crash at the end left behind.
        self._place.set_revision(self._download.revision, commit)
        return self._place.snapshot(commit)

    def _is_there(self, file: RepositoryFile) -> bool:
        """Its content is complete, for this commit or for another."""
        there = self._place.is_there(self._download.commit, file.path)
        return there or self._place.blob(file.etag).exists()

    def _require_room(self, lacking: Sequence[RepositoryFile]) -> None:
        """Raises `DiskFull` if not all of `lacking` fits."""
        missing = 0
        for file in {file.etag: file for file in lacking}.values():
            title = f"{file.etag} {file.size_bytes}"
            part, journal = self._place.part(file.etag), self._place.journal(file.etag)
            missing += file.size_bytes - kept_ranges(part, journal, title, file.size_bytes).total
        free = self._free_bytes(self._place.folder)
        if missing and missing + self._limits.reserve_bytes > free:
            raise disk_full(self._download.repo_id, missing, free, self._place.folder)

    async def _take(self, file: RepositoryFile, source: FileSource) -> None:
        """Fetch `file` unless another process did meanwhile, and give it its name."""
        lock = await self._lock(file)
        try:
            if not self._is_there(file):
                await self._fetch(file, source)
            remove_part(self._place.part(file.etag), self._place.journal(file.etag))
            self._place.place(self._download.commit, file.path, file.etag)
        finally:
            lock.release()
        self._done_bytes += file.size_bytes

    async def _lock(self, file: RepositoryFile) -> LockFile:
        """The lock of its content; waits while another process downloads the same."""
        path = self._place.lock(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = LockFile(path)
        while not lock.acquire():
            self._tell("waiting", file, 0)
            await asyncio.sleep(_LOCK_POLL_S)
        return lock

    async def _fetch(self, file: RepositoryFile, source: FileSource) -> None:
        """Its content, complete and checked, under its name. Wrong content is fetched once more."""
        reasons: list[str] = []
        while True:
            part = self._part(file)
            try:
                digest = await self._fill(file, part, source)
            except Changed as error:
                part.discard()
                if reasons:
                    raise changed(file, self._download.repo_id, str(error)) from error
                reasons.append(str(error))
                continue
            finally:
                await part.close()
            if digest == file.etag:
                break
            part.discard()
            reasons.append(digest)
            if len(reasons) > 1:
                raise DownloadCorrupt(
                    f"{file.path} of {self._download.repo_id} arrived with a wrong checksum, "
                    f"twice: {digest[:12]}…, not {file.etag[:12]}…. It was thrown away.",
                    "Try again later, or over another connection; a proxy may change what it "
                    "passes on.",
                    expected=file.etag,
                    got=reasons,
                )
        blob = self._place.blob(file.etag)
        os.replace(part.path, blob)
        sync_folder(blob.parent)

    def _part(self, file: RepositoryFile) -> PartFile:
        return PartFile(
            self._place.part(file.etag),
            self._place.journal(file.etag),
            name=file.path,
            etag=file.etag,
            size_bytes=file.size_bytes,
            sync_bytes=self._limits.sync_bytes,
            reserve_bytes=self._limits.reserve_bytes,
            free_bytes=self._free_bytes,
        )

    async def _fill(self, file: RepositoryFile, part: PartFile, source: FileSource) -> str:
        """Fetch what `part` lacks; returns the checksum of all of it."""
        self._tell("downloading", file, part.there.total)
        ranges = deque(pieces(part.there.missing(file.size_bytes), self._limits.range_bytes))
        filling = _Filling(file, part, source, self._limits, self._endpoint, self._tell)
        checking = asyncio.create_task(part.digest(sha256=file.sha256 is not None))
        try:
            await filling.run(ranges)
            await part.sync()
            self._tell("checking", file, part.there.total)
            return await checking
        finally:
            checking.cancel()
            await asyncio.gather(checking, return_exceptions=True)

    def _tell(self, state: str, file: RepositoryFile, there_bytes: int) -> None:
        self._watcher.progress(
            state=state,
            file=file.path,
            done_bytes=self._done_bytes + there_bytes,
            total_bytes=self._download.size_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Filling:
    """The connections that fill one part."""

    file: RepositoryFile
    part: PartFile
    source: FileSource
    limits: Limits
    endpoint: str
    tell: Callable[[str, RepositoryFile, int], None]

    async def run(self, ranges: deque[Range]) -> None:
        """Fetch all of `ranges`, several at once; one after the other from the file's beginning
        where the server sends only whole files.
        """
        connections = min(self.limits.connections, len(ranges))
        try:
            await _all([self._work(ranges) for _ in range(connections)])
        except NoRanges:
            await self._fetch(0, self.file.size_bytes, whole=True)

    async def _work(self, ranges: deque[Range]) -> None:
        while ranges:
            await self._fetch(*ranges.popleft())

    async def _fetch(self, start: int, end: int, *, whole: bool = False) -> None:
        """Bytes from `start` to before `end`, over as many connections as it takes.

        Args:
            whole: a connection that broke off is of no use to the next one.
        """
        position, tries = start, 0
        while position < end:
            try:
                async with aclosing(self.source.stream(self.file, position, end)) as stream:
                    async for data in stream:
                        await self.part.write(position, data)
                        position += len(data)
                        tries = tries if whole else 0
                        self.tell("downloading", self.file, self.part.there.total)
            except BrokenOff as error:
                tries += 1
                position = start if whole else position
                if tries >= self.limits.tries:
                    raise unreachable(self.file, self.endpoint, tries, str(error)) from error
                await pause_before_retry(tries, self.limits.backoff_s, error.retry_after_s)


async def _all(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run `works` side by side; the first failure ends all of them and is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def discard_parts(download: Download, cache: Path) -> None:
    """Remove what of `download` arrived but is not complete, unless it is being downloaded."""
    if download.repo_id.startswith("pypi.org/"):
        from hearth.app.library.package_model import SMOLLM2
        from hearth.app.paths import find_paths

        SMOLLM2.part(find_paths().models).unlink(missing_ok=True)
        return
    place = RepositoryCache(cache, download.repo_id)
    for file in download.files:
        part, journal = place.part(file.etag), place.journal(file.etag)
        if not part.exists() and not journal.exists():
            continue
        path = place.lock(file.etag)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = LockFile(path)
        if not lock.acquire():
            continue
        try:
            remove_part(part, journal)
        finally:
            lock.release()
