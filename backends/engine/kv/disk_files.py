"""The files of the disk tier: one for each part of a prefix, in a folder that all models of a user
share, within one budget.

`<folder>/<model>/<owner>/<start>-<ident>.kv`: `model` is a digest of everything that keys and
values depend on besides tokens, `owner` one of the session that computed them, so that all of a
chat is deleted with its folders. Imports no numpy: front ends list and delete what is here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.backends.engine.kv.tree import TOKEN_TYPE
from hearth.backends.machine.lock import LockFile

FOLDER: Final = "kv"
"""Of the user's cache folder."""
NAME_FILE: Final = "model"
"""In the folder of a model: what people call it."""
_MAGIC: Final = b"HearthKV"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIIIQQ16s16s")
"""Magic, version, start, tokens, bytes of `meta` and of the data, hash of the data, parent, ident.
The tokens follow (int32), `meta`, a hash of all that (8 bytes), then the data.
"""
_HASH_BYTES: Final = 8
_PIECE: Final = 512 << 10
"""Bytes that are read at once. Whole parts take half as long again: they are not in the processor's
cache any more when they are hashed, and the disk waits for that."""
_READ_FIRST: Final = 16 << 10
"""Of a file whose header is read: the headers of most parts are shorter."""
_TEMPORARY: Final = "writing"
"""A part that is being written. Who has the lock and finds one finds what a process left that
was killed."""
_SPARE: Final = 1 / 32
"""Of the budget is freed beyond what is needed, so that not every part looks for what to evict."""
_LOCK_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.005


class Damaged(Exception):
    """This file is no complete part as it was written."""


@dataclass(slots=True, eq=False)
class DiskPart:
    """The keys and values of `tokens`, which follow the first `start` tokens of a prefix."""

    path: Path
    parent: bytes
    """`ident` of the part before it, which may have more tokens than those before `start`."""
    ident: bytes
    start: int
    tokens: array[int]
    meta: bytes
    """What the store says of `data`."""
    nbytes: int
    """Of the keys and values."""
    checksum: int = 0
    data_at: int = 0
    is_durable: bool = False
    """It can be read."""

    @property
    def owner(self) -> str:
        return self.path.parent.name

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


def owner_of(session: str) -> str:
    """The folder of what `session` computed, in the folder of each model."""
    return hashlib.blake2b(session.encode(), digest_size=12).hexdigest()


def ident_of(parent: bytes, start: int, tokens: array[int]) -> bytes:
    """The name of a part, which stands for all tokens up to its end."""
    said = b"%b %d %b" % (parent, start, tokens.tobytes())
    return hashlib.blake2b(said, digest_size=16).digest()


def read_part(path: Path) -> DiskPart:
    """The part in `path`, without its data.

    Raises:
        Damaged: it is none, or not as long as it says, or its header was changed.
        OSError: it cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_READ_FIRST)
        if len(head) < _HEAD.size or head[:8] != _MAGIC:
            raise Damaged(f"{path} is no part")
        _, version, start, count, meta, nbytes, checksum, parent, ident = _HEAD.unpack_from(head)
        tokens_at, meta_at = _HEAD.size, _HEAD.size + 4 * count
        data_at = meta_at + meta + _HASH_BYTES
        if version != _VERSION or size != data_at + nbytes:
            raise Damaged(f"{path} has {size} bytes")
        while len(head) < data_at and (more := file.read(data_at - len(head))):
            head += more
    said = head[: data_at - _HASH_BYTES]
    if _digest(said) != head[data_at - _HASH_BYTES : data_at]:
        raise Damaged(f"the header of {path} was changed")
    tokens = _int32(said[tokens_at:meta_at])
    if ident != ident_of(parent, start, tokens) or path.name != _name(start, ident):
        raise Damaged(f"{path} is not the part that it says it is")
    return DiskPart(
        *(path, parent, ident, start, tokens, said[meta_at:], nbytes, checksum, data_at), True
    )


class PartData:
    """The data of a part, which are read from its file when they are wanted."""

    def __init__(self, part: DiskPart) -> None:
        self._part = part

    @property
    def nbytes(self) -> int:
        return self._part.nbytes

    def read(self, places: Iterable[memoryview]) -> None:
        """Read all of it into `places`, one after the other. Each piece is hashed while it is in
        the processor's cache.

        Args:
            places: C-contiguous; they have `nbytes` bytes together.

        Raises:
            Damaged: the data are not what was written; `places` have something else now.
            OSError: they cannot be read.
        """
        from xxhash import xxh3_64  # Only workers that write or read need it.

        part, checksum = self._part, xxh3_64()
        with part.path.open("rb", buffering=0) as file:
            file.seek(part.data_at)
            for place in places:
                view = place.cast("B")
                while view and (count := file.readinto(view[:_PIECE])):
                    checksum.update(view[:count])
                    view = view[count:]
        if checksum.intdigest() != part.checksum:
            raise Damaged(f"the data of {part.path} were changed")

    def read_ahead(self, scratch: memoryview, is_over: Callable[[], bool]) -> None:
        """Have the data in the system's page cache, unless `is_over` before.

        Raises:
            OSError: they cannot be read.
        """
        with self._part.path.open("rb", buffering=0) as file:
            file.seek(self._part.data_at)
            while not is_over() and file.readinto(scratch):
                pass


class KvFolder:
    """All parts on disk of this user.

    What is written is at its name only when it is complete, and there is room for it within the
    budget before its first byte is written: nothing that ends a process changes that. The parts
    that were used least recently make way, of those the last of a prefix first.

    Args:
        path: of the folder; made when something is written, in one that exists.
        budget_bytes: most that all files in it may take.
    """

    def __init__(self, path: Path, budget_bytes: int) -> None:
        self.path = path
        self._budget = budget_bytes
        self._known: tuple[bytes, int] | None = None
        """The mark that the last change of this object left in the folder, and the bytes then."""

    def write(self, part: DiskPart, data: memoryview) -> list[Path]:
        """Write `part`, and set what is known of it only then; returns the files that made way.

        Raises:
            OSError: it cannot be written, which leaves nothing behind; `FileNotFoundError`: the
                folder of its owner is gone.
        """
        checksum = _checksum(data)
        said = _header(part, checksum)
        temporary = part.path.with_name(_TEMPORARY)
        with self._locked():
            evicted = self._make_room(len(said) + part.nbytes)
            try:
                file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                try:
                    _write_all(file, memoryview(said))
                    _write_all(file, data)
                    os.fsync(file)
                finally:
                    os.close(file)
                os.replace(temporary, part.path)
            except OSError:
                temporary.unlink(missing_ok=True)
                self._known = None
                raise
        part.checksum, part.data_at = checksum, len(said)
        return evicted

    def begin(self, model: str, owner: str, name: str) -> None:
        """Have a folder for what `owner` computes with `model`, which people call `name`.

        Raises:
            OSError: it cannot be made.
        """
        folder = self.path / model
        for path in (self.path, folder, folder / owner):
            path.mkdir(mode=0o700, exist_ok=True)
        named = folder / NAME_FILE
        if not named.exists():
            named.write_text(name, encoding="utf-8", errors="replace")

    def made(self, model: str) -> tuple[int, int] | None:
        """What tells the folder of `model` from one that is made after it was deleted; None: there
        is none.
        """
        try:
            found = (self.path / model / NAME_FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def scan(self, model: str) -> list[DiskPart]:
        """Every part of `model`; what is damaged is deleted."""
        found = []
        for path in _files(self.path / model):
            try:
                found.append(read_part(path))
            except (Damaged, OSError):
                with suppress(OSError):
                    path.unlink()
        return found

    @staticmethod
    def latest(parts: Iterable[DiskPart]) -> list[DiskPart]:
        """Those of the owner whose part was used last.

        Raises:
            OSError: one is gone.
        """
        parts = list(parts)
        if not parts:
            return []
        owner = max(parts, key=lambda part: part.path.stat().st_mtime_ns).owner
        return [part for part in parts if part.owner == owner]

    @staticmethod
    def touch(parts: Iterable[DiskPart]) -> None:
        """These are used now."""
        now = time.time_ns()
        for part in parts:
            with suppress(OSError):
                os.utime(part.path, ns=(now, now))

    def delete(self, session: str) -> None:
        """Delete what `session` computed with any model.

        Raises:
            OSError: something cannot be deleted.
        """
        folders = list(self.path.glob(f"*/{owner_of(session)}"))
        if folders:
            with self._locked():
                self._known = None
                for folder in folders:
                    shutil.rmtree(folder)

    def clear(self, model: str = "*") -> int:
        """Delete what was computed with `model`, or all; returns how many bytes.

        Raises:
            OSError: something cannot be deleted.
        """
        folders = [folder for folder in self.path.glob(model) if folder.is_dir()]
        if not folders:
            return 0
        with self._locked():
            self._known = None
            freed = sum(size for folder in folders for _, _, size in _sizes(folder))
            for folder in folders:
                shutil.rmtree(folder)
        return freed

    def usage(self) -> list[tuple[str, str, str, int, int]]:
        """Model, what people call it, owner, files and bytes of each owner's parts."""
        rows = []
        for folder in sorted(path for path in self.path.glob("*/*") if path.is_dir()):
            sizes = [size for _, _, size in _sizes(folder)]
            try:
                name = (folder.parent / NAME_FILE).read_text(encoding="utf-8", errors="replace")
            except OSError:
                name = ""
            rows.append((folder.parent.name, name, folder.name, len(sizes), sum(sizes)))
        return rows

    def _make_room(self, nbytes: int) -> list[Path]:
        """Have room for `nbytes` more, which are counted then. Only with the lock."""
        if nbytes > self._budget:
            raise OSError(f"{nbytes:,} bytes are more than the budget of {self._budget:,}")
        marked = self.path / "mark"
        mark = marked.read_bytes() if marked.exists() else b""
        held = self._known[1] if self._known is not None and self._known[0] == mark else None
        evicted: list[Path] = []
        if held is None or held + nbytes > self._budget:
            # The least recently used first, of those the ones with the most tokens before them.
            files = sorted(_sizes(self.path), key=lambda file: file[0].name, reverse=True)
            files.sort(key=lambda file: file[1])
            held = 0
            for path, _, size in files:
                if path.name == _TEMPORARY:
                    path.unlink(missing_ok=True)
                else:
                    held += size
            if held + nbytes > self._budget:
                spare = min(self._budget * _SPARE, self._budget - nbytes)
                for path, _, size in files:
                    if held + nbytes + max(spare, 0) <= self._budget:
                        break
                    if path.name != _TEMPORARY:
                        path.unlink(missing_ok=True)
                        evicted.append(path)
                        held -= size
        mark = os.urandom(16)
        marked.write_bytes(mark)  # Before the change: who is killed in it leaves another mark.
        self._known = mark, held + nbytes
        return evicted

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep all others from writing and deleting.

        Raises:
            OSError: the lock cannot be had.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        lock = LockFile(self.path / "lock")
        until = time.monotonic() + _LOCK_WAIT_S
        while not lock.acquire():
            if time.monotonic() > until:
                raise TimeoutError(f"{self.path} is locked by another process")
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            lock.release()


def part_path(folder: Path, start: int, ident: bytes) -> Path:
    """Where a part is in the `folder` of its owner."""
    return folder / _name(start, ident)


def _name(start: int, ident: bytes) -> str:
    return f"{start:08x}-{ident.hex()}.kv"


def _header(part: DiskPart, checksum: int) -> bytes:
    head = _HEAD.pack(
        *(_MAGIC, _VERSION, part.start, len(part.tokens), len(part.meta), part.nbytes, checksum),
        *(part.parent, part.ident),
    )
    said = head + _little(part.tokens).tobytes() + part.meta
    return said + _digest(said)


def _digest(said: bytes) -> bytes:
    """Of a header."""
    return hashlib.blake2b(said, digest_size=_HASH_BYTES).digest()


def _checksum(data: memoryview) -> int:
    """Of keys and values. XXH3 takes half the time of reading them, `zlib.crc32` more than that
    (docs/decisions/0016).
    """
    from xxhash import xxh3_64_intdigest

    return int(xxh3_64_intdigest(data))


def _little(tokens: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return tokens
    swapped = array(TOKEN_TYPE, tokens)
    swapped.byteswap()
    return swapped


def _int32(data: bytes) -> array[int]:
    return _little(array(TOKEN_TYPE, data))


def _write_all(file: int, data: memoryview) -> None:
    at = 0
    while at < len(data):
        at += os.write(file, data[at:])


def _files(folder: Path) -> Iterator[Path]:
    """The parts of one model."""
    return folder.glob("*/*.kv")


def _sizes(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """Path, time of the last use and bytes of all parts below `folder`, half-written ones too."""
    pending = [str(folder)]
    while pending:
        with suppress(FileNotFoundError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.name.endswith(".kv") or entry.name == _TEMPORARY:
                    with suppress(FileNotFoundError):
                        stat = entry.stat(follow_symlinks=False)
                        yield Path(entry.path), stat.st_mtime_ns, stat.st_size
