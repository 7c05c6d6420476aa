"""Where a tensor of a GGUF file comes from in a folder, and what must be done to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Picked:
    """Half of the rows of stacked matrices that hold gate and up."""

    count: int
    """Of the rows that are picked."""
    is_up: bool
    alternates: bool = False
    """Gate and up take turns; else all of gate comes first."""

    @property
    def rows(self) -> slice:
        """Which of them."""
        if self.alternates:
            return slice(int(self.is_up), None, 2)
        return slice(self.count, None) if self.is_up else slice(self.count)


@dataclass(frozen=True, slots=True)
class Origin:
    """Stored tensors, and what is done to them, in the order of the fields.

    Shapes are PyTorch's: a matrix is [outputs, inputs], stacked experts have an axis in front.
    """

    names: tuple[str, ...] = ()
    """One tensor; one for each expert, stacked; or blocks and scales where `packed`."""
    packed: bool = False
    """MXFP4 in two tensors, see `hearth.quant.mxfp4`."""
    transposed: bool = False
    """Stacked matrices are stored [experts, inputs, outputs]."""
    picked: Picked | None = None
    """Of stacked matrices or biases, along their second axis."""
    heads: int = 0
    """So many heads, whose rows are to alternate between their two rotary halves; 0: no change."""
    plus_one: bool = False
    """A norm that is stored minus one."""
    values: tuple[float, ...] = ()
    """Numbers that follow from the config, in place of stored ones."""


def shape_of(origin: Origin, shapes: Sequence[Shape]) -> Shape | None:
    """The shape of what `origin` gives; None where it does not suit the stored `shapes`.

    Args:
        shapes: of what is stored under `origin.names`.
    """
    if origin.values:
        return (len(origin.values),)
    shape: Shape | None = shapes[0]
    if origin.packed:
        shape = _packed_shape(*shapes)
    elif len(shapes) > 1:
        shape = (len(shapes), *shapes[0]) if len(set(shapes)) == 1 else None
    if shape is None or (origin.transposed and len(shape) != 3):
        return None
    if origin.transposed:
        shape = (shape[0], shape[2], shape[1])
    picked = origin.picked
    if picked is not None:
        if len(shape) < 2 or shape[1] != 2 * picked.count:
            return None
        shape = (shape[0], picked.count, *shape[2:])
    return shape


def _packed_shape(blocks: Shape, scales: Shape) -> Shape | None:
    if len(blocks) != 4 or blocks[:-1] != scales or blocks[3] != 16:
        return None
    return (*blocks[:2], blocks[2] * 32)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor that the GGUF file is to have."""

    name: str
    shape: Shape
    choices: tuple[Origin, ...]
    """Folders store the same weights in several ways: the first that is there is taken."""


def one(stored: str) -> tuple[Origin, ...]:
    """The tensor `stored`, as it is."""
    return (Origin((stored,)),)
