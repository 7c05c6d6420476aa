"""The plan of quantizing a folder of safetensors. From headers only, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

from hearth.quant.checkpoints.config import KEY, read_checkpoint
from hearth.quant.checkpoints.modules import resolve
from hearth.quant.checkpoints.scheme import Checkpoint
from hearth.quant.convert.folder_files import CONFIG
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
from hearth.quant.stored import StoredTensor
from hearth.quant.tied_weights import as_stored

Outside = Literal["head", "embedding"]
"""Matrices that belong to no block."""
_KV_BYTES: Final = 2
"""Bytes of each element of keys and values."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the output; an interrupted run resumes after the last complete piece."""

    name: str
    block: Block | None
    """None for embedding, output matrix and other tensors that belong to no block."""
    matrices: tuple[Matrix, ...]
    """The quantized matrices, in the order of the file; they precede the plain tensors."""
    plain: tuple[str, ...]
    """Tensors that are copied; the values of those in a block may be changed."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The text that activations are taken from."""

    text: Path
    """UTF-8."""
    samples: int
    """Number of windows of text."""
    tokens: int
    """Tokens per window."""


@dataclass(frozen=True)
class FolderPlan:
    """A new folder, before anything is written."""

    method: str
    source: Path
    family: Family
    config: ModelConfig
    headers: tuple[SafetensorsHeader, ...]
    matrices: Matrices
    storage: Storage
    """The storage of most matrices."""
    stored: Mapping[str, Storage]
    """The storage of each quantized matrix, by name; all other tensors are copied."""
    calibration: Calibration | None
    options: Mapping[str, Any]
    """The requested options, JSON values."""
    file_bytes: int
    """Maximum size of the tensors in a file, unless one matrix is larger."""
    checkpoint: Checkpoint | None = None
    """How the matrices of the source are quantized; None if they are not."""

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """The tensors of the source by name, see `resolve`."""
        return resolve(self.headers, self.checkpoint)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces in the order of the file."""
        every = {block.index: self._quantized(block.matrices) for block in self.matrices.blocks}
        both = {one.name: one for one in (self.matrices.embedding, self.matrices.head)}
        outside = self._quantized(both.values())
        quantized = {one.source for group in (*every.values(), outside) for one in group}
        names = [name for name in self.tensors if name not in quantized]
        of_blocks: dict[int, list[str]] = {block.index: [] for block in self.matrices.blocks}
        others: list[str] = []
        for name in names:
            parts = canonical(name).split(".")
            is_of_block = parts[:2] == ["model", "layers"] and parts[2].isdecimal()
            of_blocks.get(int(parts[2]) if is_of_block else -1, others).append(name)
        pieces = [
            Piece(f"block {one.index}", one, every[one.index], tuple(of_blocks[one.index]))
            for one in self.matrices.blocks
        ]
        return (*pieces, Piece("other tensors", None, outside, tuple(others)))

    def _quantized(self, matrices: Iterable[Matrix]) -> tuple[Matrix, ...]:
        return tuple(one for one in matrices if one.name in self.stored)

    @property
    def outside(self) -> dict[str, Storage]:
        """The matrices that the new config.json describes by name: those that belong to no block,
        or are stored differently from most.
        """
        inside = {one.name for one in self.matrices.of_blocks}
        return {
            name: own
            for name, own in self.stored.items()
            if name not in inside or own != self.storage
        }

    @cached_property
    def _by_source(self) -> dict[str, list[Matrix]]:
        """The quantized matrices by the stored tensors that hold them."""
        by_source: dict[str, list[Matrix]] = {}
        for piece in self.pieces:
            for matrix in piece.matrices:
                by_source.setdefault(matrix.source, []).append(matrix)
        return by_source

    @cached_property
    def layout(self) -> Layout:
        """The layout of the weight files."""
        units: list[list[New]] = []
        for piece in self.pieces:
            for matrix in piece.matrices:
                leaves = self.stored[matrix.name].leaves(matrix.outputs, matrix.inputs)
                units.append(
                    [(f"{matrix.module}{leaf}", kind, shape) for leaf, kind, shape in leaves]
                )
            plain = [self.tensors[name] for name in piece.plain]
            units += [[(one.name, one.kind, one.shape)] for one in plain]
        return lay_out(units, self.file_bytes)

    @property
    def ignored(self) -> list[str]:
        """The modules that hold a plain matrix, for the new config.json."""
        is_plain = self.config.tied or self.matrices.head.name not in self.outside
        modules = ["lm_head"] if is_plain else []
        for name, entry in self.tensors.items():
            is_matrix = len(entry.shape) == 2 and name.endswith(".weight")
            if is_matrix and name not in self.stored and canonical(name) != EMBEDDING:
                modules.append(name.removesuffix(".weight"))
        return list(dict.fromkeys(modules))

    @property
    def skipped(self) -> list[str]:
        """The modules of block matrices that stay plain, which a source may already have."""
        return [one.module for one in self.matrices.of_blocks if one.name not in self.stored]

    @property
    def size_bytes(self) -> int:
        return self.layout.size_bytes

    @property
    def source_bytes(self) -> int:
        return sum(one.size_bytes for one in self.headers)

    @property
    def parameters(self) -> int:
        """Number of weights of the model."""
        return sum(prod(one.shape) for one in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.size_bytes / self.parameters

    @property
    def source_bits_per_weight(self) -> float:
        return 8 * self.source_bytes / self.parameters

    def memory_bytes(self, context: int) -> int:
        """Weights and key-value cache of the result, at `context` tokens."""
        numbers = context * self.config.kv_elements * len(self.config.layers)
        matrices = [one for piece in self.pieces for one in piece.matrices]
        of_six = [one for one in matrices if self.stored[one.name].bits == 6]
        spread = sum(one.outputs * one.inputs for one in of_six) // 4  # Held in 8 bits.
        return self.size_bytes + spread + numbers * _KV_BYTES

    def facts(self, *, tensors: bool = False) -> dict[str, Any]:
        """The plan as JSON values, with a list of the tensors on request."""
        kinds = Counter[str]()
        rows = []
        for name, entry in self.tensors.items():
            own = self._by_source.get(name)
            kind = entry.kind if own is None else self.stored[own[0].name].label
            kinds[kind] += 1
            rows.append(
                {
                    "name": name,
                    "shape": list(entry.shape),
                    "source_type": entry.kind,
                    "type": kind,
                    "size_bytes": self._size(name),
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
        if self.checkpoint is not None:
            facts["notices"] = list(self.checkpoint.notices)
        return facts | ({"tensors": rows} if tensors else {})

    def _size(self, name: str) -> int:
        """Bytes that a stored tensor takes in the new files."""
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
        outside: bits of embedding and output matrix, for those that are not copied; only for
            compressed-tensors.

    Raises:
        BadRecipe: embedding and output matrix are tied, but given different bits.
        CorruptFile, UnsupportedModel: the folder is invalid, or the family is not known.
        CannotQuantize: the shape of a matrix does not fit the storage.
    """
    fields = read_fields(folder / CONFIG)
    checkpoint = read_checkpoint(fields)
    if checkpoint is not None:
        raise UnsupportedModel(
            f"{folder}: the weights are quantized already ({checkpoint.label}).",
            "Quantize the model's original weights; hearth convert writes these in another format.",
            path=str(folder),
            field=KEY,
        )
    family = family_of_hf(fields)
    headers = read_folder(folder)
    tensors = resolve(headers, None)
    config = as_stored(family.from_hf(fields), headers, tensors)
    matrices = matrices_of(family, config, tensors)
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
    for one in matrices.of_blocks:
        storage.check(one.name, one.outputs, one.inputs)
    return FolderPlan(
        method,
        folder,
        family,
        config,
        headers,
        matrices,
        storage,
        {one.name: storage for one in matrices.of_blocks} | both,
        calibration,
        options,
        file_bytes,
    )


def outside_storage(bits: int, inputs: int) -> Storage:
    """The storage of an embedding or output matrix: 8 bits with a scale for each row, or 6 bits in
    groups of up to 128 inputs; a scale for each row if no group size divides the inputs.
    """
    fitting = [one for one in (128, 64, 32, 16, 8) if inputs % one == 0]
    if bits == 8 or not fitting:
        return Storage("packed", "int", bits, "row", None)
    return Storage("packed", "int", bits, "group", fitting[0])
