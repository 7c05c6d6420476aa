"""The matrices of a model that can be quantized, by block and in the order in which they are
computed. From headers only, without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.inventory import Wanted, rows_of_parts, take_inventory
from hearth.quant.families.source import Choice, Part
from hearth.quant.stored import LOADED, StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

STAGES: Final = (
    *("qkv", "out", "gate_up", "down"),
    *("experts.gate_up", "experts.down"),
)
"""Modules of a layer of the decoder, in the order in which they are computed."""
_EXPERTS: Final = ".experts."
_VECTORS: Final = ("attention_norm.weight", "feed_forward_norm.weight", "qkv.bias")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stored matrix [outputs, inputs], and where in the decoder its rows are."""

    name: str
    """Name of its tensor if it is stored as a tensor of its own; it ends in ".weight"."""
    outputs: int
    inputs: int
    parameter: str
    """Name of the parameter in the decoder, such as "layers.0.qkv.weight"."""
    first_row: int
    """First row within the parameter."""
    expert: int | None = None
    stacked_in: str | None = None
    """Name of the tensor [experts, rows of the parameter, inputs] that contains it; None if it is
    stored as a tensor of its own."""

    @property
    def source(self) -> str:
        """The name of the stored tensor."""
        return self.stacked_in or self.name

    def rows_in(self, tensor: Tensor) -> Tensor:
        """The matrix [outputs, inputs] as a view of the stored tensor."""
        if self.stacked_in is None:
            return tensor
        return tensor[self.expert, self.first_row : self.first_row + self.outputs]

    @property
    def module(self) -> str:
        """The name of its module in the checkpoint."""
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class Stage:
    """The matrices of a block that are computed at the same time."""

    module: str
    """Module of the decoder's layer: "qkv", "out", "gate_up", "down", or those of experts."""
    groups: Mapping[int | None, tuple[Matrix, ...]]
    """Matrices with the same inputs, by expert; None for matrices that all tokens use."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A stored norm or bias that scales can be folded into."""

    name: str
    """Name of the stored tensor."""
    parameter: str
    """"attention_norm.weight", "feed_forward_norm.weight" or "qkv.bias" of the decoder's layer."""
    first: int
    """First index within the parameter."""
    count: int
    offset: float
    """The number that the decoder adds to the stored values."""


@dataclass(frozen=True, slots=True)
class Block:
    """One layer."""

    index: int
    stages: tuple[Stage, ...]
    vectors: tuple[Vector, ...]

    @property
    def matrices(self) -> Iterable[Matrix]:
        """In order of computation."""
        for stage in self.stages:
            for group in stage.groups.values():
                yield from group


@dataclass(frozen=True, slots=True)
class Matrices:
    """All matrices of a model."""

    blocks: tuple[Block, ...]
    embedding: Matrix
    head: Matrix
    """The output matrix; the embedding if they are tied."""

    @property
    def of_blocks(self) -> Iterable[Matrix]:
        """The matrices of all blocks, in order of computation."""
        for block in self.blocks:
            yield from block.matrices


def matrices_of(
    family: Family, config: ModelConfig, stored: Mapping[str, StoredTensor]
) -> Matrices:
    """
    Args:
        stored: the tensors of a folder with plain numbers.

    Raises:
        CorruptFile, UnsupportedModel: as in `take_inventory`; also for stacked experts of families
            that have no names for single experts (gpt-oss).
    """
    wanted = take_inventory(family, config, stored, is_gguf=False, kinds=LOADED).wanted
    blocks = []
    for layer in range(len(config.layers)):
        stages = []
        for module in STAGES:
            parameter = f"layers.{layer}.{module}.weight"
            if parameter in wanted:
                stages.append(Stage(module, _groups(wanted[parameter], config, stored)))
        vectors: list[Vector] = []
        for parameter in _VECTORS:
            if (one := wanted.get(f"layers.{layer}.{parameter}")) is not None:
                vectors += _vectors(one, parameter, config)
        blocks.append(Block(layer, tuple(stages), tuple(vectors)))
    ((embedding,),) = _groups(wanted["embedding.weight"], config, stored).values()
    head = embedding
    if not config.tied:
        ((head,),) = _groups(wanted["output.weight"], config, stored).values()
    return Matrices(tuple(blocks), embedding, head)


def _vectors(wanted: Wanted, parameter: str, config: ModelConfig) -> Iterable[Vector]:
    first = 0
    for part, count in zip(
        wanted.choice, rows_of_parts(wanted.shape, 0, len(wanted.choice), config), strict=True
    ):
        yield Vector(part.names[0], parameter, first, count, float(part.is_minus_one))
        first += count


def _groups(
    wanted: Wanted, config: ModelConfig, stored: Mapping[str, StoredTensor]
) -> dict[int | None, tuple[Matrix, ...]]:
    has_experts = len(wanted.shape) == 3
    groups: dict[int | None, list[Matrix]] = {}
    first, choice, stack = 0, wanted.choice, None
    if has_experts and len(stored[choice[0].names[0]].shape) == 3:
        stack = choice[0].names[0]
        choice = _single_experts(wanted, stack)
    rows = rows_of_parts(wanted.shape, wanted.axis, len(choice), config)
    for part, count in zip(choice, rows, strict=True):
        for number, name in enumerate(part.names):
            expert = number if has_experts else None
            inputs = wanted.shape[-1]
            entry = Matrix(name, count, inputs, wanted.name, first, expert, stack)
            groups.setdefault(expert, []).append(entry)
        first += count
    return {expert: tuple(entry) for expert, entry in groups.items()}


def _single_experts(wanted: Wanted, stack: str) -> Choice:
    """The family's names for the matrices of single experts, for those in the tensor `stack`.

    Raises:
        UnsupportedModel: the family has no such names, or stacked experts have another layout.
    """
    (part,) = wanted.choice
    place, _, _ = stack.rpartition(_EXPERTS)
    for choice in wanted.source.hf:
        names = [name for one in choice for name in one.names]
        if part == Part((stack,)) and all(one == Part(one.names) for one in choice):
            tails = [name.rpartition(_EXPERTS)[2] for name in names]
            if all(tail.partition(".")[0].isdecimal() for tail in tails):
                return tuple(
                    Part(
                        tuple(
                            f"{place}{_EXPERTS}{name.rpartition(_EXPERTS)[2]}" for name in one.names
                        )
                    )
                    for one in choice
                )
    raise UnsupportedModel(
        f"Tensor '{stack}' holds the matrices of all experts, and folders of this family have no "
        "quantized form of them.",
        "Quantize the model to GGUF.",
        field=stack,
    )
