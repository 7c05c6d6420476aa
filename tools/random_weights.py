"""Random packed rows, for benchmarks and tests of products with them."""

from __future__ import annotations

import numpy as np
import torch

from hearth.kernels.blocks import block_of, scale_offsets
from hearth.kernels.dequantize_codes import CODE_BITS, row_bytes_of
from hearth.kernels.packed_weight import PackedWeight


def random_weight(
    packing: str,
    rows: int,
    inputs: int,
    seed: int = 0,
    *,
    group: int = 128,
    scales: torch.dtype = torch.float16,
    has_zeros: bool = False,
) -> PackedWeight:
    """Random bytes with scales of ordinary magnitude.

    Args:
        packing: a GGUF type, or one of `CODE_BITS`.
        group: for codes, number of inputs that share a scale; 0: all.
        scales: dtype of the scales of codes.
        has_zeros: store a zero point per group, for INT2 to INT8.
    """
    rng = np.random.default_rng(seed)
    if packing in CODE_BITS:
        groups = -(-inputs // (group or inputs))
        codes = rng.integers(0, 256, (rows, row_bytes_of(packing, inputs)), dtype=np.uint8)
        if packing == "FP8":
            codes[codes & 0x7F == 0x7F] = 0  # NaN
        sizes = torch.from_numpy(rng.uniform(0.001, 0.01, (rows, groups)))
        most = 1 << CODE_BITS[packing]
        zeros = torch.from_numpy(rng.integers(0, most, (rows, groups), dtype=np.uint8))
        return PackedWeight(
            torch.from_numpy(codes), packing, sizes.to(scales), zeros if has_zeros else None
        )
    elements, size = block_of(packing)
    blocks = rng.integers(0, 256, (rows, inputs // elements, size), dtype=np.uint8)
    for offset in scale_offsets(packing):
        halves = rng.uniform(0.001, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[:, :, offset : offset + 2] = halves[..., None].view(np.uint8)
    if packing == "MXFP4":
        blocks[:, :, 0] = rng.integers(0, 128, blocks.shape[:2])
    return PackedWeight(torch.from_numpy(blocks.reshape(rows, -1)), packing)
