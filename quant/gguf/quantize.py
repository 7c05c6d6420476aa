"""The plan of a quantization: the new type of each tensor, and the exact size of the file.

Nothing is packed here, and numpy is not needed; `quantize_run` executes a plan.
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
"""`GGML_QNT_VERSION`: the version of the block layouts."""
CHUNK_WEIGHTS = 1 << 18
"""Weights that one thread packs at a time: 1 MiB as float32, under a second in the slowest type."""
CHUNKS_AHEAD = 2
"""Chunks per thread that are read or packed, but not written yet."""
_LEFT_OUT = ("split.no", "split.count", "split.tensors.count")
"""Keys to leave out, since the result is a single file."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The plan for one tensor."""

    name: str
    shape: tuple[int, ...]
    """In ggml's order: the contiguous dimension first."""
    source_type: TensorType
    type: TensorType
    wanted: TensorType
    """The type that the mix wants; differs from `type` if its blocks do not divide the rows."""
    path: Path
    """The file of the source that holds the tensor."""
    source_bytes: int
    """Size according to the source's header."""
    size_bytes: int
    weighted: bool
    """Whether the importance matrix is used for it."""

    @property
    def row_length(self) -> int:
        return self.shape[0]

    @property
    def rows(self) -> int:
        return prod(self.shape[1:])

    @property
    def changes(self) -> bool:
        """Whether it is converted rather than copied."""
        return self.type is not self.source_type


@dataclass(frozen=True, slots=True)
class QuantizePlan:
    """The plan of a GGUF file, which determines every byte of its layout."""

    source: WeightSource
    recipe: Recipe
    matrix: ImportanceMatrix | None
    tensors: tuple[TensorPlan, ...]
    """In the order of the result."""
    layout: Layout = field(repr=False)
    request: Mapping[str, Any] | None = None
    """Method, source, type and options from which this plan can be made again; None: derived for
    the GGUF method.
    """

    @property
    def makes_matrix(self) -> bool:
        """Whether the importance matrix has yet to be made by running the source."""
        return self.matrix is not None and self.matrix.is_planned

    @property
    def size_bytes(self) -> int:
        """Size of the result: metadata, tensors and padding."""
        return self.layout.size

    @property
    def source_bytes(self) -> int:
        """Size of all files of the source."""
        return sum(file.size_bytes for file in self.source.files)

    @property
    def weights_bytes(self) -> int:
        """Size of the tensors only."""
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
        """Number of tensors of each new type."""
        return Counter(tensor.type for tensor in self.tensors)

    @property
    def fallbacks(self) -> list[TensorPlan]:
        """The tensors that get another type than the mix wants, as its blocks do not fit."""
        return [tensor for tensor in self.tensors if tensor.type is not tensor.wanted]

    def memory_bytes(self, context: int) -> int:
        """Memory of the result at `context` tokens: weights and KV cache."""
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
    """Plan quantizing `source` with `recipe`.

    Args:
        source: a checked model; a model in several files becomes one file.
        matrix: importance of the weights' columns.
        requantize: weights that are already quantized may be packed again, with additional loss.

    Raises:
        CannotQuantize: the source is already quantized, nothing would change, or a shape does not
            fit.
        NeedsImportanceMatrix: the mix is unusable without an importance matrix.
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
                size_bytes=choice.type.nbytes(tensor.elements),
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
    """Whether packed weights of a folder stay packed although a plain type is requested, since
    wider numbers would hold no more information. An override for the tensor takes precedence.
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
    """Whether the importance matrix is used for `tensor`. Raises if it is needed but cannot be."""
    if choice.type is tensor.type or choice.type in PLAIN:
        return False
    entry = None if matrix is None else matrix.entries.get(tensor.name)
    embedding = role_of(tensor.name) is Role.EMBEDDING
    if matrix is not None and entry is not None:
        needed = tensor.shape[0] * prod(tensor.shape[2:])
        if entry.values == needed:
            return True
        # Programs that make importance matrices have a value for each row of an embedding, not
        # for each column.
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
    """The pairs of the source, followed by those that describe the quantization."""
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
