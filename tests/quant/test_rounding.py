"""Rounding to nearest: errors on normal weights, and weights that are not like them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hearth.kernels.packed import PackedWeight
from hearth.quant.ggml import Ggml
from hearth.quant.gguf.types import TensorType
from hearth.quant.rounding.grid import Grid, round_plain

ROW = Grid("int", 8, None, "row")
FP8 = Grid("fp8", 8, None, "row")
ERRORS = {
    **{
        f"INT4 /7 of {g}": (Grid(group=g, narrow=True), e)
        for g, e in ((32, 0.0970), (64, 0.1077), (128, 0.1174))
    },
    **{
        f"INT4 /7.5 of {g}": (Grid(group=g), e)
        for g, e in ((32, 0.0949), (64, 0.1029), (128, 0.1109))
    },
    **{
        f"INT4 with zeros of {g}": (Grid(group=g, symmetric=False), e)
        for g, e in ((32, 0.0808), (64, 0.0911), (128, 0.1006))
    },
    "NF4 of 64": (Grid("nf4", 4, 64), 0.0920),
    "NF4 of 64, double": (Grid("nf4", 4, 64, double=True), 0.0920),
    "NF4 of 128": (Grid("nf4", 4, 128), 0.0956),
    "INT8 of rows": (ROW, 0.0087),
    "INT8 of rows with zeros": (Grid("int", 8, None, "row", symmetric=False), 0.0082),
    "INT8 of 128": (Grid("int", 8, 128), 0.0065),
    "FP8 of rows": (FP8, 0.0265),
    "FP8 of the tensor": (Grid("fp8", 8, None, "tensor"), 0.0265),
    "FP8 of blocks": (Grid("fp8", 8, 128, "block"), 0.0265),
    "E5M2 of rows": (Grid("fp8", 8, None, "row", e5m2=True), 0.0527),
}
"""Root of the mean squared error of weights from N(0, 1)."""
GGUF_ERRORS = {
    "Q4_0": 0.0855,
    "Q4_1": 0.0777,
    "Q4_K": 0.0710,
    "IQ4_NL": 0.0756,
    "IQ4_XS": 0.0762,
    "Q5_0": 0.0424,
    "Q5_K": 0.0359,
    "Q6_K": 0.0176,
    "Q8_0": 0.0053,
    "Q3_K": 0.1499,
    "Q2_K": 0.2966,
    "MXFP4": 0.1144,
    "NVFP4": 0.0953,
}


@pytest.fixture(scope="module")
def normal() -> torch.Tensor:
    """[1024, 4096] from N(0, 1)."""
    return torch.randn(1024, 4096, generator=torch.Generator().manual_seed(0))


def rms(difference: torch.Tensor) -> float:
    return float(difference.square().mean().sqrt())


@pytest.mark.parametrize("name", ERRORS)
def test_errors_on_normal_weights(name: str, normal: torch.Tensor) -> None:
    grid, wanted = ERRORS[name]
    packed = round_plain(normal, grid)
    assert rms(packed.unpacked(torch.float32) - normal) == pytest.approx(wanted, rel=0.015)


@pytest.mark.parametrize("name", GGUF_ERRORS)
def test_errors_of_gguf_types(name: str, normal: torch.Tensor) -> None:
    """By ggml's quantizer, unpacked by it and by the reference."""
    kind, ggml = TensorType[name], Ggml()
    ggml.prepare(kind)
    blocks = ggml.quantize_chunk(kind, normal.numpy())
    theirs = torch.from_numpy(ggml.to_float(kind, blocks, normal.shape[1]))
    assert rms(theirs - normal) == pytest.approx(GGUF_ERRORS[name], rel=0.015)
    rows = torch.from_numpy(np.asarray(blocks)).view(len(normal), -1)
    ours = PackedWeight(rows, name).unpacked(torch.float32)
    assert torch.equal(ours, theirs)
