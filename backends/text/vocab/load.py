"""The tokenizer of a model, wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from hearth.backends.errors import CorruptFile, UnsupportedModel
from hearth.backends.text.vocab.folder_settings import read_settings
from hearth.backends.text.vocab.gguf_tokenizer import GgufTokenizer
from hearth.backends.text.vocab.gguf_vocabulary import read_vocabulary
from hearth.backends.text.vocab.json_tokenizer import JsonTokenizer, read_tokenizer
from hearth.quant.gguf.file import GgufFile

_OTHERS: Final = ("tokenizer.model", "tiktoken.model", "vocab.json", "vocab.txt", "tekken.json")


def open_gguf(file: GgufFile) -> GgufTokenizer:
    """The tokenizer that a GGUF file describes; its header was checked by
    `hearth.quant.gguf.preflight`.

    Raises:
        UnsupportedModel: a kind of vocabulary, or of pre-tokenizer, that is not built in.
        CorruptFile: a list is missing.
    """
    return GgufTokenizer(read_vocabulary(file))


def open_folder(folder: Path, *, rows: int = 0) -> JsonTokenizer:
    """The tokenizer of a folder of safetensors.

    Args:
        rows: of the model's output, each of which has an id.

    Raises:
        UnsupportedModel: it has no `tokenizer.json`, only a vocabulary in another format.
        CorruptFile: a file of it is missing or malformed, or files contradict each other.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        other = next((name for name in _OTHERS if (folder / name).is_file()), None)
        if other is None:
            raise CorruptFile(
                f"{folder} has no tokenizer.json.", "Download the whole folder of the model."
            )
        raise UnsupportedModel(
            f"{folder} has {other} but no tokenizer.json, and only that is read.",
            "Download the model's tokenizer.json into the folder, or write one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER).",
        )
    return JsonTokenizer(read_tokenizer(path), read_settings(folder), rows=rows)
