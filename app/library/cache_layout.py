"""The layout of the cache that Hugging Face's tools share.

A repository is the folder `models--<organisation>--<name>/`. Contents are in `blobs/<etag>`, each
commit's files are links to them in `snapshots/<commit>/<path>`, and `refs/<revision>` contains the
commit that a revision stood for. This is described in huggingface_hub's "Understand caching". An
incomplete download of Hearth is `blobs/<etag>.part`, next to its journal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.app.library.errors import UnsafeName
from hearth.app.paths import HOME_VARIABLE, find_paths

_CACHE_VARIABLES: Final = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
_REPO_ID: Final = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?", re.ASCII)
_ETAG: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_BAD_ON_WINDOWS: Final = re.compile(
    r'[<>:"|?*\\]|[. ]$|^(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)', re.IGNORECASE
)
_MOST_PATH_BYTES: Final = 1000 if sys.platform == "darwin" else 4000
"""A little less than PATH_MAX, because files with longer names are created next to a file."""
_MOST_NAME_BYTES: Final = 255
"""The limit of common file systems; some allow less."""


def hub_cache(environ: Mapping[str, str] | None = None) -> Path:
    """The folder for downloads.

    It is `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or `cache/huggingface/hub` in `HEARTH_HOME`, or
    else the cache that all programs share.
    """
    environ = os.environ if environ is None else environ
    home = environ.get(HOME_VARIABLE)
    if not home or any(environ.get(variable) for variable in (*_CACHE_VARIABLES, "HF_HOME")):
        return shared_hub_cache(environ)
    return find_paths(environ).cache / "huggingface" / "hub"


def shared_hub_cache(environ: Mapping[str, str]) -> Path:
    """The user's cache, located as huggingface_hub does.

    It is `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or `huggingface/hub` in the user's cache folder.
    """
    for variable in _CACHE_VARIABLES:
        if environ.get(variable):
            return _folder(environ[variable])
    home = environ.get("HF_HOME")
    if not home:
        base = environ.get("XDG_CACHE_HOME") or str(Path("~", ".cache"))
        home = str(Path(base, "huggingface"))
    return _folder(home) / "hub"


def _folder(text: str) -> Path:
    return Path(os.path.expandvars(text)).expanduser().absolute()


@dataclass(frozen=True, slots=True)
class RepositoryCache:
    """The part of a cache that belongs to one model's repository; it need not exist.

    Raises `UnsafeName` if a name from the Hub would lead outside of it.
    """

    cache: Path
    repo_id: str

    def __post_init__(self) -> None:
        if not _REPO_ID.fullmatch(self.repo_id) or "--" in self.repo_id or ".." in self.repo_id:
            raise UnsafeName(f"{self.repo_id!r} is not the name of a repository.")
        self._check_length(self._name)

    @property
    def folder(self) -> Path:
        """`models--<organisation>--<name>`."""
        return self.cache / self._name

    @property
    def _name(self) -> str:
        return "--".join(["models", *self.repo_id.split("/")])

    def blob(self, etag: str) -> Path:
        """The content with the checksum `etag`; it exists only if it is complete and verified."""
        if not _ETAG.fullmatch(etag):
            raise UnsafeName(f"{etag!r} of {self.repo_id} is no checksum.")
        return self.folder / "blobs" / etag

    def part(self, etag: str) -> Path:
        """The incomplete content."""
        return self.blob(etag).with_name(f"{etag}.part")

    def journal(self, etag: str) -> Path:
        """The journal of the ranges of `part` that have been written."""
        return self.blob(etag).with_name(f"{etag}.part.journal")

    def lock(self, etag: str) -> Path:
        """The lock of the process that writes the content; huggingface_hub uses the same file."""
        return self.cache / ".locks" / self._name / f"{self.blob(etag).name}.lock"

    def snapshot(self, commit: str) -> Path:
        """The folder of a commit's files."""
        if not _COMMIT.fullmatch(commit):
            raise UnsafeName(f"{commit!r} of {self.repo_id} is no commit.")
        return self.folder / "snapshots" / commit

    def file(self, commit: str, path: str) -> Path:
        """The file that other programs open.

        Raises `UnsafeName` also for names that the file system cannot store.
        """
        parts = path.split("/")
        for part in parts:
            if part in ("", ".", "..") or not _is_usable(part):
                raise UnsafeName(
                    f"{path[:200]!r} of {self.repo_id} is not a name for a file on this machine.",
                    "Choose another file of the repository, or download it by other means.",
                )
            self._check_length(part)
        file = self.snapshot(commit).joinpath(*parts)
        if len(os.fsencode(file)) > _MOST_PATH_BYTES:
            raise UnsafeName(
                f"{path[:60]!r}… of {self.repo_id} makes a path of {len(os.fsencode(file))} bytes, "
                f"more than {_MOST_PATH_BYTES}.",
                "Choose another file of the repository, or a shorter HF_HUB_CACHE.",
            )
        return file

    def _check_length(self, name: str) -> None:
        size_bytes, most_bytes = len(os.fsencode(name)), _most_name_bytes(self.cache)
        if size_bytes > most_bytes:
            raise UnsafeName(
                f"{name[:60]!r}… of {self.repo_id} is a name of {size_bytes} bytes, and the file "
                f"system of {self.cache} takes {most_bytes}.",
                "Choose another file of the repository, or download it by other means.",
                size_bytes=size_bytes,
            )

    def is_there(self, commit: str, path: str) -> bool:
        """Whether the commit's file exists, and so is complete."""
        return self.file(commit, path).exists()

    def place(self, commit: str, path: str, etag: str) -> Path:
        """Make `blob(etag)` the commit's file, and return the file.

        The file is a symbolic link. If the file system does not support these (or
        `HF_HUB_DISABLE_SYMLINKS` is set), it is a hard link; if that is unsupported too, the
        content itself is moved.
        """
        from hearth.quant.gguf.quantize_file import sync_folder

        blob, file = self.blob(etag), self.file(commit, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists():
            return file
        file.unlink(missing_ok=True)  # A link to a content that was removed.
        try:
            if os.environ.get("HF_HUB_DISABLE_SYMLINKS", "").upper() in ("1", "ON", "YES", "TRUE"):
                raise OSError("links are switched off")
            file.symlink_to(os.path.relpath(blob, file.parent))
        except OSError:
            try:
                file.hardlink_to(blob)
            except OSError:
                os.replace(blob, file)
        sync_folder(file.parent)
        return file

    def set_revision(self, revision: str, commit: str) -> None:
        """Record that `revision` (a branch or tag) stands for `commit`."""
        if revision == commit:
            return
        refs = self.folder / "refs"
        reference = refs.joinpath(*revision.split("/"))
        if any(part in ("", ".", "..") for part in revision.split("/")):
            raise UnsafeName(f"{revision!r} is no revision.")
        reference.parent.mkdir(parents=True, exist_ok=True)
        fresh = reference.with_name(f"{reference.name}.{os.getpid()}.tmp")
        fresh.write_text(commit, encoding="ascii")
        os.replace(fresh, reference)


def _is_usable(name: str) -> bool:
    """Whether `name` is free of control characters and of names that this system reserves."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    is_reserved = sys.platform == "win32" and _BAD_ON_WINDOWS.search(name) is not None
    return not is_reserved and _CONTROL.search(name) is None


def _most_name_bytes(folder: Path) -> int:
    """The longest name, in bytes, on the file system of `folder`, which need not exist."""
    if sys.platform == "win32":
        return _MOST_NAME_BYTES
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return min(_MOST_NAME_BYTES, os.pathconf(folder, "PC_NAME_MAX"))
    except (OSError, ValueError):
        return _MOST_NAME_BYTES
