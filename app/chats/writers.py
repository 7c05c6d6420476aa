"""`Writers`: which stores live, so that answers under way are told from those that were cut off.

A store that writes answers holds a lock file next to the database, whose name it notes with each
answer. The system frees the lock however the process ends, also of a killed one, and also after a
restart of the machine, when the number of a process means nothing.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import Final

from hearth.app.chats.errors import ChatsUnwritable
from hearth.backends.lock import LockFile

_TRIES: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{16}")


class Writers:
    """The lock files next to the database at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name: str | None = None
        """The own one; None: this store has written nothing yet."""
        self._lock: LockFile | None = None

    def own(self) -> str:
        """The name under which this store writes; its lock file is made at the first call.

        Raises:
            ChatsUnwritable: the file system has no locks.
        """
        for _ in range(_TRIES):
            if self.name is not None:
                return self.name
            name = os.urandom(8).hex()
            file = self._file(name)
            lock = LockFile(file)
            # Another process may take it for a dead one's and remove it, before it is locked.
            if lock.acquire() and file.exists():
                self.name, self._lock = name, lock
                return name
            lock.release()
            file.unlink(missing_ok=True)
        raise ChatsUnwritable(
            f"No file can be locked in {self._path.parent}.",
            "Keep the chats on a local disk: set HEARTH_HOME to a folder there.",
        )

    def is_alive(self, name: str) -> bool:
        """The store that writes under `name` is open, in this process or another one. The file of
        a dead one is removed.
        """
        file = self._file(name)
        if not _NAME.fullmatch(name) or not file.exists():
            return False
        lock = LockFile(file)
        if not lock.acquire():
            return True
        file.unlink(missing_ok=True)
        lock.release()
        return False

    def clear(self) -> None:
        """Remove the files of all that are dead."""
        prefix = self._file("").name
        for file in self._path.parent.glob(f"{glob.escape(prefix)}*"):
            self.is_alive(file.name.removeprefix(prefix))

    def release(self) -> None:
        """This store writes no more."""
        if self.name is not None and self._lock is not None:
            self._file(self.name).unlink(missing_ok=True)
            self._lock.release()
            self.name = self._lock = None

    def _file(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}-writer-{name}")
