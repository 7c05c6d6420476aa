"""The wording of this package's errors: the file, the field, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

from hearth.quant.errors import CorruptFile, UnsupportedModel

_SHOWN_CHARACTERS = 80


def quoted(name: str) -> str:
    """`name` in quotes for a message: control characters are escaped, long names truncated."""
    if len(name) > _SHOWN_CHARACTERS:
        return f"{name[:_SHOWN_CHARACTERS]!r}... ({len(name)} characters)"
    return repr(name)


def corrupt(path: Path, field: str, problem: str, hint: str = "") -> CorruptFile:
    """The error for `field` of `path`; `problem` says what was found and what is allowed."""
    message = f"{path.name} is damaged: {field}: {problem}."
    return CorruptFile(message, hint, field=field, path=str(path))


def unsupported(path: Path, field: str, problem: str, hint: str = "") -> UnsupportedModel:
    """The error for a well-formed file that cannot be used: "<file name> <problem>."."""
    return UnsupportedModel(f"{path.name} {problem}.", hint, field=field, path=str(path))
