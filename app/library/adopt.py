"""Imports or copies a model into the library folder.

The model is checked first, and appears in the library either complete or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from hearth.app.library.errors import DiskFull
from hearth.app.library.local import FoundModel, Library
from hearth.app.library.model_files import (
    PICKLE_SUFFIXES,
    SHARD,
    SUFFIX,
    identity,
    model_at,
    model_files,
    model_paths,
    open_regular,
    stem,
)
from hearth.app.machine import free_disk_bytes
from hearth.app.paths import private_folder
from hearth.backends.errors import HearthError, ModelNotFound
from hearth.quant.gguf import preflight
from hearth.quant.gguf.quantize_file import sync_folder

Way = Literal["copy", "move", "link", "share"]

_CHUNK_BYTES = 8 << 20
_TEMPORARY = re.compile(r"\.import-(\d+)-[0-9a-f]+")
_BAD_NAME = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]|^[.\s]|[.\s]$')
_RESERVE_BYTES = 256 << 20
_FICLONE = 0x40049409
"""From linux/fs.h: makes a file share the extents of another file."""


class ImportRefused(HearthError):
    """A model cannot be imported into the library as requested."""

    code = "import_refused"
    http_status = 400


@dataclass(frozen=True, slots=True)
class Adoption:
    """An import that has been checked but not begun.

    Attributes:
        name: name of the model's file or folder in the library, which also lists the model under
            this name if no other model has it.
        files: source and target path of each file, the first shard first; for a folder that is
            linked to, only the folder itself.
        size_bytes: total size of all files.
        way: copy; move, which leaves nothing behind; link, which leaves the files where they are;
            share, a copy that takes no additional disk space if the file system supports that.
        folder: the library folder.
    """

    name: str
    files: tuple[tuple[Path, Path], ...]
    size_bytes: int
    way: Way
    folder: Path


def plan_adoption(source: Path, library: Library, way: Way = "copy", name: str = "") -> Adoption:
    """The plan for importing the model at `source` into `library`.

    `source` is a GGUF file or a folder that contains one model; a model in safetensors becomes a
    folder in the library. Its complete structure is checked as before loading it, and no shard may
    be missing.

    Args:
        name: name of the model in the library; by default the name of its file.

    Raises:
        ModelNotFound: nothing is at `source`, or the folder contains no model or several.
        UnsupportedModel: the file is a pickle, or no runner supports the model; the error names the
            reason.
        CorruptFile: the model is damaged, or a shard is missing.
        ImportRefused: the name is invalid or already used, or the model is already in the library.
        DiskFull: a copy would not fit; `data` has the needed and the free bytes.
    """
    source = source.expanduser().absolute()
    first = model_at(_model_in(source) if source.is_dir() else source)
    known = {identity(model.path) for model in library.found() if model.origin == "library"}
    if identity(first) in known:
        raise ImportRefused(f"{first} is in the library already.", "`hearth list` shows its name.")
    return _plan(first, library, _name_of(name or stem(first)), way)


def plan_copy(model: FoundModel, library: Library, name: str) -> Adoption:
    """The plan for a copy of `model` called `name` in the library folder.

    If the file system supports it, the copy shares the content: as a reflink, or within the library
    folder as a hard link.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptFile: the model's files are gone or damaged.
        ImportRefused: the model is remote, or the name is invalid or already used.
        DiskFull: a copy would not fit; `data` has the needed and the free bytes.
    """
    if model.remote is not None:
        raise ImportRefused(
            f"{model.name} is on another machine, so it has no files to copy.",
            f'A second [remotes."NAME"] in settings.toml, or an alias, can name it as {name!r}.',
        )
    called = _name_of(name)
    if any(called.lower() == other.name.lower() for other in library.found()):
        raise ImportRefused(
            f"There is a model called {called} already.", "Choose another name for the copy."
        )
    return _plan(model_at(model.path), library, called, "share")


def _plan(first: Path, library: Library, called: str, way: Way) -> Adoption:
    """The checked plan for the model at `first`. Raises as `plan_adoption`."""
    if first.is_dir():
        from hearth.backends.native.model_folder import read_model_folder

        read_model_folder(first)
        paths = model_files(first)
        places = [library.folder / called / path.relative_to(first) for path in paths]
    else:
        paths = [first, *(shard.path for shard in preflight.check(first).shards)]
        places = [library.folder / _file_name(called, path) for path in paths]
    size_bytes = sum(path.stat().st_size for path in paths)
    files = tuple(zip(paths, places, strict=True))
    if first.is_dir() and way == "link":
        files = ((first, library.folder / called),)
    adoption = Adoption(called, files, size_bytes, way, library.folder)
    for target in _tops(adoption):
        if os.path.lexists(target):
            raise ImportRefused(
                f"The library has a file {target.name} already.",
                "Choose another name (`hearth import --name`), or delete that one first.",
            )
    _require_room(adoption)
    return adoption


def adopt(adoption: Adoption, on_progress: Callable[[int], None] = lambda done: None) -> Path:
    """Carry out the plan; returns the model's file or folder in the library.

    Files are written under temporary names, flushed to disk, and then renamed, the first shard
    last, so that a model is in the library either complete or not at all. Files left behind by an
    import that was killed are removed by the next one.

    Args:
        on_progress: called with the number of bytes copied so far.

    Raises:
        ImportRefused: the system does not allow it, a file changed meanwhile, or the target exists
            by now.
    """
    folder = private_folder(adoption.folder)
    _clean(folder)
    temporary = folder / f".import-{os.getpid()}-{secrets.token_hex(4)}"
    temporary.mkdir(mode=0o700)
    try:
        _stage(adoption, temporary, on_progress)
        for target in reversed(_tops(adoption)):
            staged = temporary / target.name
            if staged.is_dir() and not staged.is_symlink():
                sync_folder(staged)
            if os.path.lexists(target):  # Another process may have put a file there.
                raise ImportRefused(
                    f"The library has a file {target.name} by now.",
                    "Import it under another name (`hearth import --name`).",
                )
            staged.rename(target)
        sync_folder(folder)
        if adoption.way == "move":
            _leave(adoption)
    except OSError as error:
        raise ImportRefused(
            f"{error.filename or adoption.name} cannot be imported: {error.strerror}.",
            "This system or file system may know no links: copy it (without --link)."
            if adoption.way == "link"
            else "Check the disk and its permissions.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return _tops(adoption)[0]


def _tops(adoption: Adoption) -> list[Path]:
    """The new entries directly in the library folder: files, or one folder."""
    folder = adoption.folder
    names = (target.relative_to(folder).parts[0] for _, target in adoption.files)
    return [folder / name for name in dict.fromkeys(names)]


def _leave(adoption: Adoption) -> None:
    """Remove the moved files at their old place, and folders that are empty afterwards."""
    for origin, _ in adoption.files:
        origin.unlink(missing_ok=True)
    for origin, target in reversed(adoption.files):
        if target.parent != adoption.folder:
            with contextlib.suppress(OSError):  # The folder is not empty.
                origin.parent.rmdir()


def _stage(adoption: Adoption, temporary: Path, on_progress: Callable[[int], None]) -> None:
    """Put each file into the temporary folder, at the relative path it will have in the library.

    A moved file on the same disk gets a second name, so that nothing is lost if the move is killed.
    """
    done = 0
    for origin, target in adoption.files:
        path = temporary / target.relative_to(adoption.folder)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if adoption.way == "link":
            path.symlink_to(os.path.realpath(origin))
        elif not _shared(adoption, origin, path):
            done = _copy(origin, path, done, on_progress)


def _shared(adoption: Adoption, origin: Path, path: Path) -> bool:
    """Make `path` a file that shares the content of `origin`; returns False if that is impossible.

    Files outside of the library folder are hard-linked only to move them: a model of another
    program with a hard link in the library would be listed as the library's, under one name.
    """
    if adoption.way == "share":
        is_ours = origin.is_relative_to(adoption.folder)
        return _reflink(origin, path) or (is_ours and _second_name(origin, path))
    return adoption.way == "move" and _second_name(origin, path)


def _reflink(origin: Path, path: Path) -> bool:
    """Make `path` a copy that shares the disk blocks of `origin`; False if this is unsupported."""
    if sys.platform != "linux":
        return False
    import fcntl

    with open_regular(origin) as source, path.open("xb") as target:
        try:
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
        except OSError:
            path.unlink()
            return False
        os.fsync(target.fileno())
    return True


def _second_name(origin: Path, path: Path) -> bool:
    """Make `path` a hard link to the file at `origin`; False if impossible, as on another disk."""
    if origin.is_symlink():
        return False
    try:
        path.hardlink_to(origin)
    except OSError:
        return False
    return True


def _copy(origin: Path, path: Path, done: int, on_progress: Callable[[int], None]) -> int:
    """Copy a file and flush it to disk; returns `done` plus its bytes. Raises `ImportRefused`."""
    before = origin.stat()
    with open_regular(origin) as source, path.open("xb") as target:
        while chunk := source.read(_CHUNK_BYTES):
            target.write(chunk)
            done += len(chunk)
            on_progress(done)
        target.flush()
        os.fsync(target.fileno())
        copied = target.tell()
    after = origin.stat()
    if copied != before.st_size or after.st_mtime_ns != before.st_mtime_ns:
        raise ImportRefused(
            f"{origin} changed while it was copied.", "Import it when it is complete."
        )
    return done


def _model_in(folder: Path) -> Path:
    """The only model in `folder`, which may be `folder` itself. Raises as `plan_adoption`."""
    paths = model_paths(folder)
    if len(paths) == 1:
        return paths[0]
    if paths:
        # If the folder itself is one of the models, it can only be named by its weights.
        shown = (next(folder.glob("*.safetensors")) if path == folder else path for path in paths)
        names = ", ".join(path.relative_to(folder).as_posix() for path in islice(shown, 8))
        raise ModelNotFound(f"{folder} holds {len(paths)} models.", f"Import one of them: {names}.")
    try:
        suffixes = {path.suffix.lower() for path in folder.iterdir()}
    except OSError as error:
        raise ModelNotFound(f"{folder} cannot be read: {error.strerror}.") from error
    if SUFFIX in suffixes:
        raise ModelNotFound(
            f"{folder} holds parts of a split model, but not its first.",
            "Put all of its files there, from -00001-of- on.",
        )
    if suffixes & {".safetensors", *PICKLE_SUFFIXES}:
        return model_at(folder)  # Raises an error that names what is missing or refused.
    raise ModelNotFound(f"{folder} holds no model.", "Name the file, or its folder.")


def _name_of(text: str) -> str:
    """`text` as the name of a file. Raises `ImportRefused`."""
    name = text[: -len(SUFFIX)] if text.lower().endswith(SUFFIX) else text
    name = SHARD.sub("", name + SUFFIX)[: -len(SUFFIX)]
    try:
        too_long = len(name.encode()) > 200
    except UnicodeEncodeError:
        too_long = True
    if not name or too_long or _BAD_NAME.search(name):
        raise ImportRefused(
            f"{text[:100]!r} cannot be the name of a model.",
            'A name has up to 200 bytes, without / \\ : * ? " < > |, and neither begins nor ends '
            "with a dot or a space.",
        )
    return name


def _file_name(name: str, path: Path) -> str:
    """The name of the file at `path` in the library."""
    part = SHARD.search(path.name)
    return f"{name}{part[0] if part else ''}{SUFFIX}"


def _require_room(adoption: Adoption) -> None:
    """Raises `DiskFull` unless the copies fit and leave `_RESERVE_BYTES` free."""
    place = adoption.folder
    while not place.exists():
        place = place.parent
    stays_on_disk = adoption.way != "copy" and all(
        not origin.is_symlink()
        and origin.stat().st_dev == place.stat().st_dev
        and (adoption.way == "move" or origin.is_relative_to(adoption.folder))
        for origin, _ in adoption.files
    )
    if adoption.way == "link" or stays_on_disk:
        return
    free_bytes = free_disk_bytes(place)
    needed_bytes = adoption.size_bytes + _RESERVE_BYTES
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"{adoption.name} has {adoption.size_bytes:,} bytes, and {adoption.folder} has "
            f"{free_bytes:,} free, of which {_RESERVE_BYTES:,} must stay.",
            "Free some space, or link to the file, which stays where it is (--link).",
            needed_bytes=needed_bytes,
            free_bytes=free_bytes,
        )


def _clean(folder: Path) -> None:
    """Remove temporary folders of imports whose process is gone."""
    from psutil import pid_exists

    for path in folder.iterdir():
        left = _TEMPORARY.fullmatch(path.name)
        if left is not None and not pid_exists(int(left[1])):
            shutil.rmtree(path, ignore_errors=True)
