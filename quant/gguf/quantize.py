"""The plan of a quantization: what becomes of each tensor, and exactly how large the file will be.

Nothing is packed here and numpy is not needed; `quantize_run` carries a plan out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from hearth.quant.gguf.errors import CannotQuantize, NeedsImportanceMatrix
from hearth.quant.gguf.file import GgufFile, TensorInfo
from hearth.quant.gguf.hparams import read_hyper_parameters
from hearth.quant.gguf.imatrix import ImportanceMatrix
from hearth.quant.gguf.mixes import NEEDS_MATRIX, PLAIN, WANTS_MATRIX, Recipe
from hearth.quant.gguf.quantize_types import (
    Choice,
    ModelFacts,
    Role,
    choose_types,
    ordered,
    role_of,
    trimmed,
)
from hearth.quant.gguf.source import WeightSource
from hearth.quant.gguf.types import TensorType, ValueType
from hearth.quant.gguf.writer import Layout, lay_out, pair_bytes

_QUANTIZATION_VERSION = 2
"""`GGML_QNT_VERSION`: how blocks are laid out."""
CHUNK_WEIGHTS = 1 << 18
"""Weights that one thread packs at a time: 1 MiB as float32, under a second in the slowest type."""
CHUNKS_AHEAD = 2
"""Chunks a thread that are read or packed, but not written yet."""
_LEFT_OUT = ("split.no", "split.count", "split.tensors.count")
"""The result is one file."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What becomes of one tensor."""

    name: str
    shape: tuple[int, ...]
    """In ggml's order: the contiguous dimension first."""
    source_type: TensorType
    type: TensorType
    wanted: TensorType
    """Differs from `type` where the rows are not made of such blocks."""
    path: Path
    """The file of the source that holds it."""
    source_bytes: int
    """As the source's header has it."""
    size_bytes: int
    weighted: bool
    """The importance matrix knows it."""

    @property
    def row_length(self) -> int:
        return self.shape[0]

    @property
    def rows(self) -> int:
        return prod(self.shape[1:])

    @property
    def changes(self) -> bool:
        """It is not merely copied."""
        return self.type is not self.source_type


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """What will be made, to the byte."""

    source: WeightSource
    recipe: Recipe
    matrix: ImportanceMatrix | None
    tensors: tuple[TensorPlan, ...]
    """In the order of the result."""
    layout: Layout = field(repr=False)
    request: Mapping[str, Any] | None = None
    """Method, source, type and options that give this plan again; None: those of the method that
    makes GGUF files.
    """

    @property
    def makes_matrix(self) -> bool:
        """The importance matrix is still to be made, by running the source."""
        return self.matrix is not None and self.matrix.is_planned

    @property
    def size_bytes(self) -> int:
        """Of the result: metadata, tensors and padding."""
        return self.layout.size

    @property
    def source_bytes(self) -> int:
        """Of the source, all its files."""
        return sum(file.size_bytes for file in self.source.files)

    @property
    def weights_bytes(self) -> int:
        """Of the tensors alone."""
        return sum(tensor.size_bytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(prod(tensor.shape) for tensor in self.tensors)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.weights_bytes / self.parameters

    @property
    def source_bits_per_weight(self) -> float:
        return 8 * sum(tensor.source_bytes for tensor in self.tensors) / self.parameters

    @property
    def types(self) -> Counter[TensorType]:
        """How many tensors get each type."""
        return Counter(tensor.type for tensor in self.tensors)

    @property
    def fallbacks(self) -> list[TensorPlan]:
        """The tensors whose rows are not made of the blocks that the mix wants."""
        return [tensor for tensor in self.tensors if tensor.type is not tensor.wanted]

    def memory_bytes(self, context: int) -> int:
        """What the result takes in memory at `context` tokens: weights and key-value cache."""
        return self.weights_bytes + context * self.source.header.kv_bytes_per_token()

    def facts(self, *, tensors: bool = False) -> dict[str, Any]:
        """The plan as JSON values, with a list of the tensors on request."""
        header = self.source.header
        facts: dict[str, Any] = {
            "source": str(header.path),
            "source_type": header.file_type_name,
            "source_bytes": self.source_bytes,
            "source_bits_per_weight": round(self.source_bits_per_weight, 3),
            "type": self.recipe.mix.name,
            "overrides": [str(override) for override in self.recipe.overrides],
            "imatrix": "auto"
            if self.makes_matrix
            else None
            if self.matrix is None
            else str(self.matrix.path),
            "size_bytes": self.size_bytes,
            "bits_per_weight": round(self.bits_per_weight, 3),
            "parameters": self.parameters,
            "memory_bytes": self.memory_bytes(header.context_length),
            "memory_context": header.context_length,
            "types": {kind.name: count for kind, count in self.types.most_common()},
            "fallbacks": [tensor.name for tensor in self.fallbacks],
        }
        if tensors:
            facts["tensors"] = [
                {
                    "name": tensor.name,
                    "shape": list(tensor.shape),
                    "source_type": tensor.source_type.name,
                    "type": tensor.type.name,
                    "size_bytes": tensor.size_bytes,
                }
                for tensor in self.tensors
            ]
        return facts


def plan(
    source: WeightSource,
    recipe: Recipe,
    matrix: ImportanceMatrix | None = None,
    *,
    requantize: bool = False,
) -> QuantizePlan:
    """What quantizing `source` by `recipe` will make.

    Args:
        source: a checked model; one in several files becomes one.
        matrix: importance of the weights' columns.
        requantize: weights that are in blocks already may be packed again, and lose twice.

    Raises:
        CannotQuantize: the source is quantized already, has nothing to change, or does not fit.
        NeedsImportanceMatrix: the mix makes no usable model without one.
        CorruptFile: a hyper-parameter is missing.
    """
    if matrix is not None and recipe.mix.keeps_numbers:
        raise CannotQuantize(
            f"{recipe.mix.name} rounds each weight by itself; no importance matrix is used for it.",
            "Leave out the importance matrix (--imatrix), or choose a type of fewer bits.",
        )
    header = source.header
    facts = ModelFacts.of(header, read_hyper_parameters(header))
    tensors = ordered(header.all_tensors)
    choices = choose_types(tensors, facts, recipe, with_matrix=matrix is not None)
    planned = []
    for tensor, wanted in zip(tensors, choices, strict=True):
        choice = wanted
        if source.converts and not requantize and _stays_packed(tensor, recipe):
            choice = Choice(tensor.type, tensor.type)
        weighted = _weighted(header, tensor, choice, recipe, matrix)
        _check_source(source, tensor, choice, requantize=requantize)
        planned.append(
            TensorPlan(
                name=tensor.name,
                shape=trimmed(tensor.shape),
                source_type=tensor.type,
                type=choice.type,
                wanted=choice.wanted,
                path=source.home(tensor.name),
                source_bytes=tensor.nbytes,
                size_bytes=tensor.elements // choice.type.block_elements * choice.type.block_bytes,
                weighted=weighted,
            )
        )
    if not source.converts and not any(tensor.changes for tensor in planned):
        raise CannotQuantize(
            f"{header.path.name} is {recipe.name} already: no tensor would change.",
            "Choose another type.",
        )
    if matrix is not None and not any(tensor.weighted for tensor in planned):
        raise CannotQuantize(
            f"{matrix.path.name} knows no tensor of {header.path.name} that is to be changed.",
            "Pass the importance matrix of this model.",
        )
    layout = lay_out(
        _metadata(source, recipe, matrix),
        [(tensor.name, tensor.shape, tensor.type, tensor.size_bytes) for tensor in planned],
        header.alignment,
    )
    return QuantizePlan(source, recipe, matrix, tuple(planned), layout)


def _stays_packed(tensor: TensorInfo, recipe: Recipe) -> bool:
    """Weights that a folder holds in blocks stay so where plain numbers were asked for: wider ones
    would say nothing more. A type that is given to the tensor itself counts.
    """
    is_asked = recipe.override_of(tensor.name) is not None
    return tensor.type not in PLAIN and recipe.mix.keeps_numbers and not is_asked


def _check_source(
    source: WeightSource, tensor: TensorInfo, choice: Choice, *, requantize: bool
) -> None:
    if choice.type is tensor.type or tensor.type in PLAIN or requantize:
        return
    other = "Take the model's F16, BF16 or F32 file."
    if source.converts:
        other = f"BF16 and {tensor.type.name}_MOE keep such weights as they are."
    raise CannotQuantize(
        f"{source.header.path.name} is quantized already ({source.header.file_type_name}; "
        f"{tensor.name} is {tensor.type.name}), and packing it again would lose twice.",
        f"{other} The option requantize (--requantize) does it all the same.",
        tensor=tensor.name,
    )


def _weighted(
    source: GgufFile,
    tensor: TensorInfo,
    choice: Choice,
    recipe: Recipe,
    matrix: ImportanceMatrix | None,
) -> bool:
    """The importance matrix is used for `tensor`. Raises where it must be and cannot."""
    if choice.type is tensor.type or choice.type in PLAIN:
        return False
    entry = None if matrix is None else matrix.entries.get(tensor.name)
    embedding = role_of(tensor.name) is Role.EMBEDDING
    if matrix is not None and entry is not None:
        needed = tensor.shape[0] * prod(tensor.shape[2:])
        if entry.values == needed:
            return True
        # What computes importance matrices counts the rows of embeddings, not their columns.
        if not embedding:
            raise CannotQuantize(
                f"{matrix.path.name} has {entry.values:,} values for {tensor.name}, which has "
                f"{needed:,} columns.",
                "Pass the importance matrix of this model.",
                tensor=tensor.name,
            )
    wanting = choice.type in WANTS_MATRIX or (
        recipe.mix.name == "Q2_K_S" and choice.type is TensorType.Q2_K
    )
    if embedding or role_of(tensor.name) is Role.OUTPUT:
        wanting = choice.type in NEEDS_MATRIX
    if wanting:
        lacking = "there is none" if matrix is None else f"{matrix.path.name} does not know it"
        raise NeedsImportanceMatrix(
            f"{tensor.name} of {source.path.name} would become {choice.type.name}, which needs an "
            f"importance matrix: {lacking}.",
            "Have one made (--imatrix auto), pass one (publishers put them beside their files), or "
            "choose a type of 3 bits or more, such as Q3_K_M.",
            tensor=tensor.name,
        )
    return False


def _metadata(
    source: WeightSource, recipe: Recipe, matrix: ImportanceMatrix | None
) -> dict[str, bytes]:
    """The pairs of the source, and those that say how it was quantized, at the end."""
    U32, TEXT = ValueType.U32, ValueType.STRING  # noqa: N806 - as the format writes them
    own: list[tuple[str, ValueType, int | str]] = [
        ("general.quantization_version", U32, _QUANTIZATION_VERSION),
        ("general.file_type", U32, recipe.mix.number),
    ]
    if matrix is not None:
        own.append(("quantize.imatrix.file", TEXT, matrix.path.name))
        if matrix.dataset:
            own.append(("quantize.imatrix.dataset", TEXT, matrix.dataset))
        own.append(("quantize.imatrix.entries_count", U32, len(matrix.entries)))
        if matrix.chunks:
            own.append(("quantize.imatrix.chunks_count", U32, matrix.chunks))
    pairs = dict(source.pairs())
    for key in _LEFT_OUT:
        pairs.pop(key, None)
    for key, kind, value in own:
        pairs.pop(key, None)
        pairs[key] = pair_bytes(key, kind, value)
    return pairs
