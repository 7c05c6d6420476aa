"""Matrices of random codes."""

from __future__ import annotations

import numpy as np
import torch

from hearth.kernels.dequantize_codes import CODE_BITS, row_bytes_of
from hearth.kernels.packed_weight import PackedWeight

_FIRST_SPECIAL = {"FP8": 0x7F, "FP8_E5M2": 0x7C}
"""The first code that does not represent a finite number."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def drawn(
    packing: str, rows: int, inputs: int, groups: int, *, seed: int = 0, zeros: bool = False
) -> PackedWeight:
    """Random codes with scales of varying size, in a float dtype that depends on the seed."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, row_bytes_of(packing, inputs)), dtype=np.uint8)
    if packing in _FIRST_SPECIAL:
        codes[codes & 0x7F >= _FIRST_SPECIAL[packing]] = 0
    scales = rng.uniform(0.001, 0.01, (rows, groups)).astype(np.float32)
    least = rng.integers(0, min(16, 1 << CODE_BITS[packing]), (rows, groups), dtype=np.uint8)
    return PackedWeight(
        torch.from_numpy(codes),
        packing,
        torch.from_numpy(scales).to(DTYPES[seed % 3]),
        torch.from_numpy(least) if zeros else None,
    )
