"""A lock file that a process holds as long as it runs; the system releases it however the process
ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


class LockFile:
    """An exclusive advisory lock. `acquire` never waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> bool:
        """Try to take the lock; False if another process holds it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._fd = fd
        return True

    def release(self) -> None:
        """Release the lock. The file is not removed, so that no process locks a file that another
        is about to remove.
        """
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
