"""What kind of model file a path is, by its first bytes, and why Hearth refuses some."""

from __future__ import annotations

from pathlib import Path

from hearth.backends.errors import CorruptFile, ModelNotFound, UnsupportedModel

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_GGUF_MAGIC = b"GGUF"
_ZIP_MAGIC = b"PK\x03\x04"  # torch.save writes a zip archive that holds a pickle
_PICKLE_STARTS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_USE_GGUF = (
    "Take the GGUF form of the model; most repositories of GGUF files carry it in their name."
)


def require_gguf(path: Path) -> None:
    """Return if `path` starts as a GGUF file does. Before it is loaded, all of it is checked.

    Raises:
        ModelNotFound: nothing lies there.
        UnsupportedModel: a folder, a pickle, safetensors or something else; the reason is named.
        CorruptFile: called .gguf, but does not start as one.
    """
    if path.is_dir():
        raise UnsupportedModel(
            f"{path} is a folder. This version runs single GGUF files.",
            "Name the .gguf file in it. Folders of safetensors come with the native backend in a "
            "later version.",
        )
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except FileNotFoundError:
        raise ModelNotFound(
            f"There is no file {path}.", "Check the path.", path=str(path)
        ) from None
    except OSError as error:
        raise ModelNotFound(
            f"{path} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    if start.startswith(_GGUF_MAGIC):
        return
    suffix = path.suffix.lower()
    if suffix in PICKLE_SUFFIXES or start.startswith((*_PICKLE_STARTS, _ZIP_MAGIC)):
        raise UnsupportedModel(
            f"{path} is refused: a file of this kind (pickle) can run any code when it is loaded.",
            _USE_GGUF,
        )
    if suffix == ".safetensors":
        raise UnsupportedModel(
            f"{path} is a safetensors file; the native backend that runs them comes with a later "
            "version.",
            _USE_GGUF,
        )
    if suffix == ".gguf":
        raise CorruptFile(
            f"{path} is not a GGUF file: it starts with {start[:4].hex(' ') or 'nothing'} in "
            "place of "
            f"{_GGUF_MAGIC.hex(' ')}.",
            field="magic",
        )
    raise UnsupportedModel(f"{path} is not a model file that this version can run.", _USE_GGUF)
