"""A disk tier without threads: writes are done at once, reads when their result is requested."""

from __future__ import annotations

from collections.abc import Callable

from hearth.backends.engine.kv.disk import DiskTier, Load


class _Now:
    """A queue that runs each job when it is put."""

    @staticmethod
    def put(job: Callable[[], None]) -> None:
        job()


class InlineLoad(Load):
    """A load that reads nothing ahead."""

    def is_there(self, index):
        return True


class InlineDisk(DiskTier):
    def _begin_threads(self) -> None:
        self._jobs = _Now()
        self._scan()

    def load(self, parts):
        return InlineLoad(parts)
