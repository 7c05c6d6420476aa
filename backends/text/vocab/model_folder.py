"""The small JSON files beside a model's weights, read within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from hearth.backends.errors import CorruptFile

_LARGEST_BYTES: Final = 64 * 1024 * 1024


def read_json(folder: Path, name: str) -> Mapping[str, Any]:
    """The object in `folder / name`; empty where there is no such file.

    Raises:
        CorruptFile: the file is no JSON object, or has more than 64 MiB.
    """
    path = folder / name
    try:
        with path.open("rb") as stream:
            data = stream.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        return {}
    if len(data) > _LARGEST_BYTES:
        raise CorruptFile(f"{path} has more than 64 MiB, which no such file needs.", field=name)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is no valid JSON: {error}.", field=name) from error
    if not isinstance(found, dict):
        raise CorruptFile(f"{path} holds a {type(found).__name__}, not an object.", field=name)
    return found


def token_text(value: Any) -> str | None:
    """The text of a token in those files, which is a string or an object with its "content"."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None
