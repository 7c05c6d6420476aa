"""Quantized matrices out of the tensors of a checkpoint, as they are: codes may be moved and their
bits packed otherwise, no number changes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.bits import as_bytes, pack_bits, unpack_bits
from hearth.kernels.dequantize_codes import FP8_GROUP, MIDDLE, NF4, row_bytes_of
from hearth.kernels.packed import PackedWeight
from hearth.quant.checkpoints.groups import Groups, even_groups
from hearth.quant.checkpoints.modules import STATE, groups_of, state_of
from hearth.quant.checkpoints.scheme import Layout, QuantizedTensor, Scheme
from hearth.quant.errors import UnsupportedModel

Read = Callable[[str], Tensor]
"""A stored tensor by name, not to be written to."""
_CODES: Final = 1 << 22
"""At a time, where each is moved: 4 MiB, which stay in the processor's cache."""
_COLUMNS: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ: of which column of its word each code is, from the lowest bits on."""


def read_quantized(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    """The matrix [outputs, inputs]: over what `read` gives where it is stored alike, else a copy.

    Raises:
        CorruptFile: a value that cannot be.
        UnsupportedModel: groups that cannot be used.
    """
    return _READERS[tensor.scheme.layout](tensor, read)


def _gptq(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    scheme, (outputs, _) = tensor.scheme, tensor.shape
    groups = _groups(tensor, read, ".g_idx")
    zeros = _gptq_zeros(read(tensor.parts[".qzeros"]), scheme)[:, :outputs]
    scales = groups.spread(read(tensor.parts[".scales"]))
    return _integers(tensor, read(tensor.parts[".qweight"]), scales, zeros, groups)


def _gptq_zeros(words: Tensor, scheme: Scheme) -> Tensor:
    """[groups, words] int32 -> [groups, outputs] uint8. The first format stores each minus one, of
    2, 4 and 8 bits by subtraction from whole words: where zero is no code but 0 that borrows from
    the next one, and is undone in whole words, too (GPTQModel's `utils/model.py`,
    `convert_gptq_v1_to_v2_format_module`).
    """
    bits, offset = scheme.bits, scheme.zero_offset
    if not offset or bits == 3:
        return unpack_bits(as_bytes(words), bits) + offset & (1 << bits) - 1
    ones = sum(1 << place for place in range(0, 32, bits))
    wrapped = (words.to(torch.int64) + ones).bitwise_and_(0xFFFFFFFF)
    low = torch.unflatten(as_bytes(wrapped), -1, (-1, 8))[..., :4]
    return unpack_bits(low.flatten(-2), bits)


def _awq(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    groups = _groups(tensor, read)
    words = read(tensor.parts[".qweight"])

    def codes(some: slice) -> Tensor:
        return _in_columns(words[:, some.start // 8 : some.stop // 8])

    zeros = _in_columns(read(tensor.parts[".qzeros"]))
    scales = groups.spread(read(tensor.parts[".scales"]))
    return PackedWeight(_moved(tensor, codes), "INT4", scales, groups.spread(zeros))


def _in_columns(words: Tensor) -> Tensor:
    """AWQ's [rows, words] int32 -> [rows, 8 · words] uint8: the code of each column."""
    codes = torch.empty((*words.shape, 8), dtype=torch.uint8)
    for place, column in enumerate(_COLUMNS):
        codes[..., column] = words.bitwise_right_shift(4 * place).bitwise_and_(15)
    return codes.flatten(1)


def _packed(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    bits, (outputs, inputs) = tensor.scheme.bits, tensor.shape
    groups = _groups(tensor, read, ".weight_g_idx")
    words = read(tensor.parts[".weight_packed"])
    scales = groups.spread(_by_output(read(tensor.parts[".weight_scale"]), outputs).t())
    zeros = None
    if ".weight_zero_point" in tensor.parts:
        stored = read(tensor.parts[".weight_zero_point"])
        zeros = unpack_bits(as_bytes(stored.t()), bits)[:, :outputs]
    if groups.order is not None:
        return _integers(tensor, words.t(), scales, zeros, groups)
    spread = None if zeros is None else groups.spread(zeros)
    codes = as_bytes(words)[:, : row_bytes_of(tensor.packing, inputs)]
    return PackedWeight(codes, tensor.packing, scales, spread)


def _scaled(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    outputs, inputs = tensor.shape
    scale = next(name for leaf, name in tensor.parts.items() if leaf.startswith(".weight_scale"))
    rows, columns = tensor.scheme.block or (1, 1)

    def spread(values: Tensor) -> Tensor:
        """[outputs, groups] of what is stored for the whole, for outputs or for blocks."""
        found = _by_output(values, outputs)
        if len(found) != outputs:
            found = found.repeat_interleave(rows, 0)[:outputs]
        if found.shape[1] > 1 and columns > FP8_GROUP:
            found = found.repeat_interleave(columns // FP8_GROUP, 1)
            found = found[:, : -(-inputs // FP8_GROUP)]
        return found.contiguous()

    weight, scales = read(tensor.parts[".weight"]), spread(read(scale))
    if tensor.packing != "INT8":
        return PackedWeight(weight.view(torch.uint8), tensor.packing, scales)
    zeros = None
    if ".weight_zero_point" in tensor.parts:
        zeros = spread(read(tensor.parts[".weight_zero_point"]).view(torch.uint8) ^ 128)
    return PackedWeight(weight.view(torch.uint8) ^ 128, "INT8", scales, zeros)


def _nf4(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    name = tensor.parts[STATE]
    state = state_of(name, bytes(read(name).tolist()))
    outputs, inputs = tensor.shape
    book = read(tensor.parts[".weight.quant_map"])
    if not torch.equal(book, torch.tensor(NF4)):
        raise UnsupportedModel(
            f"Tensor '{tensor.parts['.weight.quant_map']}' has other numbers than those of NF4.",
            "Choose another quantization of this model, or a GGUF of it.",
            field=tensor.parts[".weight.quant_map"],
        )
    scales = read(tensor.parts[".weight.absmax"]).flatten()
    if state.nested_block is not None and scales.dtype == torch.uint8:
        numbers = read(tensor.parts[".weight.nested_quant_map"])
        blocks = torch.arange(len(scales)) // state.nested_block
        wide = read(tensor.parts[".weight.nested_absmax"])[blocks]
        scales = numbers[scales.to(torch.int64)] * wide + state.nested_offset
    group = gcd(inputs, state.block)
    # Blocks go on from one output to the next.
    places = torch.arange(0, outputs * inputs, group) // state.block
    stored = as_bytes(read(tensor.parts[".weight"])).view(outputs, inputs // 2)
    # The even input is in the high bits of a file.
    weight = torch.bitwise_left_shift(stored, 4)
    weight |= stored >> 4
    return PackedWeight(weight, "NF4", scales[places].view(outputs, inputs // group))


def _groups(tensor: QuantizedTensor, read: Read, index: str = "") -> Groups:
    """The groups of inputs: as the tensor `index` says if it is there, else one after the other."""
    inputs, group = tensor.shape[1], tensor.scheme.group
    name = tensor.parts.get(index, "")
    numbers = read(name) if name else torch.arange(inputs) // (group or inputs)
    return even_groups(numbers, groups_of(inputs, group), name or tensor.name)


def _by_output(values: Tensor, outputs: int) -> Tensor:
    """[outputs or rows of blocks, groups] of values that may be one for all, or one for each."""
    if values.numel() == 1:
        return values.reshape(1, 1).expand(outputs, 1)
    return values if values.ndim == 2 else values[:, None]


def _integers(
    tensor: QuantizedTensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    groups: Groups,
) -> PackedWeight:
    """A copy of codes that are packed along the inputs, as GPTQ has them.

    Args:
        words: [at least inputs · bits / 32, outputs] int32.
        scales: [outputs, groups of one length].
        zeros: [groups, outputs] uint8; None: the middle one.
    """
    packing, bits, inputs = tensor.packing, tensor.scheme.bits, tensor.shape[1]
    order, held = groups.order, None
    # The middle one needs not be stored.
    if zeros is not None and bool((zeros != MIDDLE[packing]).any()):
        held = groups.spread(zeros)
    if order is None:
        weight = as_bytes(words.t())
    else:
        weight = _moved(
            tensor,
            lambda some: _along_inputs(words[:, some], bits)[:inputs].index_select(0, order),
        )
    return PackedWeight(weight, packing, scales, held, order)


def _along_inputs(words: Tensor, bits: int) -> Tensor:
    """[words, outputs] int32 -> [words · 32 / bits, outputs] uint8."""
    mask, outputs = (1 << bits) - 1, words.shape[1]
    # Of 3 bits, three words hold 32 codes, and two of these are in two words.
    count = 3 if bits == 3 else 1
    parts = words.reshape(-1, count, outputs)
    codes = torch.empty((len(parts), 32 * count // bits, outputs), dtype=torch.uint8)
    for place in range(codes.shape[1]):
        word, start = divmod(bits * place, 32)
        found = parts[:, word].bitwise_right_shift(start)
        if start + bits > 32:
            found &= (1 << (32 - start)) - 1
            found |= parts[:, word + 1].bitwise_left_shift(32 - start)
        codes[:, place] = found.bitwise_and_(mask)
    return codes.flatten(0, 1)


def _moved(tensor: QuantizedTensor, codes: Callable[[slice], Tensor]) -> Tensor:
    """[outputs, bytes] uint8.

    Args:
        codes: gives those of some outputs, [inputs, outputs] uint8; asked for multiples of 8.
    """
    outputs, inputs = tensor.shape
    weight = torch.empty((outputs, row_bytes_of(tensor.packing, inputs)), dtype=torch.uint8)
    step = max(8, _CODES // inputs // 8 * 8)
    for start in range(0, outputs, step):
        some = slice(start, min(start + step, outputs))
        weight[some] = pack_bits(codes(some).t(), tensor.scheme.bits)
    return weight


_READERS: Final[dict[Layout, Callable[[QuantizedTensor, Read], PackedWeight]]] = {
    "gptq": _gptq,
    "awq": _awq,
    "packed": _packed,
    "scaled": _scaled,
    "nf4": _nf4,
}
