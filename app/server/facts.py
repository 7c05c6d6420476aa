"""What the headers of model files say, read once for each version of a file, in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hearth.app.library.local import FoundModel, LocalModel, describe
from hearth.app.library.model_files import model_files

_Version = tuple[int, int]
"""Size in bytes and time of the last change in nanoseconds, of all files of a folder."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What a header says; `looked_s` is when the files were last compared with `version`."""

    version: _Version
    facts: LocalModel
    looked_s: float


class Facts:
    """One server's. Headers with a large vocabulary take a third of a second."""

    def __init__(self) -> None:
        self._known: dict[Path, _Known] = {}
        self._listing = asyncio.Lock()

    async def of(self, model: FoundModel) -> LocalModel:
        """What the header of `model` says, or why it cannot be read."""
        return await asyncio.to_thread(self._read, model, time.monotonic())

    async def of_all(self, models: Sequence[FoundModel]) -> list[LocalModel]:
        """The same of each of `models`. One list at a time: a slow disk holds up one thread, and
        those who wait meanwhile share what it finds.
        """
        asked_s = time.monotonic()
        async with self._listing:
            return await asyncio.to_thread(lambda: [self._read(model, asked_s) for model in models])

    def _read(self, model: FoundModel, asked_s: float) -> LocalModel:
        known = self._known.get(model.path)
        if known is not None and known.looked_s > asked_s:
            return known.facts
        looked_s = time.monotonic()
        version = _version(model.path)
        if known is not None and known.version == version:
            self._known[model.path] = _Known(version, known.facts, looked_s)
            return known.facts
        facts = describe(model)
        if version is None:  # Gone, so there is nothing to remember.
            self._known.pop(model.path, None)
        else:
            self._known[model.path] = _Known(version, facts, looked_s)
        return facts


def _version(path: Path) -> _Version | None:
    try:
        parts = model_files(path) if path.is_dir() else (path,)
        found = [part.stat() for part in parts]
    except OSError:
        return None
    return sum(one.st_size for one in found), max((one.st_mtime_ns for one in found), default=0)
