"""Cached properties of model files, read from their headers in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hearth.app.library.local import FoundModel, LocalModel, describe
from hearth.app.library.model_files import model_files

_Version = tuple[int, int]
"""Total size in bytes and latest modification time in nanoseconds of a model's files."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Cached properties; `looked_s` is when the files were last compared with `version`."""

    version: _Version
    facts: LocalModel
    looked_s: float


class Facts:
    """A cache, as reading a header with a large vocabulary takes a third of a second."""

    def __init__(self) -> None:
        self._known: dict[Path, _Known] = {}
        self._listing = asyncio.Lock()

    async def of(self, model: FoundModel) -> LocalModel:
        """The properties of `model`, or why its header cannot be read."""
        return await asyncio.to_thread(self._read, model, time.monotonic())

    async def of_all(self, models: Sequence[FoundModel]) -> list[LocalModel]:
        """The same for each of `models`. One list is read at a time: a slow disk blocks one thread,
        and waiting calls share its result.
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
        if version is None:  # The files no longer exist.
            self._known.pop(model.path, None)
        else:
            self._known[model.path] = _Known(version, facts, looked_s)
        return facts


def _version(path: Path) -> _Version | None:
    try:
        parts = model_files(path) if path.is_dir() else (path,)
        states = [part.stat() for part in parts]
    except OSError:
        return None
    newest_ns = max((state.st_mtime_ns for state in states), default=0)
    return sum(state.st_size for state in states), newest_ns
