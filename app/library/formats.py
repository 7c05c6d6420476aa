"""What kind of model file a path is, by its first bytes, and why Hearth refuses some."""

from __future__ import annotations

import errno
from pathlib import Path

from hearth.app.library.model_files import CONFIG, WEIGHTS, entries, is_model_folder
from hearth.app.library.regular import read_start
from hearth.backends.errors import CorruptFile, ModelNotFound, UnsupportedModel

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_GGUF_MAGIC = b"GGUF"
_ZIP_MAGIC = b"PK\x03\x04"  # torch.save writes a zip archive that holds a pickle
_PICKLE_STARTS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_USE_ANOTHER = "Take the model as safetensors or GGUF; most repositories have one of them."


def model_at(path: Path) -> Path:
    """The model that `path` means: a file that starts as a GGUF does, a folder with a configuration
    and safetensors, or the folder of such a file. Before it is loaded, all of it is checked.

    Raises:
        ModelNotFound: there is nothing.
        UnsupportedModel: a pickle, a folder without a model, or something else; the reason is
            named.
        CorruptFile: called .gguf, but does not start as one.
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
    if suffix == ".gguf":
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
    """The error for a folder, by what it holds instead."""
    names = [entry.name for entry in entries(folder)]
    suffixes = {Path(name).suffix.lower() for name in names}
    if ".gguf" in suffixes:
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
