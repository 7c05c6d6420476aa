"""Paths as a person types them."""

from __future__ import annotations

import os
from pathlib import Path

from hearth.backends.errors import InvalidParameter


def typed_path(text: str, folder: Path | None = None) -> Path:
    """The path that `text` means; ~ is a home.

    Args:
        folder: where relative paths begin; None: where Hearth was started.

    Raises:
        InvalidParameter: no file can be called so, or there is no such home.
    """
    try:
        path = (folder or Path.cwd()) / Path(text).expanduser()
        os.fsencode(path)
    except (RuntimeError, ValueError) as error:
        raise InvalidParameter("path", f"{text}: {error}.", "Give another path.") from error
    if "\0" in text:
        raise InvalidParameter("path", f"{text}: a path has no NUL.", "Give another path.")
    return path
