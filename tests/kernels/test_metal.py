"""The Metal kernels, whose source is compiled for a processor here, compared with sums in float64
and with PyTorch's results. They never ran on hardware.
"""

from __future__ import annotations

import sys

import pytest
import torch

from gpu_cases import CASES, HEADS, LIMITS, check_case, check_heads
from hearth.kernels import packed
from hearth.kernels.metal import shaders
from hearth.kernels.metal.packings import PACKINGS
from hearth.kernels.packed import prepare
from metal_on_cpu import ShaderOnCpu
from random_weights import random_weight

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="its fibers are those of Linux")
KINDS = {
    **{packing: {} for packing in sorted(PACKINGS - {"INT4", "INT8"})},
    **{
        f"{packing} {group} {zeros}": {"group": group, "has_zeros": zeros, "scales": scales}
        for packing in ("INT4", "INT8")
        for group, zeros, scales in (
            (32, True, torch.float16),
            (128, False, torch.float32),
            (0, True, torch.float32),
        )
    },
}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """All dispatching code takes the processor for an Apple GPU."""
    shaders._library.cache_clear()
    monkeypatch.setattr(torch.mps, "compile_shader", ShaderOnCpu)
    monkeypatch.setattr(packed, "has_metal", lambda device_type: True)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_products_are_near(kind: str, dtype: torch.dtype) -> None:
    """37 outputs, so that the last simdgroup has one; inputs are not a multiple of 256 where a
    packing has no blocks of that size.
    """
    packing = kind.split()[0]
    weight = random_weight(packing, 37, 768 if "K" in kind or "128" in kind else 544, **KINDS[kind])
    matrix, plain = prepare([weight], exact=False), weight.unpacked(torch.float64)
    x = torch.randn(5, 2 * weight.inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x[:, : weight.inputs]
    for rows in (1, 4, 5):
        assert ("Metal" in matrix.route(rows, dtype).by) == (rows < 5)
        found, wanted = matrix.matmul(x[:rows]), x[:rows].double() @ plain.T
        off = (found - wanted).square().sum() / wanted.square().sum()
        assert found.dtype == dtype and float(off) < (1e-12 if dtype == torch.float32 else 1e-6)
    assert torch.equal(matrix.matmul(x[2:3]), matrix.matmul(x[:4])[2:3])
    ids = torch.tensor([36, 0])
    assert torch.equal(matrix.rows(ids, dtype), weight.unpacked(dtype)[ids])


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("case", CASES)
def test_attention_is_near(case: str, dtype: torch.dtype) -> None:
    check_case(shaders.attend_decode, case, dtype)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize(("size", "turned"), HEADS)
def test_heads_are_normed_and_turned(
    size: int, turned: int, normed: bool, dtype: torch.dtype
) -> None:
    check_heads(shaders.finish_heads, size, turned, dtype, normed=normed)


def test_a_product_of_known_numbers_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert shaders.multiplies_on(cpu)

    def fails(source: str) -> None:
        raise SyntaxError("unknown type name 'half'")

    for broken in (
        fails,
        lambda source: ShaderOnCpu(source.replace("pair >> 4) - 8", "pair) - 8")),
    ):
        shaders._library.cache_clear()
        monkeypatch.setattr(torch.mps, "compile_shader", broken)
        assert not shaders.multiplies_on(cpu)
