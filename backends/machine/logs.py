"""Log files of the host and its workers: private, appended to, and kept small."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

MAX_LOG_BYTES = 4 << 20


def open_log(path: Path) -> BinaryIO:
    """Open `path` for appending, with mode 0600. A file larger than `MAX_LOG_BYTES` is first
    renamed to `<name>.1` (on Windows only when no process has it open).
    """
    with contextlib.suppress(FileNotFoundError, PermissionError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
