"""Paths as a person types them."""

from __future__ import annotations

import os
from pathlib import Path

from hearth.backends.errors import InvalidParameter


def typed_path(text: str, folder: Path | None = None) -> Path:
    """The path that `text` denotes; ~ is expanded to a home folder.

    Args:
        folder: base of relative paths; None for the folder in which Hearth was started.

    Raises:
        InvalidParameter: `text` cannot be a path, or there is no such home.
    """
    try:
        path = (folder or Path.cwd()) / Path(text).expanduser()
        os.fsencode(path)
    except (RuntimeError, ValueError) as error:
        raise InvalidParameter("path", f"{text}: {error}.", "Give another path.") from error
    if "\0" in text:
        raise InvalidParameter("path", f"{text}: a path has no NUL.", "Give another path.")
    return path
