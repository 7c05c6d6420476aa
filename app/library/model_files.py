"""Recognizes models on a disk, GGUF files or folders of safetensors, and their names.

Other files are refused with the reason. Files are opened in a way that refuses a FIFO, a socket or
a device, and never waits for one.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

from hearth.backends.errors import CorruptFile, ModelNotFound, UnsupportedModel

SUFFIX: Final = ".gguf"
WEIGHTS: Final = ".safetensors"
INDEX: Final = "model.safetensors.index.json"
CONFIG: Final = "config.json"
SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
BESIDE_WEIGHTS: Final = frozenset(
    {
        CONFIG,
        INDEX,
        "generation_config.json",
        "quantize_config.json",
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
"""Belongs to embedding models."""
_TEMPLATE: Final = re.compile(r"additional_chat_templates/[A-Za-z0-9_.-]+\.jinja")
"""Named chat templates, except the default one."""
MAX_DEPTH: Final = 8
MAX_ENTRIES: Final = 100_000
_ADAPTER: Final = "adapter_model.safetensors"
_HUB_PREFIX: Final = "models--"
PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_GGUF_MAGIC: Final = b"GGUF"
_ZIP_MAGIC: Final = b"PK\x03\x04"  # torch.save writes a zip archive that contains a pickle.
_PICKLE_STARTS: Final = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_USE_ANOTHER: Final = "Take the model as safetensors or GGUF; most repositories have one of them."


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the regular file or folder behind `path`; None if there is none."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    is_usable = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return (status.st_dev, status.st_ino) if is_usable else None


def stem(path: Path) -> str:
    """The name of a model.

    The name of a file without suffix and part number, or of a folder; in the Hugging Face cache,
    where folders are named by commits, the name of the repository.
    """
    name = SHARD.sub("", path.name)
    if name.lower().endswith(SUFFIX):
        return name[: -len(SUFFIX)]
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith(_HUB_PREFIX):
        return repository.rpartition("--")[2]
    return name


def has_quant(path: Path, quant: str) -> bool:
    """Whether the model's name contains the type `quant`, such as Q4_K_M.

    The type of a folder is "safetensors".
    """
    if not path.name.lower().endswith(SUFFIX):
        return quant.lower() == WEIGHTS[1:]
    return bool(re.search(rf"(?:^|[-._]){re.escape(quant)}$", stem(path), re.IGNORECASE))


def is_model_folder(folder: Path) -> bool:
    """Whether `folder` has a model in safetensors: a configuration and weights, complete or not."""
    return _holds_model(entries(folder))


def model_files(folder: Path) -> list[Path]:
    """The files in `folder` that belong to its model in safetensors, the configuration first."""
    own = [
        entry.name
        for entry in entries(folder)
        if (entry.name in BESIDE_WEIGHTS or entry.name.endswith(WEIGHTS)) and is_file(entry)
    ]
    beside = [folder / name for name in sorted(own, key=lambda name: (name != CONFIG, name))]
    below = [folder / _POOLING, *sorted(folder.glob("additional_chat_templates/*.jinja"))]
    return beside + [
        path
        for path in below
        if is_below_weights(path.relative_to(folder).as_posix()) and path.is_file()
    ]


def files_of(path: Path) -> list[Path]:
    """The files of the model at `path`; for a split model, `path` and the existing other parts."""
    if path.is_dir():
        return model_files(path)
    part = SHARD.search(path.name)
    if part is None:
        return [path]
    head, tail = path.name[: part.start(1)], path.name[part.end(1) :]
    parts = [path.with_name(f"{head}{n:05d}{tail}") for n in range(1, int(part[2]) + 1)]
    return [path, *(one for one in parts if one != path and os.path.lexists(one))]


def is_below_weights(path: str) -> bool:
    """Whether `path`, a file in a subfolder of a folder of safetensors, belongs to the model."""
    return path == _POOLING or _TEMPLATE.fullmatch(path) is not None


def model_paths(root: Path) -> list[Path]:
    """The models at and below `root`, sorted: GGUF files and folders of safetensors.

    A split model is listed by its first file. Folders of safetensors within another are parts of
    it, not models. A FIFO, socket or device is never a model, whatever its name.

    The search is limited to `MAX_DEPTH` levels and `MAX_ENTRIES` entries. Hidden folders are
    skipped, and no folder is visited twice, so that circular links end.
    """
    paths: list[Path] = []
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
            paths.append(folder)
            is_part = True
        for entry in inside:
            seen += 1
            if seen > MAX_ENTRIES:
                return sorted(paths)
            if is_model_file(entry):
                paths.append(Path(entry.path))
            elif depth < MAX_DEPTH and not entry.name.startswith(".") and _is_folder(entry):
                pending.append((Path(entry.path), depth + 1, is_part))
    return sorted(paths)


def is_model_file(entry: os.DirEntry[str]) -> bool:
    """Whether `entry` is a GGUF file; of a split model, only the first part is."""
    part = SHARD.search(entry.name)
    is_first = part is None or int(part[1]) == 1
    return is_first and entry.name.lower().endswith(SUFFIX) and is_file(entry)


def entries(folder: Path) -> Sequence[os.DirEntry[str]]:
    """The entries of `folder`, sorted by name; empty if it cannot be read."""
    try:
        with os.scandir(folder) as scan:
            return sorted(scan, key=lambda entry: entry.name)
    except (OSError, ValueError):
        return ()


def is_file(entry: os.DirEntry[str]) -> bool:
    """Whether `entry` is a regular file, or a link to one or to nothing.

    Opening anything else may wait forever.
    """
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


def open_regular(path: Path) -> BinaryIO:
    """Open the file at `path`, following links, for reading.

    Raises:
        OSError: the file cannot be opened, or is not a regular file (`errno.EINVAL`).
    """
    # A FIFO without a writer would keep `open` waiting. For regular files the flag has no effect.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags | getattr(os, "O_NOCTTY", 0))
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def read_start(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of the file at `path`, or all of it. Raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read(most_bytes)


def model_at(path: Path) -> Path:
    """The model that `path` refers to.

    It is a file that starts like a GGUF file, a folder with a configuration and safetensors, or the
    folder of such a safetensors file. Only the beginning is checked here; the rest is checked
    before loading.

    Raises:
        ModelNotFound: nothing is at `path`.
        UnsupportedModel: a pickle, a folder without a model, or something else; the error names the
            reason.
        CorruptFile: the file is named .gguf, but does not start like one.
    """
    if path.is_dir():
        if not is_model_folder(path):
            raise _no_model_in(path)
        return path
    start = _start_of(path)
    if start.startswith(_GGUF_MAGIC):
        return path
    suffix = path.suffix.lower()
    if suffix in PICKLE_SUFFIXES or start.startswith((*_PICKLE_STARTS, _ZIP_MAGIC)):
        raise UnsupportedModel(
            f"{path} is refused: a file of this kind (pickle) can run any code when it is loaded.",
            _USE_ANOTHER,
        )
    if suffix == WEIGHTS:
        if is_model_folder(path.parent):
            return path.parent
        raise UnsupportedModel(
            f"{path} is a safetensors file without the {CONFIG} of a model next to it.",
            f"Put {CONFIG} and tokenizer.json of the same model into its folder.",
        )
    if suffix == SUFFIX:
        raise CorruptFile(
            f"{path} is not a GGUF file: it starts with {start[:4].hex(' ') or 'nothing'} in "
            "place of "
            f"{_GGUF_MAGIC.hex(' ')}.",
            field="magic",
        )
    raise UnsupportedModel(f"{path} is not a model file that this version can run.", _USE_ANOTHER)


def _start_of(path: Path) -> bytes:
    """The first bytes of a file. Raises `ModelNotFound`."""
    try:
        return read_start(path, 16)
    except FileNotFoundError:
        raise ModelNotFound(
            f"There is no file {path}.", "Check the path.", path=str(path)
        ) from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise UnsupportedModel(
                f"{path} is not a regular file, but a FIFO, socket or device.", _USE_ANOTHER
            ) from error
        raise ModelNotFound(
            f"{path} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error


def _no_model_in(folder: Path) -> UnsupportedModel:
    """The error for a folder without a model, depending on the files in it."""
    names = [entry.name for entry in entries(folder)]
    suffixes = {Path(name).suffix.lower() for name in names}
    if SUFFIX in suffixes:
        return UnsupportedModel(
            f"{folder} is a folder with GGUF files.", "Name the .gguf file in it."
        )
    if WEIGHTS in suffixes:
        return UnsupportedModel(
            f"{folder} has safetensors, but not the {CONFIG} of a model.",
            f"Put {CONFIG} and tokenizer.json of the same model into it.",
        )
    if suffixes & set(PICKLE_SUFFIXES):
        return UnsupportedModel(
            f"{folder} holds pickle files, which can run any code when they are loaded: refused.",
            _USE_ANOTHER,
        )
    return UnsupportedModel(
        f"{folder} is a folder without a model.",
        f"Name a GGUF file, or a folder with {CONFIG} and safetensors.",
    )
