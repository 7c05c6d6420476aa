"""How much of this machine's memory a model will take, read from its file before it is loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from hearth.backends.contract.models import ModelSpec
from hearth.backends.errors import HearthError
from hearth.backends.worker.choice import choose

MOST_KNOWN: Final = 256
"""Number of results that `Footprints` caches, the most recently used ones."""


class Footprints:
    """The memory that models need. Results are cached; a file is read again if it has changed or is
    to be loaded with other settings. Thread-safe.

    Args:
        cache_dir: where measurements of this machine are kept, on which the choice of the runner
            depends.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._needed = lru_cache(MOST_KNOWN)(partial(_needed_bytes, cache_dir))

    def of(self, spec: ModelSpec) -> int | None:
        """Bytes to reserve for `spec` and its draft model. None if the model takes no memory here,
        or cannot be read or loaded; in that case its worker reports the error.

        Reads the headers of the files, so do not call it in the event loop.
        """
        path = os.path.realpath(spec.path)
        try:
            file_stat = os.stat(path)
        except OSError:
            return None
        load = replace(spec, path=path, name="", settings=spec.settings.of_load)
        needed = self._needed(load, file_stat.st_mtime_ns, file_stat.st_size)
        if needed is None or (draft := spec.draft) is None:
            return needed
        return needed + (self.of(draft) or 0)


def _needed_bytes(cache_dir: Path | None, spec: ModelSpec, *_: int) -> int | None:
    if spec.backend == "remote":
        return None
    from hearth.backends.llamacpp.footprint import needed_bytes as llamacpp_bytes
    from hearth.backends.native.footprint import needed_bytes as native_bytes

    try:
        is_native = choose(spec, cache_dir).runner == "native"
        needed_bytes = native_bytes if is_native else llamacpp_bytes
        return needed_bytes(Path(spec.path), spec.settings)
    except (HearthError, OSError):
        return None
