"""The files of the disk tier: one per part of a prefix, in a folder that all models of a user
share, within one budget.

`<folder>/<model>/<owner>/<start>-<ident>.kv`: `model` is a digest of everything that keys and
values depend on besides tokens, `owner` is a digest of the session that computed them, so that a
chat is deleted by deleting its folders. Does not import numpy, because front ends list and delete
these files.
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
"""Name of the folder, in the user's cache folder."""
NAME_FILE: Final = "model"
"""File in the folder of a model that contains its display name."""
_MAGIC: Final = b"HearthKV"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIIIQQ16s16s")
"""Magic, version, start, number of tokens, bytes of `meta` and of the data, hash of the data,
parent, ident. The tokens follow (int32), then `meta`, a hash of all that (8 bytes), and the data.
"""
_HASH_BYTES: Final = 8
_PIECE: Final = 512 << 10
"""Bytes that are read at once. Reading whole parts takes 1.5 times as long: they are no longer in
the CPU cache when they are hashed, and the disk waits for the hashing."""
_READ_FIRST: Final = 16 << 10
"""Bytes read first for a header; the headers of most parts are shorter."""
_TEMPORARY: Final = "writing"
"""File name of a part that is being written. If the holder of the lock finds one, a process was
killed while writing it."""
_SPARE: Final = 1 / 32
"""Fraction of the budget that is freed beyond what is needed, so that not every write has to evict.
"""
_LOCK_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.005


class Damaged(Exception):
    """A file is not a complete part as it was written."""


@dataclass(slots=True, eq=False)
class DiskPart:
    """The keys and values of `tokens`, which follow the first `start` tokens of a prefix."""

    path: Path
    parent: bytes
    """`ident` of the part before it, which may extend beyond `start`."""
    ident: bytes
    start: int
    tokens: array[int]
    meta: bytes
    """The store's description of the data."""
    nbytes: int
    """Bytes of the keys and values."""
    checksum: int = 0
    data_at: int = 0
    is_durable: bool = False
    """It is completely written and can be read."""

    @property
    def owner(self) -> str:
        return self.path.parent.name

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


def owner_of(session: str) -> str:
    """Name of the folder of `session`, in the folder of each model."""
    return hashlib.blake2b(session.encode(), digest_size=12).hexdigest()


def ident_of(parent: bytes, start: int, tokens: array[int]) -> bytes:
    """The name of a part, which identifies all tokens up to its end."""
    said = b"%b %d %b" % (parent, start, tokens.tobytes())
    return hashlib.blake2b(said, digest_size=16).digest()


def read_part(path: Path) -> DiskPart:
    """The part in `path`, without its data.

    Raises:
        Damaged: it is not a part, its size does not match its header, or its header was changed.
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
    tokens = _little(array(TOKEN_TYPE, said[tokens_at:meta_at]))
    if ident != ident_of(parent, start, tokens) or path.name != part_name(start, ident):
        raise Damaged(f"{path} is not the part that it says it is")
    return DiskPart(
        *(path, parent, ident, start, tokens, said[meta_at:], nbytes, checksum, data_at), True
    )


class PartData:
    """The data of a part, read from its file on demand."""

    def __init__(self, part: DiskPart) -> None:
        self._part = part

    @property
    def nbytes(self) -> int:
        return self._part.nbytes

    def read(self, places: Iterable[memoryview]) -> None:
        """Read all data into `places`, one after the other. Each piece is hashed while it is in the
        CPU cache.

        Args:
            places: C-contiguous, with `nbytes` bytes in total.

        Raises:
            Damaged: the data differ from what was written; `places` contain invalid data.
            OSError: the data cannot be read.
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
        """Read the data into the system's page cache; stops early when `is_over` returns True.

        Raises:
            OSError: the data cannot be read.
        """
        with self._part.path.open("rb", buffering=0) as file:
            file.seek(self._part.data_at)
            while not is_over() and file.readinto(scratch):
                pass


class KvFolder:
    """All parts of this user on disk.

    A part gets its final name only when it is complete, and room within the budget is made before
    its first byte is written, so both hold even if a process is killed. The least recently used
    parts are evicted first, and among those the last ones of a prefix.

    Args:
        path: of the folder; created on the first write, in a parent that must exist.
        budget_bytes: maximum bytes of all files in it.
    """

    def __init__(self, path: Path, budget_bytes: int) -> None:
        self.path = path
        self._budget = budget_bytes
        self._known: tuple[bytes, int] | None = None
        """The mark that the last change by this object left in the folder, and the total bytes
        then.
        """

    def write(self, part: DiskPart, data: memoryview) -> list[Path]:
        """Write `part`, then set its `checksum` and `data_at`; returns the evicted files.

        Raises:
            OSError: it cannot be written; nothing is left behind. `FileNotFoundError`: the folder
                of its owner no longer exists.
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
        """Create the folder of `owner` for `model`, whose display name is `name`.

        Raises:
            OSError: it cannot be created.
        """
        folder = self.path / model
        for path in (self.path, folder, folder / owner):
            path.mkdir(mode=0o700, exist_ok=True)
        named = folder / NAME_FILE
        if not named.exists():
            named.write_text(name, encoding="utf-8", errors="replace")

    def made(self, model: str) -> tuple[int, int] | None:
        """An identity of the folder of `model`, which changes if it is deleted and created again;
        None if there is no folder.
        """
        try:
            status = (self.path / model / NAME_FILE).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def scan(self, model: str) -> list[DiskPart]:
        """Every part of `model`; damaged files are deleted."""
        parts = []
        for path in (self.path / model).glob("*/*.kv"):
            try:
                parts.append(read_part(path))
            except (Damaged, OSError):
                with suppress(OSError):
                    path.unlink()
        return parts

    @staticmethod
    def latest(parts: Iterable[DiskPart]) -> list[DiskPart]:
        """The parts of the owner whose part was used last.

        Raises:
            OSError: a file no longer exists.
        """
        parts = list(parts)
        if not parts:
            return []
        owner = max(parts, key=lambda part: part.path.stat().st_mtime_ns).owner
        return [part for part in parts if part.owner == owner]

    @staticmethod
    def touch(parts: Iterable[DiskPart]) -> None:
        """Mark `parts` as used now."""
        now = time.time_ns()
        for part in parts:
            with suppress(OSError):
                os.utime(part.path, ns=(now, now))

    def delete(self, session: str) -> None:
        """Delete the parts of `session` for all models.

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
        """Delete the parts of `model`, or of all models; returns the number of freed bytes.

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
        """For each owner's parts: model, display name, owner, number of files, and bytes."""
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
        """Make room for `nbytes` more and count them; returns evicted files. Requires the lock."""
        if nbytes > self._budget:
            raise OSError(f"{nbytes:,} bytes are more than the budget of {self._budget:,}")
        marked = self.path / "mark"
        mark = marked.read_bytes() if marked.exists() else b""
        held = self._known[1] if self._known is not None and self._known[0] == mark else None
        evicted: list[Path] = []
        if held is None or held + nbytes > self._budget:
            # Least recently used first; among those, parts with the most tokens before them.
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
        marked.write_bytes(mark)  # Before the change: a kill during it leaves a new mark.
        self._known = mark, held + nbytes
        return evicted

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock, so that no other process writes or deletes.

        Raises:
            OSError: the lock cannot be acquired.
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


def part_name(start: int, ident: bytes) -> str:
    """Name of the file of a part."""
    return f"{start:08x}-{ident.hex()}.kv"


def _header(part: DiskPart, checksum: int) -> bytes:
    head = _HEAD.pack(
        *(_MAGIC, _VERSION, part.start, len(part.tokens), len(part.meta), part.nbytes, checksum),
        *(part.parent, part.ident),
    )
    said = head + _little(part.tokens).tobytes() + part.meta
    return said + _digest(said)


def _digest(said: bytes) -> bytes:
    """Hash of a header."""
    return hashlib.blake2b(said, digest_size=_HASH_BYTES).digest()


def _checksum(data: memoryview) -> int:
    """Checksum of keys and values. XXH3 takes half the time of reading them, `zlib.crc32` more than
    that (docs/decisions/0016).
    """
    from xxhash import xxh3_64_intdigest

    return int(xxh3_64_intdigest(data))


def _little(tokens: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return tokens
    swapped = array(TOKEN_TYPE, tokens)
    swapped.byteswap()
    return swapped


def _write_all(file: int, data: memoryview) -> None:
    at = 0
    while at < len(data):
        at += os.write(file, data[at:])


def _sizes(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """Path, time of last use (ns) and bytes of all parts below `folder`, including partly written
    ones.
    """
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
