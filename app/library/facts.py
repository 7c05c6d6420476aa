"""What the headers of models say, kept so that listing them does not read each one again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from hearth.app.library.model_files import model_files
from hearth.app.paths import private_folder

MOST: Final = 1000
"""Models that are remembered; those that were listed longest ago go first."""
_VERSION: Final = 2
"""Another one when `HeaderFacts` has other fields, or `preflight` refuses more."""
_MOST_BYTES: Final = 4 << 20

_State = list[int]
"""Size, time of the last change in ns, and inode of a file: another one has another state."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """What a list of models shows of a header; the size is that of all parts of the model."""

    size_bytes: int
    file_type: str
    architecture: str
    parameters: int
    context: int


class KnownFacts:
    """The facts in one file, as they are when this is made. What else is asked for is read from the
    models, and `keep` writes it down.

    Args:
        file: need not exist; what is damaged, or of another version, is as if it did not. None:
            nothing is remembered.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._entries = {} if file is None else _read(file)
        self._is_changed = False

    def of(self, path: Path) -> HeaderFacts:
        """The facts of the model at `path`, all of whose files are as they were when its header was
        read.

        Raises:
            OSError: it cannot be read.
            CorruptFile, UnsupportedModel: as `preflight.check` or `read_model_folder`; that is not
                remembered.
        """
        is_folder = path.is_dir()
        before = _folder_states(path) if is_folder else _state(path)
        entry = self._entries.pop(str(path), None)
        if entry is not None and entry["states"] == _states(path, len(entry["states"])):
            self._entries[str(path)] = entry  # at the end now: it was asked for last
            return HeaderFacts(**entry["facts"])
        facts, states = _read_folder(path) if is_folder else _read_gguf(path)
        if states is not None and before == (states if is_folder else states[0]):
            self._entries[str(path)] = {"states": states, "facts": asdict(facts)}
            self._is_changed = True
        return facts

    def keep(self) -> None:
        """Write down what is new."""
        if self._file is None or not self._is_changed:
            return
        from hearth.backends.json_file import write_json

        kept = dict(list(self._entries.items())[-MOST:])
        try:
            private_folder(self._file.parent)
            write_json(self._file, {"version": _VERSION, "models": kept})
        except OSError:
            return  # the next list takes longer, and `hearth doctor` tells of such folders
        self._is_changed = False


def _read_gguf(path: Path) -> tuple[HeaderFacts, Sequence[_State] | None]:
    """The facts of a GGUF, and the states of its files afterwards."""
    from hearth.quant.gguf import preflight

    header = preflight.check(path)
    facts = HeaderFacts(
        sum(part.size_bytes for part in (header, *header.shards)),
        header.file_type_name,
        header.architecture,
        header.parameter_count,
        header.context_length,
    )
    return facts, _states(path, 1 + len(header.shards))


def _read_folder(path: Path) -> tuple[HeaderFacts, Sequence[_State] | None]:
    """The same of a folder of safetensors."""
    from hearth.backends.native.model_folder import read_model_folder

    found = read_model_folder(path)
    facts = HeaderFacts(
        found.size_bytes,
        found.stored,
        found.architecture,
        found.parameters,
        found.config.context,
    )
    return facts, _folder_states(path)


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            return {}
        document = json.loads(file.read_bytes())
        if document["version"] != _VERSION:
            return {}
        return {path: _checked(entry) for path, entry in document["models"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}  # it is made again from the models


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """`entry` as it must be. Raises LookupError, TypeError or ValueError."""
    states, facts = entry["states"], HeaderFacts(**entry["facts"])
    for field in fields(facts):
        if type(getattr(facts, field.name)).__name__ != field.type:  # "int" or "str"
            raise TypeError(field.name)
    if not states or any(len(state) != 3 for state in states):
        raise ValueError("states")
    return entry


def _states(first: Path, count: int) -> Sequence[_State] | None:
    """The states of the `count` files of a model; None where one is missing or more."""
    from hearth.quant.gguf.shards import shard_path

    if first.is_dir():
        folder_states = _folder_states(first)
        return folder_states if folder_states and len(folder_states) == count else None
    rest = [shard_path(first, index, count) for index in range(1, count)]
    states = [None if path is None else _state(path) for path in (first, *rest)]
    found = [state for state in states if state is not None]
    return found if len(found) == len(states) else None


def _folder_states(folder: Path) -> Sequence[_State] | None:
    """The states of the files of a model in safetensors; None where one cannot be asked."""
    states = [_state(path) for path in model_files(folder)]
    found = [state for state in states if state is not None]
    return found if len(found) == len(states) else None


def _state(path: Path) -> _State | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino]
