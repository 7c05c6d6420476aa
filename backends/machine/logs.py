"""Log files of the host and its workers: private, appended to, and kept small."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 4 << 20


def open_log(path: Path) -> BinaryIO:
    """`path` open for appending, 0600; a file that has grown past `MAX_LOG_BYTES` becomes
    `<name>.1` first (on Windows once nobody has it open).
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
