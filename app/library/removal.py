"""Deletes models in two steps: a plan of what is deleted and freed, then the deletion.

Files are deleted only in the library folder and in the Hugging Face cache, into which Hearth
downloads. Models that other programs store must be deleted with these.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hearth.app.format import argument
from hearth.app.library.evaluation import report_path
from hearth.app.library.local import FoundModel, Library
from hearth.app.library.model_files import files_of, identity, read_start
from hearth.app.library.quantized import read_manifest
from hearth.backends.contract.models import heads_path
from hearth.backends.errors import HearthError
from hearth.quant.gguf.quantize_file import manifest_path

_REFUSALS: Final = {
    "bundled": ("comes with Hearth", "It leaves when Hearth is uninstalled."),
    "remote": (
        "is on another machine",
        'Take [remotes."{name}"] out of settings.toml to see it no more.',
    ),
    "ollama": ("belongs to Ollama", "Delete it there: ollama rm {argument}"),
    "lmstudio": ("belongs to LM Studio", "Delete it there, among its models on disk."),
    "llama.cpp": (
        "is in the cache of llama.cpp",
        "Delete the file yourself if llama.cpp needs it no more: {path}",
    ),
}
"""By origin, why a model is not deleted, and what to do instead."""


class NotRemovable(HearthError):
    """Hearth must not delete, or cannot delete, a model; the hint is what to do instead."""

    code = "not_removable"
    http_status = 409


@dataclass(frozen=True, slots=True)
class Removal:
    """The plan of deleting a model.

    Attributes:
        name: the model's name.
        paths: files and links to delete.
        frees_bytes: disk space that is freed; files that have another hard link free none.
        keeps: a sentence about each thing that, perhaps unexpectedly, is not deleted.
        folder: the library folder, or the repository's folder in the Hugging Face cache; nothing
            outside of it is deleted.
        is_cached: whether the model is in the Hugging Face cache.
    """

    name: str
    paths: tuple[Path, ...]
    frees_bytes: int
    keeps: tuple[str, ...]
    folder: Path
    is_cached: bool


def plan_removal(model: FoundModel, library: Library, deleted: Collection[Path] = ()) -> Removal:
    """The plan of deleting `model`; nothing is deleted yet.

    Args:
        deleted: paths of other removals that will happen before this one.

    Raises:
        NotRemovable: the model is bundled, remote, another program's, or outside of the library.
    """
    if model.origin == "library":
        return _checked(_planned(model, library.folder, deleted, is_cached=False))
    if model.origin == "huggingface":
        for source in library.sources:
            if source.store == "huggingface" and model.path.is_relative_to(source.folder):
                repository = source.folder / model.path.relative_to(source.folder).parts[0]
                return _checked(_planned(model, repository, deleted, is_cached=True))
    raise NotRemovable(*refusal(model), name=model.name, origin=model.origin)


def remove(removal: Removal) -> None:
    """Delete the paths of `removal`, and folders that are then empty. The model must not be loaded.

    Raises:
        NotRemovable: a file cannot be deleted; the paths before it are already deleted.
    """
    for path in _checked(removal).paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise NotRemovable(
                f"{path} cannot be deleted: {error.strerror}.",
                "Close the programs that use it, and check the folder's permissions.",
            ) from error
    for path in removal.paths:
        _prune(path.parent, removal.folder)
    if removal.is_cached:
        _forget_revisions(removal.folder)


def refusal(model: FoundModel) -> tuple[str, str]:
    """Why `model` is not deleted, and what to do instead."""
    why, what_to_do = _REFUSALS.get(
        model.origin, ("is not in Hearth's library", "Delete the file yourself: {path}")
    )
    hint = what_to_do.format(name=model.name, argument=argument(model.name), path=model.path)
    return f"{model.name} {why}.", hint


def _checked(removal: Removal) -> Removal:
    """`removal`. Raises `NotRemovable` if a path is outside of its folder."""
    for path in removal.paths:
        if not _is_below(path, removal.folder):
            raise NotRemovable(
                f"{path} is reached from {removal.folder} by a link, and is outside of it.",
                "Delete that link, or the file, yourself.",
            )
    return removal


def _planned(
    model: FoundModel, folder: Path, deleted: Collection[Path], *, is_cached: bool
) -> Removal:
    """The plan for the model's files, Medusa heads, report and manifest.

    In the cache, also each blob that no other file of the repository links to.
    """
    is_folder = model.path.is_dir()
    is_linked_folder = is_folder and model.path.is_symlink()
    files = [model.path] if is_linked_folder else files_of(model.path)
    used: set[tuple[int, int] | None] = set()
    blobs: dict[tuple[int, int] | None, Path] = {}
    about = [] if is_folder else [heads_path(model.path)]
    if not is_cached:
        about.append(report_path(model.path))
        # A JSON file with the name of a folder may be anything.
        if not is_folder or {"recipe", "result"} <= read_manifest(model.path).keys():
            about.append(manifest_path(model.path))
    files += filter(Path.is_file, about)
    if is_cached:
        ours = {*files, *deleted}
        used = {identity(path) for path in _files(folder / "snapshots") if path not in ours}
        blobs = {identity(path): path for path in _files(folder / "blobs")}
    paths, keeps, frees_bytes = list(files), [], 0
    for path in files:
        blob = blobs.get(identity(path))
        if identity(path) in used:
            keeps.append(f"{path.name} stays in another revision of {model.repo}.")
        elif blob is None and path.is_symlink():
            what = "folder" if path.is_dir() else "file"
            keeps.append(
                f"{path.name} is a link; the {what} it leads to stays: {os.path.realpath(path)}."
            )
        else:
            names = 1 if path.is_symlink() or blob is None else 2
            if blob is not None:
                paths.append(blob)
            try:
                content = path.stat()
            except OSError:  # It is gone.
                continue
            if content.st_nlink > names:
                keeps.append(f"{path.name} has another name elsewhere, under which it stays.")
            else:
                frees_bytes += content.st_size
    return Removal(model.name, tuple(paths), frees_bytes, tuple(keeps), folder, is_cached)


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        yield from (Path(root, name) for name in names)


def _is_below(path: Path, folder: Path) -> bool:
    """Whether `path` is in `folder` after resolving all links except the last part of `path`."""
    place = Path(os.path.realpath(path.parent), path.name)
    return place != folder and place.is_relative_to(os.path.realpath(folder))


def _prune(folder: Path, root: Path) -> None:
    """Remove `folder` and its parents below `root`, as far as they are empty."""
    while folder != root and _is_below(folder, root):
        try:
            folder.rmdir()
        except OSError:  # Not empty, or already removed.
            return
        folder = folder.parent


def _forget_revisions(repository: Path) -> None:
    """Remove references to commits that have no files, and the repository's folder if empty."""
    snapshots = repository / "snapshots"
    kept = {path.name for path in snapshots.iterdir()} if snapshots.is_dir() else set()
    for path in _files(repository / "refs"):
        try:
            commit = read_start(path, 64).decode("ascii", "replace").strip()
        except OSError:
            continue
        if commit not in kept:
            _delete(path, repository)
    for path in _files(repository / ".no_exist"):
        if path.relative_to(repository / ".no_exist").parts[0] not in kept:
            _delete(path, repository)
    if not kept:
        for name in ("snapshots", "refs", "blobs", ".no_exist", ""):
            with suppress(OSError):  # An incomplete download, or another program's file.
                (repository / name).rmdir()


def _delete(path: Path, root: Path) -> None:
    path.unlink(missing_ok=True)
    _prune(path.parent, root)
