"""Where a parameter comes from: which stored tensors, joined how, with which quirks."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hearth.quant.families.quirks import (
    MxFp4Blocks,
    Quirk,
    Shape,
    undo,
    undone_shape,
)
from hearth.quant.mxfp4 import pack_mxfp4

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a parameter that are stored together.

    One name: that tensor. Several: one for each expert, stacked along a new first axis; with the
    quirk `MxFp4Blocks` first, the blocks and the scales of one tensor.
    """

    names: tuple[str, ...]
    quirks: tuple[Quirk, ...] = ()
    """Undone one after the other, from the first on, once the names are stacked."""


Choice = tuple[Part, ...]
"""Parts that together make up a parameter, in their order along `Source.axis`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from, in either kind of file.

    Files store the same parameter in several ways, so there are choices; the first one whose
    tensors are all there is taken.
    """

    hf: tuple[Choice, ...]
    """Names of safetensors files, as `canonical` spells them."""
    gguf: tuple[Choice, ...]
    axis: int = 0
    """Parts are joined along it: rows, which is 1 for stacked experts."""


def choose(choices: tuple[Choice, ...], stored: Container[str]) -> Choice | None:
    """The first of `choices` whose tensors are all `stored`; None where there is none."""
    for choice in choices:
        if all(name in stored for part in choice for name in part.names):
            return choice
    return None


def one(name: str, *quirks: Quirk) -> tuple[Choice, ...]:
    """A parameter that is one stored tensor."""
    return ((Part((name,), quirks),),)


def joined(*names: str) -> tuple[Choice, ...]:
    """A parameter whose rows are those of several stored tensors."""
    return (tuple(Part((name,)) for name in names),)


def rows_of(part: Part, tensors: Sequence[Tensor]) -> Tensor:
    """The rows of a parameter that `part` stands for, quirks undone.

    Args:
        tensors: what is stored under `part.names`, plain or packed.

    Raises:
        UnsupportedModel, ValueError: as `undo`.
    """
    import torch

    quirks = part.quirks
    if quirks and isinstance(quirks[0], MxFp4Blocks):
        blocks, scales = tensors
        joined_tensors = pack_mxfp4(blocks, scales)
        quirks = quirks[1:]
    else:
        joined_tensors = tensors[0] if len(tensors) == 1 else torch.stack(tuple(tensors))
    for quirk in quirks:
        joined_tensors = undo(quirk, joined_tensors)
    return joined_tensors


def shape_of(part: Part, shapes: Sequence[Shape]) -> Shape:
    """The shape of what `rows_of` gives, in numbers (not bytes), before anything is read.

    Args:
        shapes: of what is stored under `part.names`.

    Raises:
        ValueError: experts of different shapes.
    """
    shape = shapes[0]
    if len(part.names) > 1 and not (part.quirks and isinstance(part.quirks[0], MxFp4Blocks)):
        if len(set(shapes)) > 1:
            raise ValueError(f"experts have different shapes: {sorted(set(shapes))}")
        shape = (len(shapes), *shape)
    for quirk in part.quirks:
        shape = undone_shape(quirk, shape)
    return shape
