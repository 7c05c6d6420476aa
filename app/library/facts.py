"""Facts from the headers of models, stored so that a list of models does not read them again."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hearth.app.library.model_files import files_of
from hearth.app.paths import private_folder

MOST: Final = 1000
"""Maximum number of models whose facts are stored; the least recently listed are dropped first."""
_VERSION: Final = 2
"""Must change when the fields of `HeaderFacts` change, or `preflight` refuses more."""
_MOST_BYTES: Final = 4 << 20

_State = tuple[int, int, int]
"""Size, modification time in ns, and inode of a file, by which a change is noticed."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The facts of a header that lists of models show; the size is that of all of its files."""

    size_bytes: int
    file_type: str
    architecture: str
    parameters: int
    context: int


@dataclass(frozen=True, slots=True)
class _Known:
    states: list[_State]
    """The states of all files of the model when its header was read."""
    facts: HeaderFacts


class KnownFacts:
    """The facts stored in one file, which is read once.

    Other facts are read from the models when requested, and stored by `keep`.

    Args:
        file: need not exist; a file that is damaged or of another version is ignored. None: nothing
            is stored.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._entries = {} if file is None else _read(file)
        self._is_changed = False

    def of(self, path: Path) -> HeaderFacts:
        """The facts of the model at `path`.

        Its header is read again if any of its files has changed.

        Raises:
            OSError: the model cannot be read.
            CorruptFile, UnsupportedModel: as `preflight.check` or `read_model_folder`; errors are
                not stored.
        """
        before = _states(path)
        known = self._entries.pop(str(path), None)
        if known is not None and before and known.states == before:
            self._entries[str(path)] = known  # Moved to the end, as the last one requested.
            return known.facts
        facts = _read_header(path)
        if before and _states(path) == before:
            self._entries[str(path)] = _Known(before, facts)
            self._is_changed = True
        return facts

    def keep(self) -> None:
        """Store the new facts."""
        if self._file is None or not self._is_changed:
            return
        from hearth.backends.machine.atomic_files import write_json

        kept = {path: asdict(known) for path, known in list(self._entries.items())[-MOST:]}
        try:
            private_folder(self._file.parent)
            write_json(self._file, {"version": _VERSION, "models": kept})
        except OSError:
            return  # The next list takes longer, and `hearth doctor` reports such folders.
        self._is_changed = False


def _read(file: Path) -> dict[str, _Known]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            return {}
        document = json.loads(file.read_bytes())
        if document["version"] != _VERSION:
            return {}
        import msgspec

        return msgspec.convert(document["models"], dict[str, _Known])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return {}  # It is created again from the models.


def _read_header(path: Path) -> HeaderFacts:
    if path.is_dir():
        from hearth.backends.native.model_folder import read_model_folder

        folder = read_model_folder(path)
        return HeaderFacts(
            folder.size_bytes,
            folder.stored,
            folder.architecture,
            folder.parameters,
            folder.config.context,
        )
    from hearth.quant.gguf import preflight

    header = preflight.check(path)
    return HeaderFacts(
        sum(part.size_bytes for part in (header, *header.shards)),
        header.file_type_name,
        header.architecture,
        header.parameter_count,
        header.context_length,
    )


def _states(path: Path) -> list[_State]:
    """The states of the files of the model at `path`; empty if one is not accessible."""
    try:
        stats = [file.stat() for file in files_of(path)]
    except OSError:
        return []
    return [(status.st_size, status.st_mtime_ns, status.st_ino) for status in stats]
