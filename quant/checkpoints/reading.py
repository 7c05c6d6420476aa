"""Quantized matrices out of the tensors of a checkpoint, as they are: codes may be moved and their
bits packed otherwise, no number changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.packed import PackedWeight
from hearth.quant.checkpoints.bits import as_bytes, pack_nibbles, unpack_bits
from hearth.quant.checkpoints.groups import Groups, even_groups
from hearth.quant.checkpoints.modules import groups_of
from hearth.quant.checkpoints.scheme import Layout, QuantizedTensor

Read = Callable[[str], Tensor]
"""A stored tensor by name, not to be written to."""
_CODES: Final = 1 << 24
"""At a time, where each is moved: 16 MiB."""
_MIDDLE: Final = {"INT4": 8, "INT8": 128}
"""The code that stands for zero where a `PackedWeight` names none."""
_COLUMNS: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""AWQ: which code of a word is of its first column, its second ..."""


def read_quantized(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    """The matrix [outputs, inputs]: over what `read` gives where it is stored alike, else a copy.

    Raises:
        CorruptFile: a value that cannot be.
        UnsupportedModel: groups that cannot be used.
    """
    return _READERS[tensor.scheme.layout](tensor, read)


def _gptq(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    scheme, (outputs, inputs) = tensor.scheme, tensor.shape
    count = groups_of(inputs, scheme.group)
    if ".g_idx" in tensor.parts:
        numbers, name = read(tensor.parts[".g_idx"]), tensor.parts[".g_idx"]
    else:
        numbers, name = torch.arange(inputs) // (scheme.group or inputs), tensor.name
    groups = even_groups(numbers, count, name)
    stored = as_bytes(read(tensor.parts[".qzeros"]))
    mask = (1 << scheme.bits) - 1
    # Zero is stored minus one in the first format, as the mask of bits would have it.
    zeros = unpack_bits(stored, scheme.bits)[:, :outputs] + scheme.zero_offset & mask
    words = read(tensor.parts[".qweight"])

    def codes(some: slice) -> Tensor:
        return unpack_bits(as_bytes(words[:, some].t()), scheme.bits)

    scales = groups.spread(read(tensor.parts[".scales"]))
    return _integers(tensor, codes, scales, zeros, groups)


def _awq(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    _, inputs = tensor.shape
    group = tensor.scheme.group or inputs
    groups = even_groups(torch.arange(inputs) // group, inputs // group, tensor.name)
    words = read(tensor.parts[".qweight"])

    def in_columns(some: Tensor) -> Tensor:
        """[n, words] -> [n, 8 · words] uint8: the codes of each column."""
        codes = torch.unflatten(unpack_bits(as_bytes(some), 4), -1, (-1, 8))
        return codes[..., _COLUMNS].flatten(-2)

    def codes(some: slice) -> Tensor:
        return in_columns(words[:, some.start // 8 : -(-some.stop // 8)]).t()

    zeros = in_columns(read(tensor.parts[".qzeros"]))
    scales = groups.spread(read(tensor.parts[".scales"]))
    return _integers(tensor, codes, scales, zeros, groups)


def _integers(
    tensor: QuantizedTensor,
    codes: Callable[[slice], Tensor],
    scales: Tensor,
    zeros: Tensor,
    groups: Groups,
) -> PackedWeight:
    """A copy of codes that are stored in another order.

    Args:
        codes: gives those of some outputs, [outputs, inputs] uint8 in the order of the file; asked
            for multiples of 8 outputs, but for the last.
        scales: [outputs, groups of one length].
        zeros: [groups, outputs] uint8.
    """
    packing, (outputs, inputs) = tensor.packing, tensor.shape
    first = int(zeros[0, 0])
    middle = _MIDDLE[packing]
    # The middle one needs not be stored; codes of fewer bits can be moved there.
    is_even = bool((zeros == first).all()) and (first == middle or tensor.scheme.bits < 4)
    shift = middle - first if is_even else 0
    is_byte = packing == "INT8"
    weight = torch.empty((outputs, inputs if is_byte else inputs // 2), dtype=torch.uint8)
    step = max(8, _CODES // inputs // 8 * 8)
    for start in range(0, outputs, step):
        some = slice(start, min(start + step, outputs))
        found = codes(some)
        if groups.order is not None:
            found = found.index_select(1, groups.order)
        if shift:
            found = found + shift
        weight[some] = found if is_byte else pack_nibbles(found)
    held = None if is_even else groups.spread(zeros)
    return PackedWeight(weight, packing, scales, held, groups.order)


_READERS: Final[dict[Layout, Callable[[QuantizedTensor, Read], PackedWeight]]] = {
    "gptq": _gptq,
    "awq": _awq,
}
