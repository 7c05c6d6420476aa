"""A folder of safetensors as a source for GGUF files."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any

from hearth.quant.checkpoints.scheme import QuantizedTensor
from hearth.quant.convert.folder_files import ALL, CONFIG, DEFAULT
from hearth.quant.convert.model import Model, Value, describe
from hearth.quant.convert.special import special_values
from hearth.quant.convert.tensors import find_tensors
from hearth.quant.convert.vocabulary import Vocabulary, read_vocabulary
from hearth.quant.generation_defaults import read_generation_defaults
from hearth.quant.gguf import preflight
from hearth.quant.gguf.faults import corrupt, quoted
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
_KINDS = {int: ValueType.U32, float: ValueType.F32, str: ValueType.STRING}


def folder_of(path: Path) -> Path | None:
    """The model folder of `path`, which is the folder or a safetensors file in it; None if it is
    neither.
    """
    folder = path.parent if path.suffix == SUFFIX else path
    return folder if (folder / CONFIG).is_file() else None


class FolderSource:
    """The model in a folder, with the header of a GGUF file that keeps the stored types: BF16 stays
    BF16, tensors that llama.cpp needs as F32 become F32, MXFP4 stays packed.

    Args:
        keeps_packed: INT4 and INT8 stay packed too, as Q4_0 and Q8_0.

    Raises:
        CorruptFile: a file is missing or damaged, or files contradict each other.
        UnsupportedModel: a family, variant, vocabulary or number type cannot be converted; the
            message names it.
        OSError: a file cannot be read.
    """

    converts = True

    def __init__(self, folder: Path, *, keeps_packed: bool = False) -> None:
        self._folder = folder
        self._shards = read_folder(folder)
        fields = read_fields(folder / CONFIG)
        self._model = model = describe(fields, self._shards, keeps_packed=keeps_packed)
        self._found = find_tensors(folder, model)
        vocabulary = read_vocabulary(folder, model.config.vocab_size)
        self._pairs = _pairs(folder, model, vocabulary)
        layout = lay_out(self._pairs, [tensor.info for tensor in self._found])
        header = parse_header(BytesIO(layout.header), layout.size, folder)
        self.header: GgufFile = preflight.check_model(header)
        paths = [folder / name for name in ALL if (folder / name).is_file()]
        sizes = [*((one.path, one.size_bytes) for one in self._shards)]
        sizes += [(path, path.stat().st_size) for path in paths]
        self.files = tuple(SourceFile(path, size) for path, size in sizes)
        self._homes = {name: one.path for one in self._shards for name in one.tensors}
        self._by_name = {tensor.name: tensor for tensor in self._found}

    @property
    def stored_type(self) -> TensorType:
        """The plain type that most of the plain weights are stored in."""
        sizes = Counter[TensorType]()
        for tensor in self._found:
            if tensor.type in PLAIN and tensor.part.names:
                sizes[tensor.type] += prod(tensor.shape)
        return sizes.most_common(1)[0][0]

    def home(self, name: str) -> Path:
        """The file of the tensor `name`, or of its first part; `config.json` for tensors that
        follow from the config.
        """
        stored = self._by_name[name].part.names
        if not stored:
            return self._folder / CONFIG
        tensor = self._model.stored[stored[0]]
        parts = tensor.parts.values() if isinstance(tensor, QuantizedTensor) else stored
        return self._homes[next(iter(parts))]

    def pairs(self) -> Mapping[str, bytes]:
        return self._pairs

    @contextmanager
    def open(self) -> Iterator[WeightReader]:
        from hearth.quant.convert.rows import FolderRows

        with FolderRows(self._shards, self._found, self._model.checkpoint) as rows:
            yield rows


def _pairs(folder: Path, model: Model, vocabulary: Vocabulary) -> dict[str, bytes]:
    """The metadata. Raises `CorruptFile` for a value that GGUF cannot hold."""
    values: dict[str, Value] = {
        "general.architecture": model.architecture,
        "general.type": "model",
        "general.name": _name(folder, model, vocabulary),
        **read_generation_defaults(folder).gguf_values,
        **{f"{model.architecture}.{key}": value for key, value in model.values.items()},
        f"{_TOKENIZER}model": vocabulary.model,
        f"{_TOKENIZER}pre": vocabulary.pre,
    }
    lists: dict[str, tuple[ValueType, Sequence[Any]]] = {
        f"{_TOKENIZER}tokens": (ValueType.STRING, vocabulary.tokens),
        f"{_TOKENIZER}token_type": (ValueType.I32, vocabulary.kinds),
        f"{_TOKENIZER}scores": (ValueType.F32, vocabulary.scores),
        f"{_TOKENIZER}merges": (ValueType.STRING, vocabulary.merges),
    }
    lists.pop(f"{_TOKENIZER}{'scores' if vocabulary.model == 'gpt2' else 'merges'}")
    named = {name: text for name, text in vocabulary.templates.items() if name != DEFAULT}
    if named:
        lists[f"{_TEMPLATE}s"] = (ValueType.STRING, list(named))
    templates = {f"{_TEMPLATE}.{name}": text for name, text in named.items()}
    if DEFAULT in vocabulary.templates:
        templates[_TEMPLATE] = vocabulary.templates[DEFAULT]
    special = special_values(folder, vocabulary)
    return {
        **{key: _pair(folder, key, value) for key, value in values.items()},
        **{key: _list(folder, key, kind, entries) for key, (kind, entries) in lists.items()},
        **{key: _pair(folder, key, value) for key, value in (special | templates).items()},
    }


def _pair(folder: Path, key: str, value: Value) -> bytes:
    if isinstance(value, tuple):
        return _list(folder, key, ValueType.BOOL, value)
    kind = ValueType.BOOL if isinstance(value, bool) else _KINDS[type(value)]
    with _held_by_gguf(folder, key, value):
        return pair_bytes(key, kind, value)


def _list(folder: Path, key: str, kind: ValueType, values: Sequence[Any]) -> bytes:
    with _held_by_gguf(folder, key, "a list"):
        if kind is ValueType.STRING:
            return strings_bytes(key, values)
        return numbers_bytes(key, kind, values)


@contextmanager
def _held_by_gguf(folder: Path, key: str, value: object) -> Iterator[None]:
    """Turns errors of encoding a value into `CorruptFile`."""
    try:
        yield
    except (OverflowError, struct.error, UnicodeEncodeError) as error:
        raise corrupt(
            folder,
            f"key {quoted(key)}",
            f"would be {str(value)[:40]!r}, which GGUF cannot hold",
            "Check the JSON files of the folder, or download them again.",
        ) from error


def _name(folder: Path, model: Model, vocabulary: Vocabulary) -> str:
    """The name of the model. In the cache of the Hub, folders are named after a commit, so there
    the name of the repository is used."""
    repository = folder.absolute().parent.parent.name
    if folder.absolute().parent.name == "snapshots" and repository.startswith("models--"):
        name = repository.split("--")[-1]
    else:
        name = folder.absolute().name
    # llama.cpp lets special tokens swallow the following white space if the name contains this.
    if model.architecture == "phi3" and vocabulary.swallows_behind and "phi-3" not in name.lower():
        return f"Phi-3 {name}"
    return name
