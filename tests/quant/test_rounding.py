"""Rounding to nearest: errors for normally distributed weights, and special weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hearth.kernels.cpu.layouts import multiplied
from hearth.kernels.packed import BlockMatrix, TiledMatrix, prepare
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.errors import BadGrid
from hearth.quant.ggml import Ggml
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.gguf.types import TensorType
from hearth.quant.rounding import grid as rounding
from hearth.quant.rounding.grid import Grid, round_plain, rounded
from hearth.quant.rounding.hqq import round_hqq

ROW = Grid("int", 8, None, "row")
FP8 = Grid("fp8", 8, None, "row")
ERRORS = {
    **{
        f"INT4 /7.5 of {g}": (Grid(group=g), e)
        for g, e in ((32, 0.0949), (64, 0.1029), (128, 0.1109))
    },
    **{
        f"INT4 with zeros of {g}": (Grid(group=g, symmetric=False), e)
        for g, e in ((32, 0.0808), (64, 0.0911), (128, 0.1006))
    },
    "NF4 of 64": (Grid("nf4", 4, 64), 0.0920),
    "NF4 of 128": (Grid("nf4", 4, 128), 0.0956),
    "INT8 of rows": (ROW, 0.0087),
    "INT8 of rows with zeros": (Grid("int", 8, None, "row", symmetric=False), 0.0082),
    "INT8 of 128": (Grid("int", 8, 128), 0.0065),
    "FP8 of rows": (FP8, 0.0265),
    "FP8 of the tensor": (Grid("fp8", 8, None, "tensor"), 0.0265),
    "FP8 of blocks": (Grid("fp8", 8, 128, "block"), 0.0265),
    "E5M2 of rows": (Grid("fp8", 8, None, "row", e5m2=True), 0.0527),
}
"""Root mean squared error for weights from N(0, 1)."""
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
    "IQ3_S": 0.1660,
    "IQ2_S": 0.2645,
}
"""The same for ggml's types."""


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads would wait for each other longer than these operations take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    """Quantized by ggml, unpacked by ggml and by the reference."""
    kind, ggml, normal = TensorType[name], Ggml(), normal[:256]
    ggml.prepare(kind)
    blocks = ggml.quantize_chunk(kind, normal.numpy())
    theirs = torch.from_numpy(ggml.to_float(kind, blocks, normal.shape[1]))
    assert rms(theirs - normal) == pytest.approx(GGUF_ERRORS[name], rel=0.015)
    rows = torch.from_numpy(np.asarray(blocks)).view(len(normal), -1)
    ours = PackedWeight(rows, name).unpacked(torch.float32)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("group", "wanted"), [(32, 0.067746), (64, 0.072798), (128, 0.076831), (4096, 0.092547)]
)
def test_mean_errors_of_nf4_are_those_of_bitsandbytes(
    group: int, wanted: float, normal: torch.Tensor
) -> None:
    """The constants of its `tests/test_functional.py`."""
    packed = round_plain(normal, Grid("nf4", 4, group))
    found = float((packed.unpacked(torch.float32) - normal).abs().mean())
    assert found == pytest.approx(wanted, rel=0.003)


EVERY_GRID = {
    **{name: grid for name, (grid, _) in ERRORS.items()},
    "INT3": Grid(bits=3, group=32),
    "INT3 with zeros": Grid(bits=3, group=32, symmetric=False),
    "INT4 of the tensor": Grid("int", 4, None, "tensor", symmetric=False),
    "INT8 of the tensor": Grid("int", 8, None, "tensor"),
    "FP8 of 128": Grid("fp8", 8, 128),
}
ROUNDINGS: dict[str, Callable[[torch.Tensor, Grid], PackedWeight]] = {
    "plain": round_plain,
    "weighted": lambda weight, grid: round_plain(
        weight, grid, importance=torch.arange(weight.shape[1]) + 1.0
    ),
    "hqq": round_hqq,
}


def roundings(grid: Grid) -> list[Callable[[torch.Tensor, Grid], PackedWeight]]:
    fits_rows = grid.scope in ("row", "group")
    return [one for name, one in ROUNDINGS.items() if name != "hqq" or fits_rows]


@pytest.mark.parametrize("name", EVERY_GRID)
def test_zeros_stay_zeros(name: str) -> None:
    grid = EVERY_GRID[name]
    weight = torch.randn(13, 256, generator=torch.Generator().manual_seed(0))
    weight[3], weight[:, 128:] = 0, 0
    weight[12] = -0.0
    for one in roundings(grid):
        found = one(weight, grid).unpacked(torch.float32)
        assert not found[weight == 0].any() and torch.isfinite(found).all()
        assert not one(torch.zeros(2, 128), grid).unpacked(torch.float32).any()


@pytest.mark.parametrize("name", EVERY_GRID)
def test_an_outlier_is_kept_and_spoils_its_group_alone(name: str) -> None:
    grid = EVERY_GRID[name]
    weight = torch.randn(9, 512, generator=torch.Generator().manual_seed(0))
    before = round_plain(weight, grid).unpacked(torch.float32)
    weight[4, 300] = -1000.0
    found = round_plain(weight, grid).unpacked(torch.float32)
    assert float(found[4, 300]) == pytest.approx(-1000, rel=0.15 if grid.bits == 3 else 0.07)
    match grid.scope:
        case "group":
            start = 300 // (grid.group or 1) * (grid.group or 1)
            found[4, start : start + (grid.group or 0)] = 0
            before[4, start : start + (grid.group or 0)] = 0
            assert torch.equal(found, before)
        case "row":
            assert torch.equal(found[:4], before[:4]) and torch.equal(found[5:], before[5:])


@pytest.mark.parametrize("value", [0.75, -0.75, 3e-4])
@pytest.mark.parametrize("name", EVERY_GRID)
def test_equal_weights(name: str, value: float) -> None:
    grid = EVERY_GRID[name]
    found = round_plain(torch.full((9, 256), value), grid).unpacked(torch.float32)
    # Half a step of 8 below seven.
    limit = 0.07 if grid.kind == "int" and grid.bits == 4 else 0.15 if grid.bits == 3 else 0.004
    if not grid.symmetric:
        limit = 2e-3
    assert float((found / value - 1).abs().max()) < limit


@given(
    rows=st.integers(1, 20),
    groups=st.integers(1, 3),
    power=st.integers(-30, 30),
    symmetric=st.booleans(),
    bits=st.sampled_from([3, 4, 8]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_no_weight_is_more_than_half_a_step_off(
    rows: int,
    groups: int,
    power: int,
    symmetric: bool,
    bits: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(rows, 32 * groups, generator=generator) * 10.0**power).to(dtype)
    grid = Grid(bits=bits, group=32, symmetric=symmetric, scales=torch.float32)
    packed = round_plain(weight, grid)
    assert packed.scales is not None and packed.scales.dtype == torch.float32
    steps = packed.scales.repeat_interleave(32, 1)
    assert bool(((packed.unpacked(torch.float32) - weight.float()).abs() <= 0.501 * steps).all())


def test_weights_too_small_and_too_large_for_their_scales() -> None:
    weight = torch.linspace(-1, 1, 256).repeat(4, 1)
    tiny, huge = weight * 1e-40, weight * 1e38
    for name, grid in EVERY_GRID.items():
        for one in roundings(grid):
            wide = replace(grid, scales=torch.float32)
            for scaled in (tiny, huge):
                found = one(scaled, wide).unpacked(torch.float32)
                off = float((found.double() - scaled.double()).abs().max())
                assert off <= 0.2 * float(scaled.double().abs().max()), name
            # float16 scales cannot represent values that small.
            assert float((one(tiny, grid).unpacked(torch.float32) - tiny).abs().max()) < 1e-7
            if grid.scale_dtype == torch.float16:
                with pytest.raises(CannotQuantize, match="float16 cannot hold"):
                    one(huge, grid)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_not_finite_is_refused(value: float, dtype: torch.dtype) -> None:
    weight = torch.ones(70, 1 << 15, dtype=dtype)
    weight[66, 77] = value
    for one in ROUNDINGS.values():
        with pytest.raises(CannotQuantize, match="Row 66 "):
            one(weight, Grid())


def test_shapes() -> None:
    """A shape that a packing cannot hold is refused, with the shapes that it can."""
    for name, grid in EVERY_GRID.items():
        for inputs in (255, 192, 250, 1, 2):
            weight = torch.randn(13, inputs, generator=torch.Generator().manual_seed(0))
            is_odd = inputs * grid.bits % 8 > 0
            is_cut = grid.kind != "fp8" and grid.group is not None and inputs % grid.group > 0
            if is_odd or is_cut:
                with pytest.raises(
                    CannotQuantize, match="whole bytes" if is_odd else "whole groups"
                ):
                    round_plain(weight, grid)
                continue
            found = round_plain(weight, grid)
            assert found.inputs == inputs, name
            assert rms(found.unpacked(torch.float32) - weight) < 0.3 * rms(weight), name
    with pytest.raises(CannotQuantize, match="Choose groups of 64"):
        round_plain(torch.ones(2, 576), Grid())
    for wrong in (torch.ones(2, 3, 128), torch.ones(2, 128, dtype=torch.int32), torch.ones(0, 128)):
        with pytest.raises(CannotQuantize, match=r"axes|no weights"):
            round_plain(wrong, Grid())
    for importance in (torch.ones(127), -torch.ones(128), torch.full((128,), torch.nan)):
        with pytest.raises(CannotQuantize, match="importance"):
            round_plain(torch.ones(2, 128), Grid(), importance=importance)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("kind", {"kind": "fp4"}),
        ("bits", {"bits": 5}),
        ("bits", {"kind": "nf4", "bits": 8}),
        ("scope", {"scope": "block"}),
        ("scope", {"kind": "nf4", "scope": "tensor"}),
        ("group", {"group": None}),
        ("group", {"group": 0}),
        ("group", {"group": -1}),
        ("group", {"group": 12}),
        ("group", {"scope": "row"}),
        ("group", {"kind": "fp8", "bits": 8, "group": 64}),
        ("group", {"kind": "nf4", "group": 48}),
        ("symmetric", {"kind": "nf4", "group": 64, "symmetric": False}),
        ("e5m2", {"e5m2": True}),
        ("scales", {"scales": torch.float64}),
    ],
)
def test_grids_that_there_are_not(field: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadGrid) as refused:
        Grid(**wrong)
    assert refused.value.data["field"] == field and refused.value.exit_code == 2


def test_scales_that_are_shared_are_the_same() -> None:
    weight = torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    weight[200, 150] = 50
    block = round_plain(weight, Grid("fp8", 8, 128, "block")).scales
    assert block is not None and block.shape == (300, 2)
    for some in (slice(0, 128), slice(128, 256), slice(256, 300)):
        assert torch.equal(block[some], block[some][:1].expand_as(block[some]))
    assert float(block[200, 1]) == pytest.approx(50 / 448)
    for grid in (Grid("int", 8, None, "tensor", symmetric=False), Grid("fp8", 8, None, "tensor")):
        for importance in (None, torch.ones(200)):
            packed = round_plain(weight, grid, importance=importance)
            assert packed.scales is not None and len(set(packed.scales.flatten().tolist())) == 1


@pytest.mark.parametrize("name", EVERY_GRID)
def test_importance_and_hqq_never_make_the_error_larger(name: str) -> None:
    grid = EVERY_GRID[name]
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(130, 256, generator=generator) ** 3
    importance = torch.rand(256, generator=generator) ** 4

    def error(packed: PackedWeight, weights: torch.Tensor) -> float:
        change = packed.unpacked(torch.float32) - weight
        return float((change.square() * weights).sum())

    plain = round_plain(weight, grid)
    weighted = error(round_plain(weight, grid, importance=importance), importance)
    assert weighted <= error(plain, importance)
    if grid.scope in ("row", "group"):
        ones = torch.ones(256)
        found = error(round_hqq(weight, grid), ones) / error(plain, ones)
        assert found <= 1
        if grid.bits < 8 and grid.symmetric:
            assert found < 0.97
    else:
        with pytest.raises(BadGrid, match="not fitted"):
            round_hqq(weight, grid)


def test_rows_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor on how many are rounded at a time; blocks of outputs stay whole."""
    for grid in EVERY_GRID.values():
        rows = 290 if grid.scope == "block" else 20
        weight = torch.randn(rows, 256, generator=torch.Generator().manual_seed(0))
        whole = [one(weight, grid) for one in roundings(grid)]
        with monkeypatch.context() as patch:
            patch.setattr(rounding, "_CHUNK", 7 * 256)
            parts = [one(weight, grid) for one in roundings(grid)]
        for one, other in zip(whole, parts, strict=True):
            assert all(map(torch.equal, one.tensors, other.tensors))
            assert torch.equal(rounded(weight, grid), whole[0].unpacked(torch.float32))


@pytest.mark.parametrize("name", EVERY_GRID)
def test_results_are_multiplied(name: str) -> None:
    """By a kernel, if there is one: E5M2 has none, and the error says so."""
    grid = EVERY_GRID[name]
    weight, x = (torch.randn(37, 256, generator=torch.Generator().manual_seed(n)) for n in (0, 1))
    packed = round_plain(weight, grid)
    found = prepare([packed], exact=True)
    wanted = x.double() @ packed.unpacked(torch.float32).double().T
    assert torch.allclose(found.matmul(x).double(), wanted, rtol=1e-4, atol=1e-4)
    if grid.e5m2:
        assert isinstance(found, BlockMatrix)
        assert found.route(1, torch.float32).reason == "there is no kernel for it"
    elif multiplied():
        assert isinstance(found, TiledMatrix)


def test_three_bits_are_stored_in_three() -> None:
    """In the format of 3-bit checkpoints."""
    weight = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    for symmetric in (True, False):
        packed = round_plain(weight, Grid(bits=3, group=32, symmetric=symmetric))
        assert packed.packing == "INT3" and packed.weight.shape == (4, 24)
        assert packed.inputs == 64 and (packed.zeros is None) == symmetric
