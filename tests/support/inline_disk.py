"""A disk tier without threads: what is written is there at once, and read when it is asked for."""

from __future__ import annotations

from collections.abc import Callable

from hearth.backends.engine.kv.disk import DiskTier, Load
from hearth.backends.engine.kv.disk_files import Damaged, read_data


class _Now:
    """A queue of jobs that are done when they are put."""

    @staticmethod
    def put(job: Callable[[], None]) -> None:
        job()


class InlineLoad(Load):
    """Reads a part when its data are asked for."""

    damaged: Callable[[object], None]

    def data(self, index):
        if index not in self._data and not self.has_failed:
            part = self.parts[index]
            try:
                self._data[index] = read_data(part, memoryview(bytearray(part.nbytes)))
            except (OSError, Damaged):
                self.has_failed = True
                self.damaged(part)
        return self._data.get(index)

    def done(self, index):
        del self._data[index]


class InlineDisk(DiskTier):
    def _begin_threads(self) -> None:
        self._jobs = _Now()
        self._scan()

    def load(self, parts):
        load = InlineLoad(parts)
        load.damaged = self._damaged
        return load
