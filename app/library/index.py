"""The models of a library, in memory, so that event loops find names without scanning a folder."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hearth.app.library.errors import LibraryNotRead
from hearth.app.library.local import (
    FoundModel,
    Library,
    ModelNames,
    catalogue_repos,
    model_by_path,
)

_FIND_S: Final = 5.0
"""How long a request for an unknown name, or the very first one, waits for a scan."""
_LIST_S: Final = 0.5
"""How long a list waits for a scan before it shows the result of the last one."""
_STALE_S: Final = 30.0
"""If the last scan is older than this, finding a name starts a scan without waiting for it."""
_REST_FACTOR: Final = 10.0
_MOST_REST_S: Final = 60.0


def rest_after(scan_s: float) -> float:
    """Seconds without a scan after a scan that took `scan_s`.

    Scans take at most a tenth of the time, however many unknown names are requested, unless one
    takes over 6 s.
    """
    return min(_REST_FACTOR * scan_s, _MOST_REST_S)


@dataclass(frozen=True, slots=True)
class _Scan:
    names: ModelNames
    ended_s: float


class LibraryIndex:
    """The models of `library` as the last scan found them.

    One thread scans at a time, and only on request. A scan that was requested but has not begun
    serves all further requests. Thread-safe, and not bound to an event loop.

    A file that was deleted since the last scan is still found here; opening it fails with
    `ModelNotFound`.

    Args:
        first: models that may not be in the library; they take precedence if names are equal.
        rest: returns the seconds without a scan, from the seconds that the last scan took.
    """

    def __init__(
        self,
        library: Library,
        first: Sequence[FoundModel] = (),
        *,
        rest: Callable[[float], float] = rest_after,
    ) -> None:
        self.library = library
        self._first = tuple(first)
        self._rest = rest
        self._lock = threading.Lock()
        self._last: _Scan | None = None
        self._next: Future[_Scan] | None = None
        self._is_scanning = False
        self._not_before_s = 0.0
        self._has_changed = threading.Event()

    def refresh(self, *, now: bool = False) -> Future[_Scan]:
        """Request a scan that begins after this call; returns at once.

        Args:
            now: whether the scan begins without the pause after the last one.
        """
        with self._lock:
            if now:
                self._not_before_s = 0.0
                self._has_changed.set()
            if self._next is None:
                self._next = Future()
                self._next.set_running_or_notify_cancel()  # No caller cancels it for the others.
                if not self._is_scanning:
                    self._is_scanning = True
                    # A daemon thread: a disk that does not respond must not keep the process alive.
                    threading.Thread(target=self._scan, name="library scan", daemon=True).start()
            return self._next

    async def changed(self) -> None:
        """Scan now, without a pause, after this process has added or removed a model.

        Waits for at most `_FIND_S`; the scan then continues in the background.
        """
        self.refresh(now=True)
        with suppress(LibraryNotRead):
            await self._scanned(_FIND_S)

    async def models(self) -> Sequence[FoundModel]:
        """Every model: the result of a scan that begins now if it is quick, else of the last one.

        Raises:
            LibraryNotRead: the first scan has not ended yet.
        """
        return (await self._scanned(_LIST_S if self._last else _FIND_S)).names.models

    async def find(self, name: str) -> FoundModel | None:
        """The model called `name`, as found by `ModelNames.find`.

        If the name is unknown, waits for a scan, for at most `_FIND_S`.

        Raises:
            ModelNotFound: more than one model has that name.
            LibraryNotRead: the first scan has not ended yet.
        """
        last = self._last
        if last is not None and (model := last.names.find(name)) is not None:
            if time.monotonic() - last.ended_s > _STALE_S:
                self.refresh()
            return model
        if last is None and (model := await asyncio.to_thread(self._fixed, name)) is not None:
            return model
        return (await self._scanned(_FIND_S)).names.find(name)

    async def resolve(self, name_or_path: str) -> FoundModel:
        """As `Library.resolve`, but a model found by name is not opened.

        Waits for the first scan, however long it takes.
        """
        if (model := await asyncio.to_thread(model_by_path, name_or_path)) is not None:
            return model
        while True:
            try:
                model = await self.find(name_or_path)
                break
            except LibraryNotRead:
                continue
        if model is not None:
            return model
        known = self._last.names.models if self._last is not None else ()
        return await asyncio.to_thread(self.library.at_path, name_or_path, known)

    async def _scanned(self, patience_s: float) -> _Scan:
        """The result of a scan that begins now, or of the last one if `patience_s` is exceeded."""
        asked = self.refresh()
        if self._last is None or self._due_in_s() < patience_s:
            scan = asyncio.wrap_future(asked)
            try:
                async with asyncio.timeout(patience_s):
                    return await scan
            except TimeoutError:
                pass  # The scan continues for the next caller.
            finally:
                scan.cancel()
        if self._last is None:
            raise LibraryNotRead(
                f"The model folders are still being read ({self.library.folder} and those of "
                "other programs).",
                "Retry the request in a few seconds.",
                retry_after_s=_FIND_S,
            )
        return self._last

    def _fixed(self, name: str) -> FoundModel | None:
        """The model called `name` if it is known without a scan, which is also requested."""
        self.refresh()
        return self.library.names_of([*self._first, *self.library.fixed()]).own(name)

    def _due_in_s(self) -> float:
        """Seconds until the next scan may begin."""
        return self._not_before_s - time.monotonic()

    def _scan(self) -> None:
        """Scan as long as scans are requested."""
        while True:
            self._has_changed.wait(max(0.0, self._due_in_s()))
            with self._lock:
                self._has_changed.clear()
                asked, self._next = self._next, None
                if asked is None:
                    self._is_scanning = False
                    return
            began_s = time.monotonic()
            scan: _Scan | Exception
            try:
                catalogue_repos()  # Read in this thread, once.
                scan = _Scan(self.library.names(self._first), time.monotonic())
            except Exception as error:  # noqa: BLE001 - it is raised where the scan is awaited
                scan = error
            ended_s = time.monotonic()
            # Before the result: who gets it may request the next scan at once.
            self._not_before_s = ended_s + self._rest(ended_s - began_s)
            if isinstance(scan, _Scan):
                self._last = scan
                asked.set_result(scan)
            else:
                asked.set_exception(scan)
