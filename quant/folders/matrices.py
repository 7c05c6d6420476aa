"""The matrices of a model that can be quantized, by block and in the order in which they are
computed. Headers alone, without torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hearth.quant.errors import UnsupportedModel
from hearth.quant.families.config import ModelConfig
from hearth.quant.families.family import Family
from hearth.quant.families.inventory import Wanted, rows_of_parts, take_inventory
from hearth.quant.families.source import Part
from hearth.quant.stored import LOADED, StoredTensor

STAGES: Final = (
    *("qkv", "out", "gate_up", "down"),
    *("experts.gate_up", "experts.down"),
)
"""Modules of a layer of the decoder, in the order in which they are computed."""
_VECTORS: Final = ("attention_norm.weight", "feed_forward_norm.weight", "qkv.bias")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A stored matrix [outputs, inputs], and where in the decoder its rows are."""

    name: str
    """Of the stored tensor; it ends in ".weight"."""
    outputs: int
    inputs: int
    parameter: str
    """Of the decoder, such as "layers.0.qkv.weight"."""
    first_row: int
    """Of the parameter."""
    expert: int | None = None

    @property
    def module(self) -> str:
        """Its name in the checkpoint, without what it is stored in."""
        return self.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class Stage:
    """What of a block is computed at the same time."""

    module: str
    """Of the decoder's layer: "qkv", "out", "gate_up", "down", or those of experts."""
    groups: Mapping[int | None, tuple[Matrix, ...]]
    """Matrices of the same inputs, by expert; None: of all tokens."""


@dataclass(frozen=True, slots=True)
class Vector:
    """A stored norm or bias that scales can be folded into."""

    name: str
    """Of the stored tensor."""
    parameter: str
    """Of the decoder's layer: "attention_norm.weight", "feed_forward_norm.weight" or "qkv.bias"."""
    first: int
    """Of the parameter's numbers."""
    count: int
    offset: float
    """What the decoder adds to what is stored."""


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
    """Those of a model."""

    blocks: tuple[Block, ...]
    head: Matrix
    """The output matrix, or the embedding that is used as one."""


def matrices_of(
    family: Family, config: ModelConfig, stored: Mapping[str, StoredTensor]
) -> Matrices:
    """
    Args:
        stored: the tensors of a folder with plain numbers.

    Raises:
        CorruptFile, UnsupportedModel: as `take_inventory`, and for experts that are stored stacked.
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
    name = "embedding.weight" if config.tied else "output.weight"
    ((head,),) = _groups(wanted[name], config, stored).values()
    return Matrices(tuple(blocks), head)


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
    first = 0
    rows = rows_of_parts(wanted.shape, wanted.axis, len(wanted.choice), config)
    for part, count in zip(wanted.choice, rows, strict=True):
        if part != Part(part.names) or (has_experts and len(part.names) < 2):
            raise UnsupportedModel(
                f"Tensor '{part.names[0]}' holds the matrices of all experts, which this method "
                "cannot quantize.",
                "Quantize the model to GGUF.",
                field=part.names[0],
            )
        for number, name in enumerate(part.names):
            expert = number if has_experts else None
            outputs, inputs = stored[name].shape
            found = Matrix(name, outputs, inputs, wanted.name, first, expert)
            groups.setdefault(expert, []).append(found)
        first += count
    return {expert: tuple(found) for expert, found in groups.items()}
