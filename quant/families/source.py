"""Where a parameter comes from: which stored tensors, and how they are changed and joined.

Torch is imported only when tensors are changed, since configs are also read without it.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hearth.quant.errors import UnsupportedModel
from hearth.quant.mxfp4 import pack_mxfp4

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a parameter that are stored together, and the changes that turn their stored layout
    into that of the decoder, applied in the order of the fields.
    """

    names: tuple[str, ...]
    """One tensor; one for each expert, stacked along a new first axis; or blocks and scales."""
    is_mxfp4: bool = False
    """Two tensors, blocks [experts, rows, groups, 16] uint8 and scales [experts, rows, groups]
    uint8 (gpt-oss). Together they are what GGUF packs as MXFP4.
    """
    is_transposed: bool = False
    """Stacked matrices are stored [experts, inputs, outputs] (gpt-oss in plain dtypes)."""
    alternates: bool = False
    """Rows of gate and up alternate: [experts, 2 · width, ...], gate first (gpt-oss)."""
    heads: int = 0
    """Number of leading heads whose rows alternate between the two rotary halves of the head
    (llama.cpp's converter reorders queries and keys like this for architectures whose rotary pairs
    are neighbours).
    """
    head_dim: int = 0
    """Rows of one of these heads; the rows after these heads are not changed."""
    is_minus_one: bool = False
    """A norm's weight is stored minus one (Gemma's safetensors)."""


Choice = tuple[Part, ...]
"""Parts that together make up a parameter, in their order along `Source.axis`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a parameter comes from, in either kind of file.

    Files store the same parameter in several ways, so there are several choices; the first one
    whose tensors are all present is used.
    """

    hf: tuple[Choice, ...]
    """Choices in safetensors files, with canonical names (see `canonical`)."""
    gguf: tuple[Choice, ...]
    axis: int = 0
    """The axis of rows, along which parts are joined; 1 for stacked experts."""


def choose(choices: tuple[Choice, ...], stored: Container[str]) -> Choice | None:
    """The first of `choices` whose tensors are all in `stored`; None if there is none."""
    for choice in choices:
        if all(name in stored for part in choice for name in part.names):
            return choice
    return None


def one(name: str) -> tuple[Choice, ...]:
    """A parameter that is one stored tensor."""
    return ((Part((name,)),),)


def joined(*names: str) -> tuple[Choice, ...]:
    """A parameter whose rows are those of several stored tensors."""
    return (tuple(Part((name,)) for name in names),)


def rows_of(part: Part, tensors: Sequence[Tensor]) -> Tensor:
    """The rows of a parameter that `part` describes: a view where possible, else a new tensor.

    Args:
        tensors: the tensors stored under `part.names`, plain or packed. Packed ones are uint8
            [*, rows, bytes of a row]; only whole rows of these can be moved.

    Raises:
        UnsupportedModel: packed rows would have to be changed.
        ValueError: the shapes do not fit `part`.
    """
    import torch

    if part.is_mxfp4:
        rows = pack_mxfp4(*tensors)
    else:
        rows = tensors[0] if len(tensors) == 1 else torch.stack(tuple(tensors))
    if rows.dtype is torch.uint8 and (part.is_transposed or part.is_minus_one):
        raise UnsupportedModel(
            f"Tensor '{part.names[0]}' is packed, and plain numbers are needed.",
            "Convert the model again, with this tensor in F32.",
        )
    if part.is_transposed:
        rows = rows.transpose(-1, -2)
    if part.alternates:
        if rows.shape[1] % 2:
            raise ValueError(f"{rows.shape[1]} rows do not alternate between gate and up")
        rows = torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1)
    if part.heads:
        rows = _halves_of_heads(rows, part.heads, part.head_dim)
    return rows.float() + 1.0 if part.is_minus_one else rows


def shape_of(part: Part, shapes: Sequence[Shape]) -> Shape:
    """The shape of the result of `rows_of`, in numbers (not bytes), without reading data.

    Args:
        shapes: the shapes of the tensors stored under `part.names`.

    Raises:
        ValueError: experts of different shapes.
    """
    shape = shapes[0]
    if part.is_mxfp4:
        return (*shape[:-2], shape[-2] * 2 * shape[-1])
    if len(part.names) > 1:
        if len(set(shapes)) > 1:
            raise ValueError(f"experts have different shapes: {sorted(set(shapes))}")
        shape = (len(shapes), *shape)
    return (*shape[:-2], shape[-1], shape[-2]) if part.is_transposed else shape


def _halves_of_heads(rows: Tensor, heads: int, head_dim: int) -> Tensor:
    import torch

    count = heads * head_dim
    if rows.shape[0] < count or head_dim % 2:
        raise ValueError(f"{rows.shape[0]} rows do not hold {heads} heads of {head_dim}")
    pairs = rows[:count].reshape(heads, head_dim // 2, 2, *rows.shape[1:])
    halves = pairs.transpose(1, 2).flatten(0, 2)
    return halves if count == rows.shape[0] else torch.cat((halves, rows[count:]))
