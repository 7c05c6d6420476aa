"""The models of a library, in memory: event loops look names up here and never scan a folder."""

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
"""How long an unknown name, or the first of all, waits for a scan."""
_LIST_S: Final = 0.5
"""How long a list waits for a scan before it shows what the last one found."""
_STALE_S: Final = 30.0
"""A name that is found after so long starts a scan that it does not wait for."""
_REST_FACTOR: Final = 10.0
_MOST_REST_S: Final = 60.0


def rest_after(scan_s: float) -> float:
    """Seconds without a scan after one that took `scan_s`: scans use a tenth of the time at most,
    however many unknown names are asked for, unless one takes over 6 s.
    """
    return min(_REST_FACTOR * scan_s, _MOST_REST_S)


@dataclass(frozen=True, slots=True)
class _Scan:
    names: ModelNames
    ended_s: float


class LibraryIndex:
    """The models of `library` as the last scan found them.

    One thread scans at a time, and only while somebody asked for it. A scan that was asked for and
    has not begun serves everybody who asks meanwhile. Thread-safe, and bound to no event loop.

    A file that was deleted since the last scan is still found here; opening it fails with
    `ModelNotFound`.

    Args:
        first: models that may not be in the library; they win where names are equal.
        rest: seconds without a scan, from the seconds that the last one took.
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
        """Ask for a scan that begins after this call; returns at once.

        Args:
            now: the scan does not wait until there may be one again.
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
                    # A daemon: a disk that does not answer must not keep the process.
                    threading.Thread(target=self._scan, name="library scan", daemon=True).start()
            return self._next

    async def changed(self) -> None:
        """Scan now, whenever the last scan was: this process has added or removed a model. Waits
        for some seconds at most, after which the scan goes on by itself.
        """
        self.refresh(now=True)
        with suppress(LibraryNotRead):
            await self._scanned(_FIND_S)

    async def models(self) -> Sequence[FoundModel]:
        """Every model. Those of a scan that begins now, if it is quick, else of the last one.

        Raises:
            LibraryNotRead: the first scan has not ended yet.
        """
        return (await self._scanned(_LIST_S if self._last else _FIND_S)).names.models

    async def find(self, name: str) -> FoundModel | None:
        """The model called `name`, as `ModelNames.find` has it. A name that is not known waits for
        a scan, for some seconds at most.

        Raises:
            ModelNotFound: two models go by that name.
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
        """As `Library.resolve`, but a model found by name is not opened. Waits for the first scan
        however long that takes.
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
        """A scan that begins now; the last one, where that takes longer than `patience_s`."""
        asked = self.refresh()
        if self._last is None or self._due_in_s() < patience_s:
            scan = asyncio.wrap_future(asked)
            try:
                async with asyncio.timeout(patience_s):
                    return await scan
            except TimeoutError:
                pass  # The scan goes on, for the next caller.
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
        """The model called `name`, if it is known without a scan."""
        self.refresh()
        return self.library.names_of([*self._first, *self.library.fixed()]).own(name)

    def _due_in_s(self) -> float:
        """Seconds until the next scan may begin."""
        return self._not_before_s - time.monotonic()

    def _scan(self) -> None:
        """Scan for as long as somebody asks for it."""
        while True:
            self._has_changed.wait(max(0.0, self._due_in_s()))
            with self._lock:
                self._has_changed.clear()
                asked, self._next = self._next, None
                if asked is None:
                    self._is_scanning = False
                    return
            began_s = time.monotonic()
            try:
                catalogue_repos()  # Read in this thread, once.
                names = self.library.names(self._first)
            except Exception as error:  # noqa: BLE001 - it is raised where the scan is awaited
                asked.set_exception(error)
            else:
                self._last = _Scan(names, time.monotonic())
                asked.set_result(self._last)
            finally:
                ended_s = time.monotonic()
                self._not_before_s = ended_s + self._rest(ended_s - began_s)
