"""The models that requests may name, and the properties of their files.

These are the models of the library, and the one that `hearth serve` opened.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.app.chosen import Chosen
from hearth.app.library.index import LibraryIndex
from hearth.app.library.local import FoundModel, Library, LocalModel, describe
from hearth.app.library.model_files import files_of
from hearth.backends.errors import InvalidParameter, ModelNotFound

_HINT: Final = "GET /v1/models lists the names."


@dataclass(frozen=True, slots=True)
class _Known:
    """Cached properties. `looked_s` is the time when `version` was last read from the files."""

    version: list[tuple[int, int]]
    """Size in bytes and modification time in nanoseconds of each file."""
    facts: LocalModel
    looked_s: float


class Catalog:
    """Finds models by name, without scanning the disk on the event loop.

    A name from a request never becomes part of a path. The contents of file headers are cached,
    because reading a header with a large vocabulary takes a third of a second.

    Args:
        library: the names of its models take precedence over its aliases.
        default: the model that was opened, which may be outside of the library; its name takes
            precedence.
        settings: returns a model with the settings that apply to it.

    Attributes:
        index: the names of `default` and of the library.
    """

    def __init__(
        self, library: Library, default: FoundModel, settings: Callable[[FoundModel], Chosen]
    ) -> None:
        self.default = default
        self.index = LibraryIndex(library, [default])
        self._settings = settings
        self._chosen: dict[FoundModel, Chosen] = {}
        self._known: dict[Path, _Known] = {}
        self._listing = asyncio.Lock()

    async def models(self) -> Sequence[FoundModel]:
        """Every model that requests can name, the opened one first. Raises `LibraryNotRead`.

        Models whose name is not valid Unicode are left out, because JSON cannot express such
        names, and so is a model of the library that has the name of the opened one.
        """
        named: dict[str, FoundModel] = {}
        for model in await self.index.models():
            if model.name.encode(errors="ignore").decode() == model.name:
                named.setdefault(model.name.lower(), model)
        return list(named.values())

    async def find(self, name: object) -> Chosen:
        """The model called `name`, as found by `ModelNames.find`.

        Raises:
            InvalidParameter: `name` is missing or not a string.
            ModelNotFound: no model, or more than one, has that name.
            LibraryNotRead: the model folders have not been read yet.
            SettingsError: the model's template file cannot be read.
        """
        if not isinstance(name, str) or not name:
            raise InvalidParameter("model", "model must be the name of a model.", _HINT)
        try:
            model = await self.index.find(name)
        except ModelNotFound as error:
            raise ModelNotFound(error.message, error.hint, **error.data, param="model") from error
        if model is None:
            raise ModelNotFound(f'There is no model "{name[:100]}".', _HINT, param="model")
        if model not in self._chosen:
            self._chosen[model] = await asyncio.to_thread(self._settings, model)
        return self._chosen[model]

    async def facts(self, model: FoundModel) -> LocalModel:
        """The properties of the files of `model`, or the reason why its header cannot be read."""
        return await asyncio.to_thread(self._read, model, time.monotonic())

    async def facts_of_all(self, models: Sequence[FoundModel]) -> list[LocalModel]:
        """The `facts` of each of `models`.

        Only one list is read at a time, so that a slow disk blocks only one thread; waiting calls
        share what was read.
        """
        asked_s = time.monotonic()
        async with self._listing:
            return await asyncio.to_thread(lambda: [self._read(model, asked_s) for model in models])

    def _read(self, model: FoundModel, asked_s: float) -> LocalModel:
        known = self._known.get(model.path)
        if known is not None and known.looked_s > asked_s:
            return known.facts
        looked_s = time.monotonic()
        version = [(state.st_size, state.st_mtime_ns) for state in file_states(model.path)]
        is_same = known is not None and known.version == version
        facts = known.facts if known is not None and is_same else describe(model)
        if version:
            self._known[model.path] = _Known(version, facts, looked_s)
        else:
            self._known.pop(model.path, None)
        return facts


def file_states(path: Path) -> list[os.stat_result]:
    """The states of the files of the model at `path`; empty if they no longer exist."""
    try:
        return [part.stat() for part in files_of(path)]
    except OSError:
        return []
