"""The queue of downloads: stored on disk; at most two run at a time, each in its own process.

One process of Hearth, the keeper, manages the queue; the others read its file. When the keeper
ends, for whatever reason, another running process or the next one that starts becomes the keeper
and continues the downloads. The code that downloads is imported with the first download, because
each start of the terminal app opens the queue, which is usually empty.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final, Literal

from hearth.app.jobs.child import Stopped, Values, Work
from hearth.app.jobs.job import Job
from hearth.app.library.cache_layout import RepositoryCache
from hearth.app.library.errors import (
    DownloadNotFound,
    FileTrouble,
    HubUnreachable,
    QueueHeld,
    QueueUnreadable,
)
from hearth.app.library.hub import Download, Hub
from hearth.app.library.model_files import WEIGHTS
from hearth.app.paths import private_folder
from hearth.backends.errors import ErrorInfo, HearthError, InternalError, to_info
from hearth.backends.machine.atomic_files import write_json
from hearth.backends.machine.lock import LockFile

DownloadState = Literal["waiting", "running", "paused", "failed", "done"]
_VERSION: Final = 1
_MOST_RUNNING: Final = 2
_TAKE_OVER_S: Final = 2.0
"""Interval at which a process tries to become the keeper."""
_PROGRESS_S: Final = 2.0
"""Interval at which the keeper writes the progress of downloads for the other processes."""


class Rate:
    """Bytes per second over the last seconds.

    Args:
        window_s: length of the period that is measured.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, window_s: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, done_bytes: int) -> None:
        """Record the number of bytes now; it may be lower if some are fetched again."""
        now = self._clock()
        if self._seen and done_bytes < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._window_s:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float | None:
        """The rate; None until it is known."""
        if len(self._seen) < 2:
            return None
        (since, before), (_, after) = self._seen[0], self._seen[-1]
        took_s = self._clock() - since
        return (after - before) / took_s if took_s > 0 else None

    def eta_s(self, missing_bytes: int) -> float | None:
        """Seconds until `missing_bytes` arrive at this rate; None if the rate is 0 or unknown."""
        rate = self.bytes_per_s
        return missing_bytes / rate if rate else None


@dataclass(frozen=True, slots=True)
class DownloadItem:
    """The present state of one download of the queue.

    Attributes:
        name: name shown to the user, such as "organisation/name:Q4_K_M".
        activity: of a running download: downloading, checking, or waiting for another process.
        bytes_per_s, eta_s: None while unknown.
        error: why the download is paused, has failed or waits for the connection.
        quantize: the type to quantize to when the download is complete; empty: none.
    """

    id: str
    name: str
    state: DownloadState
    activity: str
    file: str
    done_bytes: int
    total_bytes: int
    bytes_per_s: float | None
    eta_s: float | None
    error: ErrorInfo | None
    quantize: str = ""


@dataclass(slots=True)
class _Entry:
    """A download of the queue; fields that are not parameters of `__init__` are not stored."""

    id: str
    name: str
    download: Download
    state: DownloadState = "waiting"
    done_bytes: int = 0
    error: ErrorInfo | None = None
    quantize: str = ""
    activity: str = field(default="", init=False)
    file: str = field(default="", init=False)
    rate: Rate = field(default_factory=Rate, init=False)
    job: Job | None = field(default=None, init=False)
    task: asyncio.Task[None] | None = field(default=None, init=False)
    is_ending: bool = field(default=False, init=False)
    not_before: float = field(default=0.0, init=False)

    def item(self) -> DownloadItem:
        total = self.download.size_bytes
        running = self.state == "running"
        return DownloadItem(
            id=self.id,
            name=self.name,
            state=self.state,
            activity=self.activity if running else "",
            file=self.file if running else "",
            done_bytes=self.done_bytes,
            total_bytes=total,
            bytes_per_s=self.rate.bytes_per_s if running else None,
            eta_s=self.rate.eta_s(total - self.done_bytes) if running else None,
            error=self.error,
            quantize=self.quantize,
        )

    def to_json(self) -> Values:
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        error = asdict(self.error) if self.error else None
        return {**kept, "download": asdict(self.download), "error": error}


class Downloads:
    """The queue.

    Methods that change the queue make this process its keeper. They raise `QueueHeld` if another
    process is the keeper, and `FileTrouble` if the queue cannot be saved, although it is then
    changed in memory.

    Args:
        file: the queue's file; the keeper holds the `.lock` file next to it.
        cache: the shared cache's folder.
        hub: the source of downloads.
        log_dir: folder for the output of the jobs; None: the output is dropped.
        retry_s: time after which a download that lost its connection is tried again.
        start: starts a job, as `Job.start` does.
        clock: a monotonic clock in seconds.
    """

    def __init__(
        self,
        file: Path,
        cache: Path,
        hub: Hub,
        *,
        log_dir: Path | None = None,
        retry_s: float = 60.0,
        start: Callable[[Work, Values, Path | None], Awaitable[Job]] = Job.start,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = file
        self._cache = cache
        self._hub = hub
        self._log_dir = log_dir
        self._retry_s = retry_s
        self._start = start
        self._clock = clock
        self._lock = LockFile(file.with_suffix(".lock"))
        self._is_keeper = False
        self._entries: list[_Entry] = []
        self._read_from: tuple[int, int] | None = None
        """Modification time and size of the file when a process that is not the keeper read it."""
        self._changed = asyncio.Event()
        self.on_complete: Callable[[DownloadItem, Path], None] | None = None
        """Called by `run` for complete downloads that are to be quantized, until `end_quantize`."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="download queue")

    def items(self) -> tuple[DownloadItem, ...]:
        """All downloads, in the order of the queue. Raises `QueueUnreadable`."""
        if not self._is_keeper:
            try:
                now = self._path.stat()
                state = (now.st_mtime_ns, now.st_size)
            except FileNotFoundError:
                state = None
            if state is None or state != self._read_from:
                self._entries = self._read()
                self._read_from = state
        return tuple(entry.item() for entry in self._entries)

    def use(self, hub: Hub) -> None:
        """Download from `hub` from now on. If it is offline, running downloads are paused."""
        self._hub = hub
        for entry in self._entries if hub.offline else ():
            entry.is_ending = True
            if entry.job is not None:
                entry.job.stop()

    async def add(self, download: Download, name: str, quantize: str = "") -> str:
        """Append `download` to the queue; returns its id.

        A download that is already in the queue and not done is not added again.

        Args:
            quantize: the type to quantize to when the download is complete; empty: none.
        """
        self._keep()
        for entry in self._entries:
            if entry.download == download and entry.state != "done":
                entry.quantize = quantize
                await self._saved()
                return entry.id
        entry = _Entry(uuid.uuid4().hex[:8], name, download, quantize=quantize)
        self._entries.append(entry)
        await self._saved()
        return entry.id

    async def pause(self, ident: str) -> None:
        """Stop a download until `resume`, keeping what arrived. No effect if it has ended."""
        entry = self._find(ident)
        if entry.state in ("waiting", "running"):
            entry.state, entry.error = "paused", None
            await self._end_job(entry)
            await self._saved()

    async def resume(self, ident: str) -> None:
        """Continue or retry a download that is paused, has failed or waits for a retry."""
        entry = self._find(ident)
        if entry.state in ("paused", "failed") or entry.not_before:
            entry.state, entry.error, entry.not_before = "waiting", None, 0.0
            await self._saved()

    async def cancel(self, ident: str) -> None:
        """Remove a download from the queue, and the bytes that arrived unless it is complete."""
        from hearth.app.library.download import discard_parts

        entry = self._find(ident)
        self._entries.remove(entry)
        await self._end_job(entry)
        try:  # Before saving the queue, which needs space on the disk.
            with _trouble(f"What was downloaded of {entry.name} cannot be deleted"):
                await asyncio.to_thread(discard_parts, entry.download, self._cache)
        finally:
            await self._saved()

    async def end_quantize(self, ident: str) -> None:
        """Record that the download need not be quantized any more."""
        self._find(ident).quantize = ""
        await self._saved()

    async def move(self, ident: str, place: int) -> None:
        """Move a download to position `place` of the queue, counted from 0."""
        entry = self._find(ident)
        self._entries.remove(entry)
        self._entries.insert(max(place, 0), entry)
        await self._saved()

    async def run(self, notify: Callable[[HearthError], None]) -> None:
        """Run the downloads of the queue until cancelled.

        Then running downloads are stopped and stay in the queue. While another process is the
        keeper, wait until it ends. While the queue cannot be read or written, try again.

        Args:
            notify: called once with each error that prevents the queue from being opened.
        """
        notified = ""
        while True:
            try:
                if self._try_to_keep():
                    break
            except HearthError as error:
                if str(error) != notified:
                    notified = str(error)
                    notify(error)
            await asyncio.sleep(_TAKE_OVER_S)
        try:
            while True:
                self._changed.clear()
                now = self._clock()
                for entry in self._due(now):
                    entry.state, entry.error = "running", None
                    entry.not_before, entry.is_ending = 0.0, False
                    entry.task = asyncio.create_task(self._work(entry))
                    self._save(wake=False)
                for entry in self._entries:
                    if entry.state == "done" and entry.quantize and self.on_complete is not None:
                        self.on_complete(entry.item(), self._model_of(entry.download))
                later = [entry.not_before for entry in self._entries if entry.not_before > now]
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(later) - now if later else None):
                        await self._changed.wait()
        finally:
            for entry in list(self._entries):
                await self._end_job(entry)
            await self._saved(wake=False)

    def close(self) -> None:
        """Wait until the queue is written, and let another process become its keeper."""
        self._writer.submit(lambda: None).result()
        self._lock.release()
        self._is_keeper = False

    def _due(self, now: float) -> Sequence[_Entry]:
        running = sum(entry.task is not None for entry in self._entries)
        waiting = [
            entry
            for entry in self._entries
            if entry.state == "waiting" and entry.task is None and entry.not_before <= now
        ]
        return waiting[: max(_MOST_RUNNING - running, 0)]

    def _model_of(self, download: Download) -> Path:
        """The path of the downloaded model: its folder, or its first file."""
        place = RepositoryCache(self._cache, download.repo_id)
        if any(file.path.endswith(WEIGHTS) for file in download.files):
            return place.snapshot(download.commit)
        return place.file(download.commit, download.files[0].path)

    async def _work(self, entry: _Entry) -> None:
        """Run one download until it ends, fails or is stopped."""
        from hearth.app.library import download_job

        entry.rate = Rate(clock=self._clock)
        saved_at = self._clock()
        try:
            question = download_job.question(entry.download, self._cache, hub=self._hub)
            entry.job = await self._start(download_job.work, question, self._log_dir)
            if entry.is_ending:
                entry.job.stop()
            async for values in entry.job.updates():
                entry.activity = values["state"]
                entry.file = values["file"]
                entry.done_bytes = values["done_bytes"]
                entry.rate.note(entry.done_bytes)
                if self._clock() - saved_at >= _PROGRESS_S:
                    saved_at = self._clock()
                    self._save(wake=False)
            await entry.job.result()
            entry.state, entry.done_bytes = "done", entry.download.size_bytes
        except Stopped:
            if entry.state == "running":
                entry.state = "waiting"
        except HearthError as error:
            self._settle(entry, error)
        except OSError as error:
            failure = f"The process of a download did not start: {error.strerror or error}."
            self._settle(entry, InternalError(failure))
        finally:
            if entry.job is not None:
                await entry.job.close()
            entry.job = entry.task = None
            self._save()

    def _settle(self, entry: _Entry, error: HearthError) -> None:
        """Set the state of a download that ended with `error`."""
        if entry.state != "running":
            return
        entry.error = to_info(error)
        if isinstance(error, HubUnreachable):
            entry.state, entry.not_before = "waiting", self._clock() + self._retry_s
        elif error.code in ("disk_full", "offline"):
            entry.state = "paused"
        else:
            entry.state = "failed"

    async def _end_job(self, entry: _Entry) -> None:
        """Stop the job of `entry`, if any, and wait until it has ended."""
        entry.is_ending = True
        if entry.job is not None:
            entry.job.stop()
        if entry.task is not None:
            await asyncio.wait([entry.task])

    def _find(self, ident: str) -> _Entry:
        self._keep()
        for entry in self._entries:
            if entry.id == ident:
                return entry
        raise DownloadNotFound(f"There is no download {ident}.", "Refresh the list.")

    def _keep(self) -> None:
        """Become the keeper of the queue. Raises `QueueHeld`."""
        if not self._try_to_keep():
            raise QueueHeld(
                "Another Hearth process manages the downloads.",
                "Use that one, or `hearth pull`, which does not need the queue.",
            )

    def _try_to_keep(self) -> bool:
        """Become the keeper and read the queue, unless another process is the keeper.

        Returns whether this process is the keeper.
        """
        if not self._is_keeper:
            with _trouble(f"{self._path} cannot be written"):
                private_folder(self._path.parent)
                is_free = self._lock.acquire()
            if not is_free:
                return False
            try:
                self._entries = self._read()
            except QueueUnreadable:
                self._lock.release()
                raise
            for entry in self._entries:
                if entry.state == "running":  # Its process was killed.
                    entry.state = "waiting"
            self._is_keeper = True
        return True

    def _read(self) -> list[_Entry]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["version"] != _VERSION:
                raise ValueError(f"version {document['version']!r}")
            import msgspec

            return msgspec.convert(document["downloads"], list[_Entry])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise QueueUnreadable(
                f"{self._path} cannot be read: {error}.",
                "Remove it: downloads continue where they were when they are requested again.",
            ) from error

    def _save(self, *, wake: bool = True) -> Future[None]:
        """Write the present state of the queue, and wake `run`.

        A thread writes the file, in the order of the calls.
        """
        document = {"version": _VERSION, "downloads": [entry.to_json() for entry in self._entries]}
        if wake:
            self._changed.set()
        return self._writer.submit(write_json, self._path, document)

    async def _saved(self, *, wake: bool = True) -> None:
        """As `_save`, but returns when the file is written. Raises `FileTrouble`."""
        with _trouble(f"{self._path} cannot be written"):
            await asyncio.shield(asyncio.wrap_future(self._save(wake=wake)))


@contextmanager
def _trouble(what: str) -> Iterator[None]:
    """Raise an `OSError` of the block as `FileTrouble`, whose message begins with `what`."""
    try:
        yield
    except OSError as error:
        raise FileTrouble(
            f"{what}: {error.strerror or error}.",
            "Free some space on the disk, or check the permissions of the folder.",
        ) from error
