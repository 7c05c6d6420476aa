"""Which stores are open, and the ends of answers that they could not write to the database.

A store that writes answers holds a lock file next to the database, and records its name with each
answer. The operating system releases the lock however the process ends, including when it is
killed, and after a restart of the machine, when a process id means nothing.

Another file next to the database holds the ends of answers. It gets its full size before the first
answer begins, so that a full disk does not prevent the write. Its two halves are written in turn,
each with a checksum: a crash during a write leaves the previous half valid.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from hearth.app.chats.errors import ChatsUnwritable
from hearth.app.chats.tree import ChatMessage, Numbers
from hearth.backends.contract.messages import ToolCall
from hearth.backends.machine.lock import LockFile

log = logging.getLogger(__name__)

_TRIES: Final = 8
_NAME: Final = re.compile(r"[0-9a-f]{16}")
_HALF_BYTES: Final = 512 << 10
_KEPT: Final = (
    "content",
    "reasoning",
    "tool_calls",
    "state",
    "finish_reason",
    "error",
    "numbers",
)
"""The fields of an answer that its end changes."""
_HEADER: Final = struct.Struct("<QQ32s")
"""Number of the write, length of the JSON in bytes, and its BLAKE2b."""


class Writers:
    """The lock files next to the database at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name: str | None = None
        """This store's name; None until it has written something."""
        self._lock: LockFile | None = None

    def own(self) -> str:
        """The name under which this store writes; the first call creates its lock file.

        Raises:
            ChatsUnwritable: the file system does not support locks.
        """
        for _ in range(_TRIES):
            if self.name is not None:
                return self.name
            name = os.urandom(8).hex()
            file = self._file(name)
            lock = LockFile(file)
            # Before it is locked, another process may take it for a dead store's and remove it.
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
        """Whether the store that writes under `name` is open, in this process or another. Removes
        the lock file of a dead store.
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
        """Remove the lock files of all dead stores."""
        for name in _names(self._file("")):
            self.is_alive(name)

    def release(self) -> None:
        """Release the lock: this store writes no more."""
        if self.name is not None and self._lock is not None:
            self._file(self.name).unlink(missing_ok=True)
            self._lock.release()
            self.name = self._lock = None

    def _file(self, name: str) -> Path:
        return self._path.with_name(f"{self._path.name}-writer-{name}")


class Ending(NamedTuple):
    """An answer that has ended, and the store that wrote it."""

    answer: ChatMessage
    writer: str


class Unsaved:
    """Ended answers that the database at `path` lacks. The caller holds the lock of the
    database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = ""
        self._writes = 0
        self.endings: dict[str, Ending] = {}
        """By message id."""

    def reserve(self, writer: str) -> None:
        """Create the file of this store on the first call. Raises `OSError`, as for a full disk."""
        if self._writer:
            return
        file = os.open(self._file(writer), os.O_WRONLY | os.O_CREAT, 0o600)
        with os.fdopen(file, "wb") as writing:
            writing.write(bytes(2 * _HALF_BYTES))
        self._writer = writer

    def keep(self, ending: Ending) -> None:
        """Add an ending. If the file cannot be written either, that is logged."""
        self.endings[ending.answer.id] = ending
        self._write()

    def forget(self, saved: Sequence[Ending]) -> None:
        """Remove the endings that are now in the database."""
        for ending in saved:
            if self.endings.get(ending.answer.id) is ending:
                del self.endings[ending.answer.id]
        for writer in {ending.writer for ending in saved} - {self._writer}:
            self._file(writer).unlink(missing_ok=True)
        if saved:
            self._write()

    def recover(self, is_alive: Callable[[str], bool]) -> None:
        """Add the endings that killed stores left in their files."""
        for name in _names(self._file("")):
            if not is_alive(name):
                endings = _read(self._file(name))
                self.endings |= {ending.answer.id: ending for ending in endings}
                if not endings:
                    self._file(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the file of this store, unless endings are left for the next start."""
        if self._writer and not self.endings:
            self._file(self._writer).unlink(missing_ok=True)

    def _file(self, writer: str) -> Path:
        return self._path.with_name(f"{self._path.name}-unsaved-{writer}")

    def _write(self) -> None:
        if not self._writer:
            return
        own = [_plain(each) for each in self.endings.values() if each.writer == self._writer]
        body = json.dumps(own).encode()
        file = self._file(self._writer)
        try:
            with file.open("r+b") as writing:
                writing.seek(self._writes % 2 * _HALF_BYTES)
                writing.write(_HEADER.pack(self._writes + 1, len(body), _digest(body)) + body)
                writing.flush()
                os.fsync(writing.fileno())
            self._writes += 1
        except OSError as error:
            log.warning("%s cannot be written: %s", file, error.strerror)


def _read(file: Path) -> list[Ending]:
    """The endings in the newer valid half of `file`."""
    whole = file.read_bytes()
    newest, endings = 0, list[Ending]()
    for start in (0, _HALF_BYTES):
        head = whole[start : start + _HEADER.size]
        number, length, digest = _HEADER.unpack(head.ljust(_HEADER.size, b"\0"))
        body = whole[start + _HEADER.size :][:length]
        if number > newest and _digest(body) == digest:
            newest, endings = number, [_ending(**fields) for fields in json.loads(body)]
    return endings


def _plain(ending: Ending) -> dict[str, Any]:
    """The fields of an ended answer, and its writer."""
    fields = asdict(ending.answer)
    plain = {name: fields[name] for name in _KEPT}
    return {"message": ending.answer.id, "writer": ending.writer, **plain}


def _ending(
    message: str,
    writer: str,
    tool_calls: list[Any],
    numbers: dict[str, Any] | None,
    **fields: Any,
) -> Ending:
    calls = tuple(ToolCall(**call) for call in tool_calls)
    measured = Numbers(**numbers) if numbers else None
    kept = {"tool_calls": calls, "numbers": measured, **fields}
    return Ending(ChatMessage(message, None, "assistant", **kept), writer)


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=32).digest()


def _names(prefix: Path) -> Iterator[str]:
    """The remainders of the names of the files whose names begin with `prefix`."""
    for file in prefix.parent.glob(f"{glob.escape(prefix.name)}*"):
        yield file.name.removeprefix(prefix.name)
