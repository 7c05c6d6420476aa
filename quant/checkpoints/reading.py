"""Reads quantized matrices from the tensors of a checkpoint: codes may be moved and repacked, but
no number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Final, NamedTuple

import torch
from torch import Tensor

from hearth.kernels.bits import as_bytes, pack_bits, unpack_bits
from hearth.kernels.dequantize_codes import FP8_GROUP, MIDDLE, NF4, row_bytes_of
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.groups import Groups, even_groups
from hearth.quant.checkpoints.modules import STATE, groups_of, state_of
from hearth.quant.checkpoints.scheme import Layout, QuantizedTensor, Scheme
from hearth.quant.errors import UnsupportedModel

Read = Callable[[str], Tensor]
"""Reads a stored tensor by name; it must not be written to."""
_CODES: Final = 1 << 22
"""Codes that are moved at a time: 4 MiB, which fit into the processor's cache."""
AWQ_COLUMNS: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ: the column of each code within its word, from the lowest bits on."""


class CodeParams(NamedTuple):
    """The parameters of the codes of a matrix [outputs, inputs], as in `PackedWeight`."""

    scales: Tensor
    """[outputs, groups] of the stored type."""
    zeros: Tensor | None
    """[outputs, groups] uint8, the code for zero; None: the middle code."""
    order: Tensor | None
    """[inputs] int64; None: inputs are in their own order."""


def read_params(tensor: QuantizedTensor, read: Read) -> CodeParams:
    """The parameters of a matrix that is not NF4, without reading its codes. Raises the errors of
    `read_quantized`.
    """
    return _PARAMS[tensor.scheme.layout](tensor, read)


def read_quantized(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    """The matrix [outputs, inputs]: a view of the stored tensors if the layout is the same, else a
    copy.

    Raises:
        CorruptFile: a value is invalid.
        UnsupportedModel: the groups cannot be used.
    """
    return _READERS[tensor.scheme.layout](tensor, read)


def _gptq(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    return _integers(tensor, read(tensor.parts[".qweight"]), _gptq_params(tensor, read))


def _gptq_params(tensor: QuantizedTensor, read: Read) -> CodeParams:
    groups = _groups(tensor, read, ".g_idx")
    zeros = _gptq_zeros(read(tensor.parts[".qzeros"]), tensor.scheme)[:, : tensor.shape[0]]
    scales = groups.spread(read(tensor.parts[".scales"]))
    return CodeParams(scales, groups.spread(zeros), groups.order)


def _gptq_zeros(words: Tensor, scheme: Scheme) -> Tensor:
    """[groups, words] int32 -> [groups, outputs] uint8. GPTQ's first format stores each code for
    zero minus one. With 2, 4 and 8 bits it subtracts from whole words, so that a code of 0 borrows
    from the next one; this is undone on whole words too (GPTQModel's `utils/model.py`,
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
    params, words = _awq_params(tensor, read), read(tensor.parts[".qweight"])

    def codes(some: slice) -> Tensor:
        return _in_columns(words[:, some.start // 8 : some.stop // 8])

    return PackedWeight(_moved(tensor, codes), "INT4", params.scales, params.zeros)


def _awq_params(tensor: QuantizedTensor, read: Read) -> CodeParams:
    groups = _groups(tensor, read)
    zeros = groups.spread(_in_columns(read(tensor.parts[".qzeros"])))
    return CodeParams(groups.spread(read(tensor.parts[".scales"])), zeros, None)


def _in_columns(words: Tensor) -> Tensor:
    """AWQ's [rows, words] int32 -> [rows, 8 · words] uint8: the code of each column."""
    codes = torch.empty((*words.shape, 8), dtype=torch.uint8)
    for place, column in enumerate(AWQ_COLUMNS):
        codes[..., column] = words.bitwise_right_shift(4 * place).bitwise_and_(15)
    return codes.flatten(1)


def _packed(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    inputs = tensor.shape[1]
    params, words = _packed_params(tensor, read), read(tensor.parts[".weight_packed"])
    if params.order is not None:
        return _integers(tensor, words.t(), params)
    codes = as_bytes(words)[:, : row_bytes_of(tensor.packing, inputs)]
    return PackedWeight(codes, tensor.packing, params.scales, params.zeros)


def _packed_params(tensor: QuantizedTensor, read: Read) -> CodeParams:
    outputs = tensor.shape[0]
    groups = _groups(tensor, read, ".weight_g_idx")
    scales = groups.spread(_by_output(read(tensor.parts[".weight_scale"]), outputs).t())
    zeros = None
    if ".weight_zero_point" in tensor.parts:
        stored = as_bytes(read(tensor.parts[".weight_zero_point"]).t())
        zeros = groups.spread(unpack_bits(stored, tensor.scheme.bits)[:, :outputs])
    return CodeParams(scales, zeros, groups.order)


def _scaled(tensor: QuantizedTensor, read: Read) -> PackedWeight:
    params = _scaled_params(tensor, read)
    codes = read(tensor.parts[".weight"]).view(torch.uint8)
    if tensor.packing == "INT8":
        codes = codes ^ 128
    return PackedWeight(codes, tensor.packing, params.scales, params.zeros)


def _scaled_params(tensor: QuantizedTensor, read: Read) -> CodeParams:
    outputs, inputs = tensor.shape
    scale = next(name for leaf, name in tensor.parts.items() if leaf.startswith(".weight_scale"))
    rows, columns = tensor.scheme.block or (1, 1)

    def spread(values: Tensor) -> Tensor:
        """[outputs, groups] from values for the whole matrix, for outputs or for blocks."""
        expanded = _by_output(values, outputs)
        if len(expanded) != outputs:
            expanded = expanded.repeat_interleave(rows, 0)[:outputs]
        if expanded.shape[1] > 1 and columns > FP8_GROUP:
            expanded = expanded.repeat_interleave(columns // FP8_GROUP, 1)
            expanded = expanded[:, : -(-inputs // FP8_GROUP)]
        return expanded.contiguous()

    zeros = None
    if ".weight_zero_point" in tensor.parts:
        zeros = spread(read(tensor.parts[".weight_zero_point"]).view(torch.uint8) ^ 128)
    return CodeParams(spread(read(scale)), zeros, None)


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
    # Blocks continue from one output to the next.
    places = torch.arange(0, outputs * inputs, group) // state.block
    stored = as_bytes(read(tensor.parts[".weight"])).view(outputs, inputs // 2)
    # In the file, the even input is in the high bits of a byte.
    weight = torch.bitwise_left_shift(stored, 4)
    weight |= stored >> 4
    return PackedWeight(weight, "NF4", scales[places].view(outputs, inputs // group))


def _groups(tensor: QuantizedTensor, read: Read, index: str = "") -> Groups:
    """The groups of inputs: from the tensor `index` if it exists, else consecutive."""
    inputs, group = tensor.shape[1], tensor.scheme.group
    name = tensor.parts.get(index, "")
    numbers = read(name) if name else torch.arange(inputs) // (group or inputs)
    return even_groups(numbers, groups_of(inputs, group), name or tensor.name)


def _by_output(values: Tensor, outputs: int) -> Tensor:
    """[outputs or rows of blocks, groups] from a single value, or one per output or block."""
    if values.numel() == 1:
        return values.reshape(1, 1).expand(outputs, 1)
    return values if values.ndim == 2 else values[:, None]


def _integers(tensor: QuantizedTensor, words: Tensor, params: CodeParams) -> PackedWeight:
    """The packed weight of codes that are packed along the inputs, as in GPTQ; they are copied.

    Args:
        words: [at least inputs · bits / 32, outputs] int32.
    """
    scales, zeros, order = params
    packing, bits, inputs = tensor.packing, tensor.scheme.bits, tensor.shape[1]
    # Zero points that all are the middle code need not be stored.
    is_even = zeros is None or bool((zeros == MIDDLE[packing]).all())
    if order is None:
        weight = as_bytes(words.t())
    else:
        weight = _moved(
            tensor,
            lambda some: _along_inputs(words[:, some], bits)[:inputs].index_select(0, order),
        )
    return PackedWeight(weight, packing, scales, None if is_even else zeros, order)


def _along_inputs(words: Tensor, bits: int) -> Tensor:
    """[words, outputs] int32 -> [words · 32 / bits, outputs] uint8."""
    mask, outputs = (1 << bits) - 1, words.shape[1]
    # With 3 bits, three words hold 32 codes, two of which span two words.
    count = 3 if bits == 3 else 1
    parts = words.reshape(-1, count, outputs)
    codes = torch.empty((len(parts), 32 * count // bits, outputs), dtype=torch.uint8)
    for place in range(codes.shape[1]):
        word, start = divmod(bits * place, 32)
        code = parts[:, word].bitwise_right_shift(start)
        if start + bits > 32:
            code &= (1 << (32 - start)) - 1
            code |= parts[:, word + 1].bitwise_left_shift(32 - start)
        codes[:, place] = code.bitwise_and_(mask)
    return codes.flatten(0, 1)


def _moved(tensor: QuantizedTensor, codes: Callable[[slice], Tensor]) -> Tensor:
    """[outputs, bytes] uint8: codes packed along the inputs.

    Args:
        codes: returns the codes of a slice of outputs, [inputs, outputs] uint8. Slices start at
            multiples of 8.
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
_PARAMS: Final[Mapping[Layout, Callable[[QuantizedTensor, Read], CodeParams]]] = {
    "gptq": _gptq_params,
    "awq": _awq_params,
    "packed": _packed_params,
    "scaled": _scaled_params,
}
