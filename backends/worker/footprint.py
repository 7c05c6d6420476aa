"""What a model will take of this machine's memory, read from its file before it is loaded."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Final

from hearth.backends.contract.loaded import EngineStats, ModelInfo
from hearth.backends.contract.models import ModelSpec
from hearth.backends.errors import HearthError
from hearth.backends.worker.choice import runner_of

MOST_KNOWN: Final = 256
"""Files that `Footprints` remembers; those that were asked for last."""


class Footprints:
    """What models need; a file is read again when it changed or is to be loaded in another way.

    Args:
        cache_dir: where measurements about this machine are kept, which decide what runs a model.
    """

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir
        self._known: dict[str, tuple[object, int | None]] = {}
        self._lock = threading.Lock()
        """Guards `_known`: each call has a thread of its own."""

    def of(self, spec: ModelSpec) -> int | None:
        """Bytes to set aside for `spec`; None if it takes no memory here, or cannot be read or
        loaded: its worker says why. Reads the file's header, so call it beside the event loop.
        """
        path = os.path.realpath(spec.path)
        try:
            found = os.stat(path)
        except OSError:
            return None
        # How long it stays and who waits say nothing about memory.
        settings = replace(spec.settings, keep_alive_s=0.0, max_waiting=0)
        version = (found.st_mtime_ns, found.st_size, spec.backend, settings)
        known = self._known.get(path)
        if known is None or known[0] != version:
            known = (version, _needed_bytes(spec, self._cache_dir))
        with self._lock:
            self._known.pop(path, None)  # So that the dictionary is in the order of use.
            self._known[path] = known
            while len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return known[1]


def _needed_bytes(spec: ModelSpec, cache_dir: Path | None) -> int | None:
    if spec.backend == "remote":
        return None
    from hearth.backends.llamacpp.footprint import needed_bytes as llamacpp_bytes
    from hearth.backends.native.footprint import needed_bytes as native_bytes

    runner = runner_of(spec, cache_dir)
    if runner is None:
        return None
    needed_bytes = native_bytes if runner == "native" else llamacpp_bytes
    try:
        return needed_bytes(Path(spec.path), spec.settings)
    except (HearthError, OSError):
        return None


def taken_bytes(info: ModelInfo, engine: EngineStats) -> int:
    """What a loaded model takes now, without its buffers."""
    return info.size_bytes + engine.taken_bytes


def free_bytes() -> int:
    """Memory of this machine, or of its control group, that can be taken without swapping."""
    from hearth.backends.machine.memory import available_bytes

    return available_bytes()
