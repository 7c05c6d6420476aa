"""What files do to weights that the decoder does not expect, and how it is undone.

All functions are pure. Packed tensors are uint8 [*, rows, bytes of a row]: whole rows may be moved,
nothing else. Torch is imported when something is undone, since configs are read without it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hearth.quant.errors import UnsupportedModel

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InterleavedHeads:
    """Rows of each head alternate between its two rotary halves (llama.cpp's converter does that to
    queries and keys of architectures whose rotary pairs are neighbours).
    """

    heads: int
    head_dim: int
    """The first heads · head_dim rows are concerned; further ones are left alone."""


@dataclass(frozen=True, slots=True)
class NormOffset:
    """A norm's weight is stored minus one (Gemma's safetensors)."""


@dataclass(frozen=True, slots=True)
class InterleavedGateUp:
    """Rows of gate and up alternate: [experts, 2 · width, ...], gate first (gpt-oss)."""


@dataclass(frozen=True, slots=True)
class Transposed:
    """Stacked matrices are stored [experts, inputs, outputs] (gpt-oss in plain dtypes)."""


@dataclass(frozen=True, slots=True)
class MxFp4Blocks:
    """Two tensors, blocks [experts, rows, groups, 16] uint8 and scales [experts, rows, groups]
    uint8, instead of one (gpt-oss). Together they are what GGUF packs as MXFP4.
    """


Quirk = InterleavedHeads | NormOffset | InterleavedGateUp | Transposed | MxFp4Blocks


def undo(quirk: Quirk, tensor: Tensor) -> Tensor:
    """`tensor` as the decoder wants it: a view where possible, a new tensor otherwise.

    Args:
        tensor: plain, or packed (uint8). Never `MxFp4Blocks`, which takes two: see
            `hearth.quant.mxfp4`.

    Raises:
        UnsupportedModel: the quirk cannot be undone on packed rows.
        ValueError: the tensor's shape does not suit the quirk.
    """
    import torch

    match quirk:
        case InterleavedHeads(heads, head_dim):
            return _halves_of_heads(tensor, heads, head_dim)
        case InterleavedGateUp():
            if tensor.shape[1] % 2:
                raise ValueError(f"{tensor.shape[1]} rows do not alternate between gate and up")
            return torch.cat((tensor[:, 0::2], tensor[:, 1::2]), dim=1)
        case NormOffset():
            _refuse_packed(quirk, tensor)
            return tensor.float() + 1.0
        case Transposed():
            _refuse_packed(quirk, tensor)
            return tensor.transpose(-1, -2)
        case MxFp4Blocks():
            raise ValueError("MxFp4Blocks concerns two tensors: use pack_mxfp4")


def undone_shape(quirk: Quirk, shape: Shape) -> Shape:
    """The shape of what `undo` gives for a tensor of the (unpacked) `shape`."""
    match quirk:
        case Transposed():
            return (*shape[:-2], shape[-1], shape[-2])
        case MxFp4Blocks():
            return (*shape[:-2], shape[-2] * 2 * shape[-1])
        case _:
            return shape


def _halves_of_heads(tensor: Tensor, heads: int, head_dim: int) -> Tensor:
    import torch

    rows = heads * head_dim
    if tensor.shape[0] < rows or head_dim % 2:
        raise ValueError(f"{tensor.shape[0]} rows do not hold {heads} heads of {head_dim}")
    pairs = tensor[:rows].reshape(heads, head_dim // 2, 2, *tensor.shape[1:])
    turned = pairs.transpose(1, 2).flatten(0, 2)
    return turned if rows == tensor.shape[0] else torch.cat((turned, tensor[rows:]))


def _refuse_packed(quirk: Quirk, tensor: Tensor) -> None:
    import torch

    if tensor.dtype is torch.uint8:
        raise UnsupportedModel(
            f"A packed tensor is stored with {type(quirk).__name__}, which needs plain numbers.",
            "Convert the model again, with this tensor in F32.",
        )
