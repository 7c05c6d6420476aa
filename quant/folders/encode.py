"""Encodes packed weights as the tensors of a checkpoint: the reverse of
`hearth.quant.checkpoints.reading`, which restores the same packed weights. No number changes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.bits import pack_bits, unpack_bits
from hearth.kernels.dequantize_codes import CODE_BITS, NF4
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.checkpoints.modules import STATE
from hearth.quant.checkpoints.reading import AWQ_COLUMNS
from hearth.quant.folders.storage import FP8_BLOCK, Storage


def stored_tensors(storage: Storage, weight: PackedWeight) -> dict[str, Tensor]:
    """The tensors that `storage.leaves` lists, by the suffixes of their names; contiguous.

    Args:
        weight: [outputs, inputs], rounded to `storage.grid`.

    Raises:
        ValueError: `weight` was rounded to another grid, or `storage` cannot hold the order of its
            inputs.
    """
    has_no_place = weight.order is not None and not storage.has_order
    if weight.packing != storage.label or weight.scales is None or has_no_place:
        raise ValueError(f"{weight.packing or 'plain numbers'} cannot be stored as {storage.label}")
    if storage.symmetric and weight.zeros is not None:
        raise ValueError("the weight has zero points, and its storage has none")
    tensors = {
        "gptq": _gptq,
        "awq": _awq,
        "packed": _packed,
        "scaled": _scaled,
        "nf4": _nf4,
    }[storage.layout](storage, weight, weight.scales.cpu())
    return {leaf: tensor.cpu().contiguous() for leaf, tensor in tensors.items()}


def _gptq(storage: Storage, weight: PackedWeight, scales: Tensor) -> dict[str, Tensor]:
    return {
        ".qweight": _words(_in_own_order(weight)).t(),
        ".qzeros": _words(_packed_zeros(storage, weight, scales)),
        ".g_idx": _group_numbers(weight, scales),
        ".scales": scales.t(),
    }


def _awq(storage: Storage, weight: PackedWeight, scales: Tensor) -> dict[str, Tensor]:
    codes = torch.stack((weight.weight & 15, weight.weight >> 4), -1).flatten(1)
    return {
        ".qweight": _in_columns(codes.t()),
        ".qzeros": _in_columns(_zeros(storage, weight, scales).t()),
        ".scales": scales.t(),
    }


def _packed(storage: Storage, weight: PackedWeight, scales: Tensor) -> dict[str, Tensor]:
    tensors = {
        ".weight_shape": torch.tensor([len(weight.weight), weight.inputs]),
        ".weight_packed": _words(weight.weight),
        ".weight_scale": scales,
    }
    if not storage.symmetric:
        tensors[".weight_zero_point"] = _words(_packed_zeros(storage, weight, scales)).t()
    return tensors


def _scaled(storage: Storage, weight: PackedWeight, scales: Tensor) -> dict[str, Tensor]:
    def each(values: Tensor) -> Tensor:
        """`values` once for each block or for the tensor, if these share a scale."""
        if storage.scope == "tensor":
            return values[0]
        return values[::FP8_BLOCK] if storage.scope == "block" else values

    if storage.is_float8:
        is_e5m2 = storage.kind == "e5m2"
        codes = weight.weight.view(torch.float8_e5m2 if is_e5m2 else torch.float8_e4m3fn)
        return {".weight": codes, ".weight_scale": each(scales)}
    tensors = {".weight": (weight.weight ^ 128).view(torch.int8), ".weight_scale": each(scales)}
    if not storage.symmetric:
        zeros = _zeros(storage, weight, scales) ^ 128
        tensors[".weight_zero_point"] = each(zeros).view(torch.int8)
    return tensors


def _nf4(storage: Storage, weight: PackedWeight, scales: Tensor) -> dict[str, Tensor]:
    """In the file, the even input is in the high bits of a byte."""
    state = storage.nf4_state(len(weight.weight), weight.inputs)
    return {
        ".weight.absmax": scales.flatten(),
        ".weight.quant_map": torch.tensor(NF4),
        ".weight": (weight.weight << 4 | weight.weight >> 4).view(-1, 1),
        STATE: torch.frombuffer(bytearray(state), dtype=torch.uint8),
    }


def _zeros(storage: Storage, weight: PackedWeight, scales: Tensor) -> Tensor:
    """[outputs, groups] uint8: the code for zero."""
    if weight.zeros is not None:
        return weight.zeros.cpu()
    return torch.full(scales.shape, 1 << storage.bits - 1, dtype=torch.uint8)


def _packed_zeros(storage: Storage, weight: PackedWeight, scales: Tensor) -> Tensor:
    """[groups, bytes] uint8: the codes for zero, packed along the outputs."""
    return pack_bits(_zeros(storage, weight, scales).t().contiguous(), storage.bits)


def _in_own_order(weight: PackedWeight) -> Tensor:
    """[outputs, bytes] uint8: integer codes with the inputs in their original order."""
    codes = weight.weight.cpu()
    if weight.order is None:
        return codes
    places = weight.order.cpu().argsort()
    bits = CODE_BITS[weight.packing]
    return pack_bits(unpack_bits(codes, bits)[:, places], bits)


def _group_numbers(weight: PackedWeight, scales: Tensor) -> Tensor:
    """[inputs] int32: the group of each input."""
    numbers = torch.arange(weight.inputs, dtype=torch.int32) // (weight.inputs // scales.shape[1])
    return numbers if weight.order is None else numbers[weight.order.cpu().argsort()]


def _words(codes: Tensor) -> Tensor:
    """[rows, bytes] uint8 -> [rows, words] int32, with zeros at the end."""
    padded = functional.pad(codes.cpu(), (0, -codes.shape[1] % 4))
    return padded.flatten().view(torch.int32).view(len(padded), -1)


def _in_columns(codes: Tensor) -> Tensor:
    """[rows, columns] uint8 of 4 bits -> [rows, columns / 8] int32, in AWQ's order."""
    moved = torch.unflatten(codes.cpu(), 1, (-1, 8))[:, :, AWQ_COLUMNS].flatten(1)
    return _words(moved[:, 0::2] | moved[:, 1::2] << 4)
