"""Opens the tokenizer of a GGUF file or of a folder."""

from __future__ import annotations

from pathlib import Path

from hearth.backends.text.vocab.folder_settings import read_settings
from hearth.backends.text.vocab.gguf_tokenizer import GgufTokenizer
from hearth.backends.text.vocab.gguf_vocabulary import read_vocabulary
from hearth.backends.text.vocab.json_tokenizer import JsonTokenizer, read_tokenizer
from hearth.quant.convert.folder_files import tokenizer_path
from hearth.quant.gguf.file import GgufFile


def open_gguf(file: GgufFile) -> GgufTokenizer:
    """The tokenizer of a GGUF file whose header was checked by `hearth.quant.gguf.preflight`.

    Raises:
        UnsupportedModel: this kind of vocabulary or pre-tokenizer is not built in.
        CorruptFile: a list is missing.
    """
    return GgufTokenizer(read_vocabulary(file))


def open_folder(folder: Path, *, rows: int = 0) -> JsonTokenizer:
    """The tokenizer of a folder of safetensors.

    Args:
        rows: number of logits of the model, each of which has an id.

    Raises:
        UnsupportedModel: the folder has a vocabulary only in another format than `tokenizer.json`.
        CorruptFile: a file is missing or malformed, or files contradict each other.
    """
    path = tokenizer_path(folder)
    return JsonTokenizer(read_tokenizer(path), read_settings(folder), rows=rows)
