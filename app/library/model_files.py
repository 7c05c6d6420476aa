"""What a model is on a disk, a GGUF file or a folder of safetensors, and what it is called."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SUFFIX: Final = ".gguf"
WEIGHTS: Final = ".safetensors"
INDEX: Final = "model.safetensors.index.json"
CONFIG: Final = "config.json"
SHARD: Final = re.compile(r"-(\d{5})-of-\d{5}(?=\.gguf$)", re.IGNORECASE)
BESIDE_WEIGHTS: Final = frozenset(
    {
        CONFIG,
        INDEX,
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "chat_template.json",
        "chat_template.jinja",
    }
)
"""Names of files that belong to a model in safetensors, next to its weights."""
_POOLING: Final = "1_Pooling/config.json"
"""Belongs to models that make vectors."""
_TEMPLATE: Final = re.compile(r"additional_chat_templates/[A-Za-z0-9_.-]+\.jinja")
"""Chat templates by their names, except the default one."""
MAX_DEPTH: Final = 8
MAX_ENTRIES: Final = 100_000
_ADAPTER: Final = "adapter_model.safetensors"
_HUB_PREFIX: Final = "models--"


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the regular file or folder behind `path`; None if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    is_usable = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return (found.st_dev, found.st_ino) if is_usable else None


def stem(path: Path) -> str:
    """The name of a model: of a file without suffix and part number, of a folder its own, or that
    of its repository in the Hugging Face cache, where folders are called by commits.
    """
    name = SHARD.sub("", path.name)
    if name.lower().endswith(SUFFIX):
        return name[: -len(SUFFIX)]
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith(_HUB_PREFIX):
        return repository.rpartition("--")[2]
    return name


def has_quant(path: Path, quant: str) -> bool:
    """The name of the model says that it is of type `quant`, such as Q4_K_M; a folder is of type
    "safetensors".
    """
    if not path.name.lower().endswith(SUFFIX):
        return quant.lower() == WEIGHTS[1:]
    return bool(re.search(rf"(?:^|[-._]){re.escape(quant)}$", stem(path), re.IGNORECASE))


def is_model_folder(folder: Path) -> bool:
    """`folder` holds a model in safetensors: a configuration and weights, whether complete or
    not.
    """
    return _holds_model(entries(folder))


def model_files(folder: Path) -> list[Path]:
    """The files in `folder` that belong to its model in safetensors; the configuration comes
    first.
    """
    own = [
        entry.name
        for entry in entries(folder)
        if (entry.name in BESIDE_WEIGHTS or entry.name.endswith(WEIGHTS)) and is_file(entry)
    ]
    found = [folder / name for name in sorted(own, key=lambda name: (name != CONFIG, name))]
    below = [folder / _POOLING, *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    return found + [
        path
        for path in below
        if is_below_weights(path.relative_to(folder).as_posix()) and path.is_file()
    ]


def is_below_weights(path: str) -> bool:
    """Whether the file at `path`, in a folder within one of safetensors, belongs to its model."""
    return path == _POOLING or _TEMPLATE.fullmatch(path) is not None


def model_paths(root: Path) -> list[Path]:
    """The models at and below `root`, sorted: GGUF files, of a split model the first, and folders
    of safetensors. Such folders within one are parts of it, and no models; neither is a FIFO,
    socket or device, whatever its name.

    Looks `MAX_DEPTH` levels deep and at `MAX_ENTRIES` entries at most, into no hidden folder, and
    into no folder twice, so that links in a circle end.
    """
    found: list[Path] = []
    pending = [(root, 0, False)]
    visited: set[tuple[int, int] | None] = {None}
    seen = 0
    while pending:
        folder, depth, is_part = pending.pop()
        place = identity(folder)
        if place in visited:
            continue
        visited.add(place)
        inside = entries(folder)
        if not is_part and _holds_model(inside):
            found.append(folder)
            is_part = True
        for entry in inside:
            seen += 1
            if seen > MAX_ENTRIES:
                return sorted(found)
            if entry.name.lower().endswith(SUFFIX) and is_file(entry):
                part = SHARD.search(entry.name)
                if part is None or int(part[1]) == 1:
                    found.append(Path(entry.path))
            elif depth < MAX_DEPTH and not entry.name.startswith(".") and _is_folder(entry):
                pending.append((Path(entry.path), depth + 1, is_part))
    return sorted(found)


def entries(folder: Path) -> Sequence[os.DirEntry[str]]:
    """What is in `folder`, by name; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (OSError, ValueError):
        return ()


def is_file(entry: os.DirEntry[str]) -> bool:
    """A regular file, or a link to one or to nothing; opening anything else may wait forever."""
    try:
        return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:
        return entry.is_symlink()


def _holds_model(inside: Sequence[os.DirEntry[str]]) -> bool:
    return any(entry.name == CONFIG and is_file(entry) for entry in inside) and any(
        entry.name.endswith(WEIGHTS) and entry.name != _ADAPTER and is_file(entry)
        for entry in inside
    )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
