"""The header of a GGUF file, and what follows from it without reading weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from hearth.quant.fingerprint import WeightFile
from hearth.quant.gguf.faults import corrupt, unsupported
from hearth.quant.gguf.mixes import FILE_TYPE_NAMES
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.values import NumberArray, StringArray
from hearth.quant.stored import StoredTensor

Value = int | float | bool | str | StringArray | NumberArray

_GUESSED_FILE_TYPE = 1024
_TEMPLATE = "tokenizer.chat_template"
ENCODERS = frozenset(
    {
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert-v2",
        "jina-bert-v3",
        "modern-bert",
        "neo-bert",
        "nomic-bert",
        "nomic-bert-moe",
    }
)
"""Architectures that embed or rank whole texts and have no KV cache, so they cannot generate
(`llama_model::create_memory` in llama.cpp)."""
_INTERVALS = {"minimax-01": 8, "qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4}
"""Defaults of `full_attention_interval` if a file lacks it (`load_arch_hparams` of llama.cpp)."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor list.

    `shape` is in ggml's order, the contiguous dimension first: a matrix that maps `i` inputs to `o`
    outputs has shape (i, o). `offset` counts from the file's data section, in bytes.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def stored(self) -> StoredTensor:
        """The tensor in the form used for all kinds of files."""
        return StoredTensor(self.name, self.shape[::-1], self.type.name, self.nbytes)


@dataclass(frozen=True, slots=True)
class GgufFile:
    """The header of a GGUF file, checked by `read_header`.

    `metadata` holds scalars as Python values and arrays as `StringArray` or `NumberArray`;
    `value_types` has the stored type of each key (`ValueType.ARRAY` for arrays). `shards` are the
    other files of a split model, in order, filled in by `check`; empty for a model in one file.
    """

    path: Path
    size_bytes: int
    version: int
    metadata: Mapping[str, Value]
    value_types: Mapping[str, ValueType]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    shards: tuple[GgufFile, ...] = ()

    @property
    def weight_files(self) -> tuple[WeightFile, ...]:
        """All files of the model."""
        return tuple(WeightFile(one.path, one.data_offset) for one in (self, *self.shards))

    def value(self, key: str, default: Any = None) -> Any:
        """The metadata value of `key`, or `default` if missing."""
        return self.metadata.get(key, default)

    def integer(self, key: str, default: int | None = None) -> int:
        """The integer value of `key`.

        Raises:
            CorruptFile: the key is not an integer, or it is missing and there is no `default`.
        """
        value = self.metadata.get(key, default)
        if value is None:
            raise corrupt(self.path, f"key '{key}'", "is missing")
        if isinstance(value, bool) or not isinstance(value, int):
            raise corrupt(self.path, f"key '{key}'", f"is {self._type_name(key)}, not an integer")
        return value

    def per_layer(self, key: str, layers: int, default: int | None = None) -> list[int]:
        """[layers] one integer per layer, from a scalar or from an array of that length.

        Raises:
            CorruptFile: as in `integer`, or the array's length or element type is wrong.
        """
        values = self.metadata.get(key)
        if not isinstance(values, NumberArray):
            return [self.integer(key, default)] * layers
        if values.element_type not in (ValueType.U32, ValueType.I32, ValueType.BOOL):
            raise corrupt(
                self.path,
                f"key '{key}'",
                f"is an array of {values.element_type.name}, not of integers",
            )
        if len(values) != layers:
            raise corrupt(
                self.path, f"key '{key}'", f"has {len(values):,} values for {layers:,} layers"
            )
        return [int(value) for value in values]

    @property
    def architecture(self) -> str:
        """`general.architecture`. Raises `CorruptFile` if it is missing or not a string."""
        key = "general.architecture"
        name = self.metadata.get(key)
        if name is None:
            raise corrupt(self.path, f"key '{key}'", "is missing")
        if not isinstance(name, str) or not name:
            raise corrupt(self.path, f"key '{key}'", f"is {self._type_name(key)}, not a name")
        return name

    @property
    def is_encoder(self) -> bool:
        """Whether the model embeds or ranks texts and cannot generate any."""
        return self.architecture in ENCODERS

    @property
    def context_length(self) -> int:
        """Context length that the model was trained for. Raises `CorruptFile` if missing."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the default chat template, or None."""
        return self.chat_templates.get("default")

    @property
    def chat_templates(self) -> dict[str, str]:
        """Jinja sources by name: "default" for `tokenizer.chat_template`, other names from the keys
        `tokenizer.chat_template.NAME`.
        """
        named = {
            key.removeprefix(f"{_TEMPLATE}."): value
            for key, value in self.metadata.items()
            if key.startswith(f"{_TEMPLATE}.")
        }
        named["default"] = self.metadata.get(_TEMPLATE, "")
        return {name: text for name, text in named.items() if isinstance(text, str) and text}

    @property
    def all_tensors(self) -> tuple[TensorInfo, ...]:
        """The tensors of this file and of its other shards."""
        return sum((shard.tensors for shard in self.shards), self.tensors)

    @property
    def parameter_count(self) -> int:
        """Number of elements of all tensors."""
        return sum(tensor.elements for tensor in self.all_tensors)

    @property
    def file_type_name(self) -> str:
        """The file type of the weights: "F16", "Q4_K_M", ...

        If the file does not declare it, this is the tensor type that holds the most elements.
        """
        declared = self.metadata.get("general.file_type")
        if isinstance(declared, int) and not isinstance(declared, bool):
            name = FILE_TYPE_NAMES.get(declared & ~_GUESSED_FILE_TYPE)
            if name is not None:
                return name
        elements: Counter[TensorType] = Counter()
        for tensor in self.all_tensors:
            elements[tensor.type] += tensor.elements
        return elements.most_common(1)[0][0].name if elements else "unknown"

    @property
    def kv_heads(self) -> list[int]:
        """[layers] key-value heads; 0 for layers that keep no keys and values: recurrent layers,
        layers between those of `full_attention_interval`, and multi-token prediction layers.

        Raises:
            CorruptFile: a hyper-parameter is missing or of the wrong type.
        """
        arch = self.architecture
        layers = self.integer(f"{arch}.block_count")
        counts = self.per_layer(f"{arch}.attention.head_count", layers, 0)
        if f"{arch}.attention.head_count_kv" in self.metadata and any(counts):
            counts = self.per_layer(f"{arch}.attention.head_count_kv", layers)
        recurrent = f"{arch}.attention.recurrent_layers"
        interval = self.integer(f"{arch}.full_attention_interval", _INTERVALS.get(arch, 1))
        if recurrent in self.metadata:
            without = self.per_layer(recurrent, layers)
        else:
            without = [interval > 1 and at % interval for at in range(1, layers + 1)]
        trunk = layers - self.integer(f"{arch}.nextn_predict_layers", 0) or layers
        return [0 if without[at] or at >= trunk else count for at, count in enumerate(counts)]

    @property
    def head_lengths(self) -> tuple[int, int]:
        """Elements of a key head and of a value head; the latter is 0 if values are read from the
        keys (MLA). Raises `CorruptFile` if a hyper-parameter is missing or of the wrong type.
        """
        attention = f"{self.architecture}.attention"
        layers = self.integer(f"{self.architecture}.block_count")
        heads = max(self.per_layer(f"{attention}.head_count", layers, 0), default=0)
        length = self.integer(f"{self.architecture}.embedding_length") // heads if heads else 0
        is_latent = self.integer(f"{attention}.key_length_mla", 0) > 0
        return (
            self.integer(f"{attention}.key_length", length),
            0 if is_latent else self.integer(f"{attention}.value_length", length),
        )

    def kv_bytes_per_token(self, type_k: str = "f16", type_v: str = "f16") -> int:
        """Bytes that one token takes in the KV cache of all layers, without padding.

        A layer keeps `kv_heads * key_length` elements of type `type_k` and `kv_heads *
        value_length` of type `type_v`. Encoders have no KV cache.

        Args:
            type_k, type_v: names of tensor types in lower case ("f32", "f16", "q8_0", "q4_0", ...),
                or fp8, which is not a type of files.

        Raises:
            UnsupportedModel: a head's length is not a multiple of the type's block.
            CorruptFile: a hyper-parameter is missing or of the wrong type.
            KeyError: there is no tensor type of that name.
        """
        if self.is_encoder:
            return 0
        key_length, value_length = self.head_lengths
        return sum(self.kv_heads) * (
            self._head_bytes(key_length, type_k) + self._head_bytes(value_length, type_v)
        )

    def _head_bytes(self, length: int, type_name: str) -> int:
        if type_name == "fp8":
            return length
        kind = TensorType[type_name.upper()]
        if length % kind.block_elements:
            raise unsupported(
                self.path,
                "kv type",
                f"has attention heads of {length} elements, which {type_name} cannot store: "
                f"it needs a multiple of {kind.block_elements}",
                "Set kv_type to f16 (--kv-type).",
            )
        return kind.nbytes(length)

    def _type_name(self, key: str) -> str:
        kind = self.value_types.get(key)
        return "of an unknown type" if kind is None else f"of type {kind.name}"
