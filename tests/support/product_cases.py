"""Packed matrices whose products are compared, of every layout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hearth.kernels.cpu.build_library import library_path
from hearth.kernels.cpu.layouts import Instructions
from hearth.kernels.cpu.library import CpuLibrary
from hearth.kernels.cuda.packings import PACKINGS
from hearth.kernels.packed_weight import PackedWeight
from random_weights import random_weight

CASES: dict[str, dict[str, Any]] = {
    **{packing: {} for packing in sorted(PACKINGS - {"INT4", "INT8", "FP8", "NF4"})},
    **{
        f"{packing} {group} {zeros}": {"group": group, "has_zeros": zeros, "scales": scales}
        for packing in ("INT4", "INT8")
        for group, zeros, scales in (
            *((32, True, torch.bfloat16), (64, False, torch.float32), (128, True, torch.float16)),
            *((256, False, torch.float16), (0, True, torch.float32)),
        )
    },
    "FP8 128": {"scales": torch.float32},
    "FP8 of a row": {"group": 0},
    "FP8 and a shorter group": {"inputs": 544, "scales": torch.bfloat16},
    "NF4 64": {"group": 64, "scales": torch.float32},
    "NF4 of a row": {"group": 0, "scales": torch.float32},
}
"""Every layout, and for codes every kind of scales and zeros."""


def library_with(instructions: Instructions) -> CpuLibrary:
    """The library with these instructions; skips the test where the processor lacks them."""
    try:
        return CpuLibrary(library_path(), instructions)
    except ValueError:
        pytest.skip(f"this processor has no {instructions}")


def weight_of(case: str, seed: int = 0) -> PackedWeight:
    """37 rows of one of `CASES`: neither rows nor inputs are a multiple of the tile sizes."""
    options = {"inputs": 768, **CASES[case]}
    return random_weight(case.split()[0], 37, seed=seed, **options)


def error(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """The squared error of `found`, relative to the squares of the product in float64."""
    wanted = x.double() @ weight.double().T
    return float((found - wanted).square().sum() / wanted.square().sum())
