"""The results of `hearth bench --tune`: the best settings of each model on this machine, in one
file.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from hearth.app.library.model_files import model_files
from hearth.app.machine import Machine
from hearth.app.paths import private_folder
from hearth.backends.bench.job import Tuned
from hearth.backends.machine.atomic_files import write_json
from hearth.quant.fingerprint import WeightFile, fingerprint

_HEADER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TunedFor:
    """The scope of a result, which does not apply to another machine, file or library."""

    machine: str
    file: str
    library: str

    @classmethod
    def of(cls, machine: Machine, model: Path, library: str) -> TunedFor:
        """The key for `model` with this version of the `library`."""
        name = f"{machine.cpu}, {machine.usable_cores} cores"
        return cls(name, _contents(model), library)


class TunedStore:
    """Results by their scope. A file that cannot be read counts as empty, which only costs a new
    search.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def get(self, key: TunedFor) -> Tuned | None:
        """The result for `key`, or None."""
        for entry in self._entries():
            if entry.get("for") == asdict(key):
                with suppress(msgspec.ValidationError):
                    return msgspec.convert(entry.get("found"), Tuned)
        return None

    def put(self, key: TunedFor, tuned: Tuned) -> None:
        """Store `tuned`, replacing the previous result for `key`."""
        others = [entry for entry in self._entries() if entry.get("for") != asdict(key)]
        entries = [*others, {"for": asdict(key), "found": asdict(tuned)}]
        private_folder(self._file.parent)
        write_json(self._file, entries)

    def _entries(self) -> list[dict[str, Any]]:
        try:
            entries = json.loads(self._file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return []
        if not isinstance(entries, list):
            return []
        return [entry for entry in entries if isinstance(entry, dict)]


def _contents(model: Path) -> str:
    """A digest of the files of `model`. A GGUF begins with its metadata, safetensors with their
    header.
    """
    parts = model_files(model) if model.is_dir() else (model,)
    return fingerprint(WeightFile(part, min(part.stat().st_size, _HEADER_BYTES)) for part in parts)
