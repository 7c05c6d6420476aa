"""Codes with scales as blocks of GGUF, where both stand for the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from hearth.kernels.bits import pack_bits, unpack_bits
from hearth.kernels.packed_weight import PackedWeight

BLOCK = 32
"""Weights of a row in a block of Q4_0 or Q8_0, which share a scale in float16."""


def ggml_blocks(weight: PackedWeight) -> Tensor:
    """Q4_0 of INT4, Q8_0 of INT8. Source: `block_q4_0` and `block_q8_0` in ggml-common.h; of 4
    bits, byte i has the codes i (low bits) and i + 16.

    Args:
        weight: [rows, inputs], the middle code for zero, inputs in their own order, in groups of a
            multiple of 32, with scales that are numbers of float16: nothing is rounded.

    Returns:
        [rows, bytes] uint8.
    """
    assert weight.scales is not None and weight.order is None
    rows, inputs = len(weight.weight), weight.inputs
    blocks = inputs // BLOCK
    scales = weight.scales.to(torch.float16).repeat_interleave(blocks // weight.scales.shape[1], 1)
    if weight.packing == "INT4":
        codes = unpack_bits(weight.weight, 4).view(rows, blocks, 2, BLOCK // 2)
        codes = pack_bits(codes.transpose(-1, -2).reshape(rows, inputs), 4)
    else:
        codes = weight.weight ^ 128
    parts = (scales.view(torch.uint8).view(rows, blocks, 2), codes.view(rows, blocks, -1))
    return torch.cat(parts, -1).flatten(1)
