"""What quantizing a folder of safetensors will make. Headers alone, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

from hearth.quant.checkpoints.config import KEY, read_checkpoint
from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.table import family_of_hf
from hearth.quant.folders.layout import Layout, New, lay_out
from hearth.quant.folders.matrices import Block, Matrices, Matrix, matrices_of
from hearth.quant.folders.storage import LAYOUT_NAMES, Storage
from hearth.quant.gguf.errors import BadRecipe
from hearth.quant.hf_names import EMBEDDING, canonical
from hearth.quant.json_fields import read_fields
from hearth.quant.safetensors_header import SafetensorsHeader
from hearth.quant.safetensors_shards import read_folder
from hearth.quant.tied_weights import has_own_head

CONFIG: Final = "config.json"
Outside = Literal["head", "embedding"]
"""Matrices that belong to no block."""
_KV_BYTES: Final = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32, "fp8": 1.0}


@dataclass(frozen=True, slots=True)
class Piece:
    """What is written between two points at which writing can be resumed."""

    name: str
    block: Block | None
    """Its matrices come first."""
    outside: tuple[Matrix, ...]
    """Embedding and output matrix, if they are quantized."""
    plain: tuple[str, ...]
    """Tensors that are copied; those of a block may be changed."""

    @property
    def matrices(self) -> Sequence[Matrix]:
        """Those that are quantized, in the order of the file."""
        found = [] if self.block is None else list(self.block.matrices)
        return [*found, *self.outside]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The text that activations are taken from."""

    text: Path
    """UTF-8."""
    samples: int
    """Windows of text."""
    tokens: int
    """Of a window."""


@dataclass(frozen=True)
class FolderPlan:
    """A new folder; nothing has been written yet."""

    method: str
    source: Path
    family: Family
    config: ModelConfig
    headers: tuple[SafetensorsHeader, ...]
    matrices: Matrices
    storage: Storage
    outside: Mapping[str, Storage]
    """Of embedding and output matrix, by the names of their tensors; what is missing is copied."""
    calibration: Calibration | None
    options: Mapping[str, Any]
    """As they were asked for, JSON values."""
    file_bytes: int
    """The most of a file, unless one matrix has more."""

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """In the order of the file."""
        quantized = {one.source for block in self.matrices.blocks for one in block.matrices}
        both = {one.name: one for one in (self.matrices.embedding, self.matrices.head)}
        outside = tuple(one for name, one in both.items() if name in self.outside)
        quantized |= self.outside.keys()
        names = [name for one in self.headers for name in one.tensors if name not in quantized]
        of_blocks: dict[int, list[str]] = {block.index: [] for block in self.matrices.blocks}
        others: list[str] = []
        for name in names:
            parts = canonical(name).split(".")
            is_of_block = parts[:2] == ["model", "layers"] and parts[2].isdecimal()
            of_blocks.get(int(parts[2]) if is_of_block else -1, others).append(name)
        pieces = [
            Piece(f"block {block.index}", block, (), tuple(of_blocks[block.index]))
            for block in self.matrices.blocks
        ]
        return (*pieces, Piece("other tensors", None, outside, tuple(others)))

    @cached_property
    def stored(self) -> dict[str, Storage]:
        """How each quantized matrix is stored, by its name."""
        found = {one.name: self.storage for block in self.matrices.blocks for one in block.matrices}
        return found | dict(self.outside)

    @cached_property
    def _by_source(self) -> dict[str, list[Matrix]]:
        """The quantized matrices by the stored tensors that hold them."""
        found: dict[str, list[Matrix]] = {}
        for piece in self.pieces:
            for one in piece.matrices:
                found.setdefault(one.source, []).append(one)
        return found

    @cached_property
    def layout(self) -> Layout:
        """Of the files with all weights."""
        entries = {name: entry for one in self.headers for name, entry in one.tensors.items()}
        units: list[list[New]] = []
        for piece in self.pieces:
            for matrix in piece.matrices:
                leaves = self.stored[matrix.name].leaves(matrix.outputs, matrix.inputs)
                units.append(
                    [(f"{matrix.module}{leaf}", kind, shape) for leaf, kind, shape in leaves]
                )
            plain = [entries[name] for name in piece.plain]
            units += [[(one.name, one.kind, one.shape)] for one in plain]
        return lay_out(units, self.file_bytes)

    @property
    def ignored(self) -> list[str]:
        """The modules that hold a plain matrix, for the new config.json."""
        is_plain = self.config.tied or self.matrices.head.name not in self.outside
        found = ["lm_head"] if is_plain else []
        for header in self.headers:
            for name, entry in header.tensors.items():
                is_matrix = len(entry.shape) == 2 and name.endswith(".weight")
                if is_matrix and name not in self.stored and canonical(name) != EMBEDDING:
                    found.append(name.removesuffix(".weight"))
        return list(dict.fromkeys(found))

    @property
    def size_bytes(self) -> int:
        return self.layout.size_bytes

    @property
    def source_bytes(self) -> int:
        return sum(one.size_bytes for one in self.headers)

    @property
    def parameters(self) -> int:
        """Weights of the model."""
        return sum(prod(one.shape) for header in self.headers for one in header.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size_bytes / self.parameters

    @property
    def source_bits_per_weight(self) -> float:
        return 8 * self.source_bytes / self.parameters

    def memory_bytes(self, context: int, kv_type: str = "f16") -> int:
        """Weights and key-value cache of the result, at `context` tokens. Raises `KeyError` for a
        type that keys and values cannot have.
        """
        numbers = context * self.config.kv_elements * len(self.config.layers)
        matrices = [one for piece in self.pieces for one in piece.matrices]
        of_six = [one for one in matrices if self.stored[one.name].bits == 6]
        spread = sum(one.outputs * one.inputs for one in of_six) // 4  # Held in 8 bits.
        return self.size_bytes + spread + int(numbers * _KV_BYTES[kv_type])

    def facts(self, *, tensors: bool = False) -> dict[str, Any]:
        """The plan as JSON values, with a list of the tensors on request."""
        sizes: dict[str, int] = {}
        kinds = Counter[str]()
        rows = []
        for header in self.headers:
            for name, entry in header.tensors.items():
                own = self._by_source.get(name)
                kind = entry.kind if own is None else self.stored[own[0].name].label
                sizes[name] = self._size(name)
                kinds[kind] += 1
                rows.append(
                    {
                        "name": name,
                        "shape": list(entry.shape),
                        "source_type": entry.kind,
                        "type": kind,
                        "size_bytes": sizes[name],
                    }
                )
        facts: dict[str, Any] = {
            "source": str(self.source),
            "source_bytes": self.source_bytes,
            "source_bits_per_weight": round(self.source_bits_per_weight, 3),
            "type": self.method,
            "format": LAYOUT_NAMES[self.storage.layout],
            "bits": self.storage.bits,
            "scope": self.storage.scope,
            "group": self.storage.group,
            "symmetric": self.storage.symmetric,
            "size_bytes": self.size_bytes,
            "bits_per_weight": round(self.bits_per_weight, 3),
            "parameters": self.parameters,
            "memory_bytes": self.memory_bytes(self.config.context),
            "memory_context": self.config.context,
            "types": dict(kinds.most_common()),
            "fallbacks": [],
        }
        if self.calibration is not None:
            facts["calibration"] = {
                "text": self.calibration.text.name,
                "samples": self.calibration.samples,
                "tokens": self.calibration.tokens,
            }
        return facts | ({"tensors": rows} if tensors else {})

    def _size(self, name: str) -> int:
        """What of the new file a stored tensor takes."""
        if name not in self._by_source:
            return self.layout.entries[name].nbytes
        return sum(
            self.layout.entries[f"{one.module}{leaf}"].nbytes
            for one in self._by_source[name]
            for leaf, _, _ in self.stored[one.name].leaves(one.outputs, one.inputs)
        )


def plan(
    method: str,
    folder: Path,
    storage: Storage,
    *,
    outside: Mapping[Outside, int] | None = None,
    calibration: Calibration | None = None,
    options: Mapping[str, Any],
    file_bytes: int,
) -> FolderPlan:
    """
    Args:
        folder: with config.json and safetensors of plain numbers.
        outside: bits of embedding and output matrix, of what is not copied; of compressed-tensors.

    Raises:
        BadRecipe: embedding and output matrix are one, and have different bits.
        CorruptFile, UnsupportedModel: the folder, or a family that is not known.
        CannotQuantize: a matrix has a shape that cannot be stored so.
    """
    fields = read_fields(folder / CONFIG)
    checkpoint = read_checkpoint(fields)
    if checkpoint is not None:
        raise UnsupportedModel(
            f"{folder}: the weights are quantized already ({checkpoint.label}).",
            "Quantize the model's original weights.",
            path=str(folder),
            field=KEY,
        )
    family = family_of_hf(fields)
    config = family.from_hf(fields)
    headers = read_folder(folder)
    if config.tied and has_own_head(headers):
        config = replace(config, tied=False)
    stored = {name: entry for one in headers for name, entry in one.tensors.items()}
    matrices = matrices_of(family, config, stored)
    both: dict[str, Storage] = {}
    for which, bits in (outside or {}).items():
        matrix = matrices.head if which == "head" else matrices.embedding
        own = both.setdefault(matrix.name, outside_storage(bits, matrix.inputs))
        own.check(matrix.name, matrix.outputs, matrix.inputs)
        if own.bits != bits:
            raise BadRecipe(
                f"The output matrix of {folder.name} is its embedding: it cannot have {own.bits} "
                f"bits and {bits}.",
                "Leave out --embedding.",
            )
    found = FolderPlan(
        method,
        folder,
        family,
        config,
        headers,
        matrices,
        storage,
        both,
        calibration,
        options,
        file_bytes,
    )
    for block in matrices.blocks:
        for one in block.matrices:
            storage.check(one.name, one.outputs, one.inputs)
    return found


def outside_storage(bits: int, inputs: int) -> Storage:
    """Of an embedding or output matrix: 8 bits with a scale for each row, or 6 in groups of at most
    128 inputs, where such groups divide them.
    """
    fitting = [one for one in (128, 64, 32, 16, 8) if inputs % one == 0]
    if bits == 8 or not fitting:
        return Storage("packed", "int", bits, "row", None)
    return Storage("packed", "int", bits, "group", fitting[0])
