"""The end of a log file, read without reading the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MOST_LINES: Final = 200
_MOST_BYTES: Final = 64 << 10


def tail(path: Path, lines: int = MOST_LINES) -> list[str]:
    """The last `lines` of the file, of its last 64 KiB at most; empty where there is no file.

    Bytes that are no UTF-8 are replaced; what the lines hold is foreign all the same.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, size - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    found = text.split("\n")
    if begin:  # Most likely the first line has lost its beginning.
        del found[0]
    if found and not found[-1]:
        del found[-1]
    return found[-lines:]
