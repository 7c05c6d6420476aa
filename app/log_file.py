"""Reads the end of a log file without reading the rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

MOST_LINES: Final = 200
_MOST_BYTES: Final = 64 << 10


def tail(path: Path, lines: int = MOST_LINES) -> list[str]:
    """The last `lines` lines of the file, from at most its last 64 KiB; empty without a file.

    Bytes that are not UTF-8 are replaced; the lines are still untrusted text.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(0, size - _MOST_BYTES))
            text = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    rows = text.split("\n")
    if begin:  # The first line is most likely incomplete.
        del rows[0]
    if rows and not rows[-1]:
        del rows[-1]
    return rows[-lines:]
