"""Writes a large file that appears complete or not at all; an interrupted run can be resumed.

While `NAME` is written, its bytes are in `.NAME.quantizing.part`. `.NAME.quantizing.journal`
describes them, with one JSON object per line: first what the file is made from, then for each
complete part (the header, each tensor) its end and the SHA-256 of the file up to there. The next
run that makes the same file from the same input continues after the last part with a correct
checksum. A kill loses the part in progress; a power failure also loses what was written in the last
second. The writing process holds a lock on the journal, which keeps its name until the file is
complete. A file that was only announced (`announce`) has a journal with an empty `made_of`.

A folder with large files is written in the same way, as one stream: files after the first are in
`.NAME.quantizing.part-2` and so on. Its other files are written last, in `.NAME.quantizing.folder`,
which is then renamed to `NAME`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import shutil
import sys
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, Final

from hearth.quant.errors import CorruptFile
from hearth.quant.gguf.errors import BeingWritten, NoSpace, TargetExists
from hearth.quant.methods import Check

_PART: Final = ".quantizing.part"
_JOURNAL: Final = ".quantizing.journal"
_FOLDER: Final = ".quantizing.folder"
_REPLACED: Final = ".quantizing.replaced"
_EXTRA: Final = "extra"
"""Key in the first line of a journal: JSON values of the program that announced the file."""
_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")
"""A folder of weights contains one of these files."""
_SYNC_EVERY_S: Final = 1.0
_READ_BYTES: Final = 4 << 20
_LOCK_S: Final = 1.0
_LOCK_AT: Final = 1 << 30
"""The byte of a journal that is locked on Windows: past its end, since other processes cannot read
a locked byte."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A file that was begun but is not complete.

    Attributes:
        request: source, type and options, as JSON values.
        done_bytes: bytes of the result that are written.
        share: share of the work that is done, from 0 to 1.
        is_running: whether a process is writing it now.
        extra: the `extra` of `announce`.
    """

    target: Path
    request: dict[str, Any]
    done_bytes: int
    share: float
    is_running: bool
    extra: dict[str, Any]


def unfinished_in(folder: Path) -> list[Unfinished]:
    """The files in `folder` that were begun but are not complete, sorted by name."""
    unfinished = []
    for path in filter(Path.is_file, sorted(folder.glob(f".*{_PART}"))):
        target = path.with_name(path.name[1 : -len(_PART)])
        journal = _journal_path(target)
        with contextlib.suppress(OSError), journal.open("rb") as stream:
            is_running = not _lock(stream)
            entries = _read_journal(journal)
            if entries:
                begin, last = entries[0], entries[-1]
                done, share = last.get("end", 0), float(last.get("share", 0.0))
                extra = begin.get(_EXTRA, {})
                unfinished.append(
                    Unfinished(target, begin["request"], done, share, is_running, extra)
                )
    return unfinished


def announce(target: Path, request: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Record that the file `target` will be made, so that `unfinished_in` lists it. Does nothing if
    it was already begun.

    Args:
        request: the same as for `open_partial`.
        extra: JSON values that are kept in the journal until the file is complete.

    Raises:
        BeingWritten: another process is writing the file.
        OSError: the folder cannot be written to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with _open_locked(target):
        entries = _read_journal(_journal_path(target))
        if not (entries and entries[0]["made_of"]):
            begin = {"request": request, "size_bytes": 0, "made_of": {}, _EXTRA: extra}
            _journal_path(target).write_bytes(_line(begin))
            _open_part(_part_path(target)).close()


def discard(target: Path) -> None:
    """Delete the unfinished file `target`. Raises `BeingWritten` if a process is writing it."""
    if _parts_of(target) or _journal_path(target).exists():
        with _open_locked(target) as journal:
            if sys.platform == "win32":
                journal.close()
            for path in _parts_of(target):
                path.unlink()
            shutil.rmtree(_beside(target, _FOLDER), ignore_errors=True)
            _journal_path(target).unlink(missing_ok=True)


class _Joined:
    """Files that are read and written as one stream.

    Args:
        streams: open files, the first one positioned at its beginning.
        sizes: final sizes in bytes of all files but the last.
    """

    def __init__(self, streams: Sequence[BinaryIO], sizes: Sequence[int]) -> None:
        self._streams = streams
        self._ends = list(accumulate(sizes))
        self._at = 0

    def tell(self) -> int:
        return self._at

    def seek(self, place: int) -> None:
        self._at = place
        number, begin = self._place()
        self._streams[number].seek(place - begin)

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes: fewer at the end of a file, and none at the end of the last
        file or where a file is truncated.
        """
        number, begin = self._place()
        if number < len(self._ends):
            count = min(count, self._ends[number] - self._at)
        self._streams[number].seek(self._at - begin)
        data = self._streams[number].read(count)
        self._at += len(data)
        return data

    def write(self, data: bytes | memoryview) -> None:
        while len(data):
            number, begin = self._place()
            left = self._ends[number] - self._at if number < len(self._ends) else len(data)
            if self._at == begin:
                self._streams[number].seek(0)
            self._streams[number].write(data[:left])
            self._at += min(left, len(data))
            data = data[left:]

    def truncate(self) -> None:
        """Delete everything after the current position."""
        number, begin = self._place()
        for later, stream in enumerate(self._streams[number:]):
            stream.truncate(0 if later else self._at - begin)

    def flush(self, *, to_disk: bool = False) -> None:
        for stream in self._streams:
            stream.flush()
            if to_disk:
                os.fsync(stream.fileno())

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _place(self) -> tuple[int, int]:
        """The index of the file at the current position, and its start in the stream."""
        number = bisect_right(self._ends, self._at)
        return number, self._ends[number - 1] if number else 0


class Partial:
    """A file that is being written in parts, or several files as one stream; use `open_partial`.

    Attributes:
        path: the path of the first file's bytes until it is complete.
        parts: number of complete parts.
        facts: the recorded facts of each complete part, JSON values.
        note: a sentence about an earlier attempt; empty if there was none.
    """

    def __init__(self, target: Path, stream: _Joined, journal: BinaryIO) -> None:
        self.path = _part_path(target)
        self.parts = 0
        self.facts: list[dict[str, Any]] = []
        self.note = ""
        self._target = target
        self._stream = stream
        self._journal = journal
        self._digest = hashlib.sha256()
        self._synced_at = time.monotonic()

    @property
    def sha256(self) -> str:
        """Digest of everything written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`."""
        self._stream.write(data)
        self._digest.update(data)

    def read(self, start: int, count: int) -> bytes:
        """`count` written bytes from `start` on."""
        at, content = self._stream.tell(), b""
        self._stream.seek(start)
        while len(content) < count and (data := self._stream.read(count - len(content))):
            content += data
        self._stream.seek(at)
        return content

    def end_part(
        self, name: str, facts: Mapping[str, Any] | None = None, *, share: float = 0.0
    ) -> None:
        """Record that the part `name` is complete, and that `share` of all work is done. A run that
        resumes gets `facts` back.
        """
        self._stream.flush()
        self.parts += 1
        self.facts.append(dict(facts or {}))
        end = self._stream.tell()
        entry = {"part": name, "end": end, "share": round(share, 4), "sha256": self.sha256}
        self._note(entry | ({"facts": self.facts[-1]} if facts else {}))
        if time.monotonic() - self._synced_at >= _SYNC_EVERY_S:
            self.sync()

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        self._stream.flush(to_disk=True)
        os.fsync(self._journal.fileno())
        self._synced_at = time.monotonic()

    def begin(self, begin: Mapping[str, Any], check: Check) -> None:
        """Continue after the complete parts, or start over if they were made from other input."""
        entries = _read_journal(_journal_path(self._target))
        before = entries[0]["made_of"] if entries else {}
        extra = {_EXTRA: entries[0][_EXTRA]} if entries and _EXTRA in entries[0] else {}
        if not before:
            entries = []
        changed = [key for key, value in begin["made_of"].items() if before.get(key) != value]
        valid_bytes = 0
        if entries and changed:
            name = self._target.name
            self.note = f"Starting over: the {changed[0]} changed since {name} was begun."
            entries = []
        elif entries:
            for entry in entries[1:]:
                valid = self._digest.copy()
                if not self._read_part(entry, check):
                    self._digest = valid
                    break
                self.parts += 1
                self.facts.append(entry.get("facts", {}))
                valid_bytes = entry["end"]
            written = f"{valid_bytes:,} of {begin['size_bytes']:,} bytes"
            self.note = f"Resuming {self._target.name}: {written} are written."
            if self.parts < len(entries) - 1:
                self.note += " What follows is damaged and is written again."
        self._journal.truncate(sum(len(_line(entry)) for entry in entries[: self.parts + 1]))
        self._stream.seek(valid_bytes)
        self._stream.truncate()
        if not entries:
            self._note({**begin, **extra})

    def _read_part(self, entry: Mapping[str, Any], check: Check) -> bool:
        """Hash the bytes up to the end of the part; False if they are not what was written."""
        left = entry["end"] - self._stream.tell()
        while left > 0:
            check()
            data = self._stream.read(min(left, _READ_BYTES))
            if not data:
                return False
            self._digest.update(data)
            left -= len(data)
        return bool(self.sha256 == entry["sha256"])

    def _note(self, entry: Mapping[str, Any]) -> None:
        self._journal.write(_line(entry))
        self._journal.flush()

    def finish(self) -> None:
        """Rename the file to its final name. All of it must have been written and synced."""
        if sys.platform == "win32":
            self._stream.close()
            self._journal.close()
        os.replace(self.path, self._target)
        sync_folder(self._target.parent)
        _journal_path(self._target).unlink(missing_ok=True)

    def finish_folder(self, names: Sequence[str], files: Mapping[str, bytes | Path]) -> None:
        """Make the folder from the written files, which get `names`, and from `files`: contents, or
        paths to copy from, by their paths in the folder. Everything must have been written and
        synced.
        """
        target, folder = self._target, _beside(self._target, _FOLDER)
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as stream:
                if isinstance(content, Path):
                    with content.open("rb") as source:
                        shutil.copyfileobj(source, stream)
                else:
                    stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        if sys.platform == "win32":
            self._stream.close()
            self._journal.close()
        # The first one is moved last, since unfinished files are found by it.
        for number, name in reversed(list(enumerate(names))):
            os.replace(_part_path(target, number), folder / name)
        sync_folder(folder)
        replaced = _beside(target, _REPLACED)
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            os.replace(target, replaced)
        os.replace(folder, target)
        sync_folder(target.parent)
        _journal_path(target).unlink(missing_ok=True)
        shutil.rmtree(replaced, ignore_errors=True)


@contextlib.contextmanager
def open_partial(target: Path, begin: Mapping[str, Any], check: Check) -> Iterator[Partial]:
    """The partial file of `target`, positioned after the complete parts. They are kept if the block
    is left before `Partial.finish`.

    Args:
        begin: JSON values: `request`; `size_bytes` of the result; `made_of`, the inputs that its
            bytes depend on, by name; and, for a folder, `files`, the names and sizes of the large
            files.

    Raises:
        BeingWritten: another process is writing the file.
        NoSpace: the disk has too little free space, now or while the file is written.
        OSError: the folder cannot be written to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    files: Sequence[tuple[str, int]] = begin.get("files") or [(target.name, 0)]
    finished = [_beside(target, _FOLDER) / name for name, _ in files]
    paths = [_part_path(target, number) for number in range(len(files))]
    written = [one.stat().st_size for one in (*finished, *_parts_of(target)) if one.exists()]
    check_room(target, begin["size_bytes"] - sum(written))
    try:
        with contextlib.ExitStack() as opened:
            journal = opened.enter_context(_open_locked(target))
            for one, path in zip(finished, paths, strict=True):
                if one.exists() and not path.exists():
                    os.replace(one, path)
            for path in _parts_of(target):
                if path not in paths:
                    path.unlink()
            streams = [opened.enter_context(_open_part(path)) for path in paths]
            joined = _Joined(streams, [size for _, size in files[:-1]])
            partial = Partial(target, joined, journal)
            partial.begin(begin, check)
            yield partial
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(target, begin["size_bytes"]) from error
        raise


def _open_locked(target: Path) -> BinaryIO:
    """The journal of `target`, locked until it is closed. Raises `BeingWritten`."""
    path = _journal_path(target)
    give_up_at = time.monotonic() + _LOCK_S
    while True:
        stream = path.open("ab")
        while not _lock(stream):  # `unfinished_in` holds the lock for a moment.
            if time.monotonic() >= give_up_at:
                stream.close()
                raise BeingWritten(
                    f"Another process is writing {target}.",
                    "Wait until it ends, or write to another name (--output).",
                    path=str(target),
                )
            time.sleep(0.05)
        # The process that held the lock may have deleted the journal in the meantime.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                return stream
        stream.close()


def _open_part(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")


def _read_journal(path: Path) -> list[dict[str, Any]]:
    """The complete entries, of which the first is about the whole file; empty if there are none."""
    entries: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                entry = json.loads(line)
                if entries:
                    str(entry["sha256"]), entry["end"] + 0, entry.get("share", 0) + 0
                else:
                    dict(entry["request"]), dict(entry["made_of"]), entry["size_bytes"] + 0
                    dict(entry.get(_EXTRA, {}))
            except (ValueError, LookupError, TypeError):
                break
            entries.append(entry)
    return entries


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _part_path(target: Path, number: int = 0) -> Path:
    return _beside(target, f"{_PART}-{number + 1}" if number else _PART)


def _parts_of(target: Path) -> list[Path]:
    """The existing part files of `target`."""
    name = glob.escape(_part_path(target).name)
    return [*target.parent.glob(name), *target.parent.glob(f"{name}-*")]


def _journal_path(target: Path) -> Path:
    return _beside(target, _JOURNAL)


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}{ending}")


def write_json(target: Path, values: Mapping[str, Any]) -> None:
    """Write `values` to the JSON file `target`, completely or not at all. Only one process may
    write it at a time.
    """
    temporary = _beside(target, ".tmp")  # A file left behind by a kill is overwritten.
    try:
        with temporary.open("wb") as stream:
            stream.write((json.dumps(values, indent=2) + "\n").encode())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(target.parent)


def check_target(target: Path, *, replace: bool, is_folder: bool = False) -> None:
    """Raises `TargetExists` if `target` exists and must not be replaced.

    Args:
        is_folder: the target is a folder, which may replace only a folder of weights.
    """
    exists = target.exists()
    has_weights = any((target / name).is_file() for name in _WEIGHTS)
    can_replace = has_weights if is_folder else not target.is_dir()
    if exists and not (replace and can_replace):
        raise TargetExists(
            f"{target} exists already.",
            "Write to another name (--output), or let it be replaced (--yes).",
            path=str(target),
        )


def stamps(files: Iterable[Path]) -> list[list[int]]:
    """Size, time and inode of each file, which reveal that it was changed or replaced."""
    statuses = [path.stat() for path in files]
    return [[one.st_size, one.st_mtime_ns, one.st_ino] for one in statuses]


def check_unchanged(source: Path, files: Iterable[Path], before: Sequence[Sequence[int]]) -> None:
    """Raises `CorruptFile` if the stamps of the `files` of `source` are not those `before`."""
    if stamps(files) != before:
        raise CorruptFile(
            f"{source.name} changed while the model was quantized.",
            "Wait until no program writes it, then start again.",
            path=str(source),
        )


def check_room(target: Path, size_bytes: int) -> None:
    """Raises `NoSpace` if the disk of `target`'s folder has less free space than `size_bytes`."""
    if shutil.disk_usage(_existing_folder(target)).free < size_bytes:
        raise _no_space(target, size_bytes)


def _lock(stream: BinaryIO) -> bool:
    """Lock `stream` until it is closed; False if another process has locked it."""
    fd = stream.fileno()
    if sys.platform == "win32":
        import msvcrt

        position = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, _LOCK_AT, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(fd, position, os.SEEK_SET)
    else:
        import fcntl

        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power failure, on systems where folders can be synced."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _existing_folder(target: Path) -> Path:
    folder = target.parent
    while not folder.exists():
        folder = folder.parent
    return folder


def _no_space(target: Path, size_bytes: int) -> NoSpace:
    folder = _existing_folder(target)
    free = shutil.disk_usage(folder).free
    return NoSpace(
        f"{target.name} needs {size_bytes:,} bytes, but {folder} has {free:,} free.",
        "Free some space and start again, or write to another folder (--output).",
        needed=size_bytes,
        free=free,
    )


def manifest_path(target: Path) -> Path:
    """The path of the manifest of the file `target`."""
    return target.with_name(target.name + ".json")
