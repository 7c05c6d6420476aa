"""A folder of safetensors as a source of GGUF files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path

from hearth.quant.convert.families import describe
from hearth.quant.convert.folder_files import ALL, CONFIG
from hearth.quant.convert.inventory import take_inventory
from hearth.quant.convert.model import Model, Value
from hearth.quant.convert.special import sampling_values, special_values
from hearth.quant.convert.vocabulary import Vocabulary, read_vocabulary
from hearth.quant.gguf import preflight
from hearth.quant.gguf.file import GgufFile
from hearth.quant.gguf.mixes import PLAIN
from hearth.quant.gguf.reader import parse_header
from hearth.quant.gguf.source import SourceFile, WeightReader
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.writer import lay_out, numbers_bytes, pair_bytes, strings_bytes
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors_shards import read_folder

SUFFIX = ".safetensors"
_TOKENIZER = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"


def folder_of(path: Path) -> Path | None:
    """The folder of the model that `path`, a folder or a safetensors file in it, stands for; None
    where it stands for none.
    """
    folder = path.parent if path.suffix == SUFFIX else path
    return folder if (folder / CONFIG).is_file() else None


class FolderSource:
    """The model in a folder, with the header that it has as a GGUF file of the numbers as they are
    stored: BF16 stays BF16, what llama.cpp wants as F32 is F32, MXFP4 stays packed.

    Raises:
        CorruptFile: a file is missing or damaged, or files contradict each other.
        UnsupportedModel: a family, a variant, a vocabulary or a type of numbers that cannot be
            converted; the message names it.
        OSError: a file cannot be read.
    """

    converts = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shards = read_folder(folder)
        model = describe(read_fields(folder / CONFIG))
        self._found = take_inventory(folder, model, self._shards)
        vocabulary = read_vocabulary(folder, model.vocabulary)
        self._pairs = _pairs(folder, model, vocabulary)
        layout = lay_out(self._pairs, [found.info for found in self._found])
        header = parse_header(BytesIO(layout.header), layout.size, folder)
        self.header: GgufFile = preflight.check_model(header)
        paths = [folder / name for name in ALL if (folder / name).is_file()]
        sizes = [*((one.path, one.size_bytes) for one in self._shards)]
        sizes += [(path, path.stat().st_size) for path in paths]
        self.files = tuple(SourceFile(path, size) for path, size in sizes)
        self._homes = {name: one.path for one in self._shards for name in one.tensors}
        self._by_name = {found.name: found for found in self._found}

    @property
    def stored_type(self) -> TensorType:
        """Of plain numbers, the type that most weights are stored in."""
        sizes = Counter[TensorType]()
        for found in self._found:
            if found.type in PLAIN and found.origin.names:
                sizes[found.type] += prod(found.shape)
        return sizes.most_common(1)[0][0]

    def home(self, name: str) -> Path:
        """The file of the tensor `name`, or of its first part; what follows from the config lies
        there.
        """
        stored = self._by_name[name].origin.names
        return self._homes[stored[0]] if stored else self._folder / CONFIG

    def pairs(self) -> Mapping[str, bytes]:
        return self._pairs

    @contextmanager
    def open(self) -> Iterator[WeightReader]:
        from hearth.quant.convert.rows import FolderRows

        with FolderRows(self._shards, self._found) as rows:
            yield rows


def _pairs(folder: Path, model: Model, vocabulary: Vocabulary) -> dict[str, bytes]:
    values: dict[str, Value] = {
        "general.architecture": model.architecture,
        "general.type": "model",
        "general.name": _name(folder, model, vocabulary),
        **sampling_values(folder),
        **{f"{model.architecture}.{key}": value for key, value in model.values.items()},
        f"{_TOKENIZER}model": vocabulary.model,
        f"{_TOKENIZER}pre": vocabulary.pre,
    }
    pairs = {key: _pair(key, value) for key, value in values.items()}
    key = f"{_TOKENIZER}tokens"
    pairs[key] = strings_bytes(key, vocabulary.tokens)
    key = f"{_TOKENIZER}token_type"
    pairs[key] = numbers_bytes(key, ValueType.I32, vocabulary.kinds)
    key = f"{_TOKENIZER}scores"
    if vocabulary.scores:
        pairs[key] = numbers_bytes(key, ValueType.F32, vocabulary.scores)
    key = f"{_TOKENIZER}merges"
    if vocabulary.model == "gpt2":
        pairs[key] = strings_bytes(key, vocabulary.merges)
    special = special_values(folder, vocabulary)
    return (
        pairs
        | {key: _pair(key, value) for key, value in special.items()}
        | _templates(vocabulary.templates)
    )


def _templates(templates: Mapping[str, str]) -> dict[str, bytes]:
    """The default one, and those of other names."""
    named = {name: text for name, text in templates.items() if name != "default"}
    keys = {f"{_TEMPLATE}.{name}": text for name, text in named.items()}
    if "default" in templates:
        keys[_TEMPLATE] = templates["default"]
    pairs = {key: pair_bytes(key, ValueType.STRING, text) for key, text in keys.items()}
    if named:
        key = f"{_TEMPLATE}s"
        pairs[key] = strings_bytes(key, list(named))
    return pairs


def _pair(key: str, value: Value) -> bytes:
    if isinstance(value, tuple):
        return numbers_bytes(key, ValueType.BOOL, value)
    if isinstance(value, bool):
        return pair_bytes(key, ValueType.BOOL, value)
    kinds = {int: ValueType.U32, float: ValueType.F32, str: ValueType.STRING}
    return pair_bytes(key, kinds[type(value)], value)


def _name(folder: Path, model: Model, vocabulary: Vocabulary) -> str:
    """Of the model. In the cache of the Hub, folders are named by a commit."""
    repository = folder.absolute().parent.parent.name
    if folder.absolute().parent.name == "snapshots" and repository.startswith("models--"):
        name = repository.split("--")[-1]
    else:
        name = folder.absolute().name
    # llama.cpp lets special tokens swallow white space behind them where the name has this in it.
    if model.architecture == "phi3" and vocabulary.swallows_behind and "phi-3" not in name.lower():
        return f"Phi-3 {name}"
    return name
