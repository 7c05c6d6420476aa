"""A large file that appears whole or not at all: a temporary beside it, fsync, rename.

A process that dies leaves a temporary behind, never a file under the final name. The next one that
writes into that folder removes it: a temporary is locked as long as somebody writes it (on Windows
an open file cannot be removed in any case).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hearth.quant.gguf.errors import NoSpace, TargetExists

_MARK = ".quantizing-"
_SUFFIX = ".part"


@contextlib.contextmanager
def new_file(target: Path, size_bytes: int) -> Iterator[BinaryIO]:
    """A temporary of `target`, open for writing; it gets the final name when the block ends well
    and is removed when it does not.

    Args:
        size_bytes: how much room it needs.

    Raises:
        NoSpace: the disk has less room, now or while it is written.
        OSError: the folder cannot be written to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(target.parent)
    check_room(target, size_bytes)
    temporary, stream = _open_temporary(target)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            if sys.platform != "win32":
                # Under its lock: until it has its final name, it must not look left behind.
                _take_name(temporary, target)
        if sys.platform == "win32":
            _take_name(temporary, target)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(target, size_bytes) from error
        raise


def _open_temporary(target: Path) -> tuple[Path, BinaryIO]:
    """A temporary of `target`, locked."""
    while True:
        path = target.with_name(f".{target.name}{_MARK}{secrets.token_hex(4)}{_SUFFIX}")
        stream = path.open("xb")
        # Before it is locked, another process may take it for one that was left behind.
        with contextlib.suppress(BlockingIOError):
            _lock(stream)
            if path.exists():
                return path, stream
        stream.close()


def _take_name(temporary: Path, target: Path) -> None:
    os.replace(temporary, target)
    _sync_folder(target.parent)


def write_json(target: Path, values: Mapping[str, Any]) -> None:
    """`values` as the JSON file `target`, whole or not at all."""
    data = (json.dumps(values, indent=2) + "\n").encode()
    with new_file(target, len(data)) as stream:
        stream.write(data)


def check_target(target: Path, *, replace: bool) -> None:
    """Raises `TargetExists` where something is in the way that must not be replaced."""
    if target.is_dir() or (target.exists() and not replace):
        raise TargetExists(
            f"{target} exists already.",
            "Write to another name (--output), or let it be replaced (--yes).",
            path=str(target),
        )


def check_room(target: Path, size_bytes: int) -> None:
    """Raises `NoSpace` where the disk of `target`'s folder has less room than `size_bytes`."""
    folder = target.parent
    while not folder.exists():
        folder = folder.parent
    if shutil.disk_usage(folder).free < size_bytes:
        raise _no_space(target, size_bytes)


def remove_stale(folder: Path) -> list[Path]:
    """Remove the temporaries in `folder` that nobody writes any more; returns them."""
    removed = []
    for path in folder.glob(f".*{_MARK}*{_SUFFIX}"):
        # Somebody else may be faster, or the folder may not be ours: then they stay.
        with contextlib.suppress(OSError), path.open("r+b") as stream:
            _lock(stream)
            if sys.platform != "win32":
                path.unlink()
        if sys.platform == "win32":
            with contextlib.suppress(OSError):
                path.unlink()
        if not path.exists():
            removed.append(path)
    return removed


def _lock(stream: BinaryIO) -> None:
    """Hold `stream` until it is closed. Raises `OSError` where somebody else does."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync_folder(folder: Path) -> None:
    """Make the rename last, where folders can be synced."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _no_space(target: Path, size_bytes: int) -> NoSpace:
    folder = target.parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return NoSpace(
        f"{target.name} needs {size_bytes:,} bytes, but {folder} has {free:,} free.",
        "Free some space, or write to another folder (--output).",
        needed=size_bytes,
        free=free,
    )


def manifest_path(target: Path) -> Path:
    """Where the manifest of the file `target` lies."""
    return target.with_name(target.name + ".json")
