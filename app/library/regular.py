"""Opening what may be anything: a FIFO, a socket or a device is refused and never waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """The file at `path`, or where links lead from there, to be read.

    Raises:
        OSError: it cannot be opened, or is not a regular file (`errno.EINVAL`).
    """
    # A FIFO without a writer would keep `open` waiting. For regular files the flag has no effect.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags | getattr(os, "O_NOCTTY", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_start(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of the file at `path`, or all of it. Raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read(most_bytes)
