"""Converts codes with scales to GGUF blocks that stand for the same numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from hearth.kernels.bits import pack_bits, unpack_bits
from hearth.kernels.packed_weight import PackedWeight

BLOCK = 32
"""Weights in a block of Q4_0 or Q8_0, which share a float16 scale."""


def ggml_blocks(weight: PackedWeight) -> Tensor:
    """Q4_0 blocks from INT4, Q8_0 blocks from INT8. Source: `block_q4_0` and `block_q8_0` in
    ggml-common.h; with 4 bits, byte i holds the codes i (low bits) and i + 16.

    Args:
        weight: [rows, inputs] with the middle code for zero, inputs in their own order, groups of a
            multiple of 32, and scales that float16 can represent: nothing is rounded.

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
