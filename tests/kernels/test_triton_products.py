"""Products with packed matrices by the kernels for NVIDIA cards, which triton interprets here.
bfloat16 is tested only on a card, because the interpreter multiplies it incorrectly.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", minversion="3.9")  # Older interpreters fail with numpy 2.4.

from hearth.backends.native.models.experts import Experts
from hearth.backends.native.models.packed import PackedExperts
from hearth.kernels import packed
from hearth.kernels.cuda import matrix as on_cards
from hearth.kernels.cuda.matrix import TritonMatrix, multiplies_on, reads, rounded_as, tiles_for
from hearth.kernels.cuda.planes import planes_of
from hearth.kernels.packed import BlockMatrix, GroupedLinear, JoinedMatrix, prepare
from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.families.config import ExpertsConfig
from product_cases import CASES, error, weight_of
from random_weights import random_weight

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="there is a card, see test_cuda.py"
)
DTYPES = (torch.float32, torch.float16)
KINDS = ("Q4_K", "Q6_K", "MXFP4", "INT4 32 True", "INT8 0 True", "FP8 128", "NF4 64")
"""A case of each kind of codes and scales."""


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    """All dispatching code takes the processor for a card."""
    monkeypatch.setattr(packed, "has_triton", lambda device_type: True)


@pytest.mark.parametrize("case", CASES)
def test_planes_hold_what_the_file_holds(case: str) -> None:
    weight = weight_of(case)
    matrix, ids = TritonMatrix([weight]), torch.tensor([36, 0, 17, 17])
    for dtype in DTYPES:
        assert torch.equal(matrix.rows(ids, dtype), weight.unpacked(dtype)[ids])
    assert matrix.rows(ids[:0], torch.float32).shape == (0, weight.inputs)
    few = 1.03 if case in ("Q4_K", "Q5_K") else 1.0
    # A multiple of eight rows, and whole blocks of inputs.
    few *= (40 / 37) * -(-weight.inputs // 128) * 128 / weight.inputs
    kept = sum(one.nbytes for one in matrix.parts[0].tensors if one is not matrix.parts[0].book)
    assert kept <= few * sum(one.nbytes for one in weight.tensors)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float16) for case in CASES), *((case, torch.float32) for case in KINDS)],
)
def test_products_are_near(case: str, dtype: torch.dtype) -> None:
    weight = weight_of(case)
    matrix, plain = TritonMatrix([weight], exact=True), weight.unpacked(torch.float32)
    # With gaps between rows, as in a slice.
    x = torch.randn(70, 2 * weight.inputs, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x[:, : weight.inputs]
    limit = 1e-6 if dtype == torch.float16 else 1e-12
    for rows in (1, 17, 70):
        assert error(matrix.matmul(x[:rows]), x[:rows], plain) < limit


def by_groups(
    x: torch.Tensor,
    weight: torch.Tensor,
    x_scales: torch.Tensor,
    scales: torch.Tensor,
    *,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """`torch._scaled_mm` as on cards with a scale for each 128 inputs of a row on both sides (as
    described by its error message), which processors do not have.
    """
    groups = weight.shape[0] // 128
    assert x_scales.shape == (len(x), groups) and x_scales.stride() == (1, len(x))
    assert scales.shape == (groups, weight.shape[1]) and scales.is_contiguous()
    wide, plain = (
        one.double().repeat_interleave(128, axis) for one, axis in ((x_scales, 1), (scales, 0))
    )
    return ((x.double() * wide) @ (weight.double() * plain)).to(out_dtype)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        *((case, torch.float32) for case in ("FP8 128", "FP8 0", "INT8 0", "INT8 128", "INT8 256")),
        *((case, torch.float16) for case in ("FP8 128", "INT8 0")),
    ],
)
def test_many_rows_are_rounded_to_codes(
    case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing, group = case.split()
    if case == "FP8 128":
        monkeypatch.setattr(torch, "_scaled_mm", by_groups)
    on_cards.has_scaled_products.cache_clear()
    weight = random_weight(packing, 48, 512, group=int(group), scales=torch.bfloat16)
    matrix, exact = (TritonMatrix([weight], exact=exact) for exact in (False, True))
    x = torch.randn(70, 512, generator=torch.Generator().manual_seed(0))
    x *= torch.logspace(-3, 1.5, 70)[:, None]
    x[5], x[6, 3] = 0, torch.nan
    x = x.to(dtype)
    found = matrix.matmul(x)
    assert not found[5].any() and found[6].isnan().all()
    assert rounded_as(matrix.parts[0], 65, dtype) == packing.lower()
    assert (
        matrix.route(65, dtype).activations
        == packing.lower()
        != matrix.route(64, dtype).activations
    )
    assert matrix.route(64, dtype) == exact.route(64, dtype)
    assert exact.route(65, dtype).activations in ("f32", "f16")
    rows, plain = [row for row in range(70) if row not in (5, 6)], weight.unpacked(torch.float32)
    limit = 1e-3 if packing == "FP8" else 5e-4
    for row in rows:  # Each has its own scale.
        assert 1e-6 < error(found[row : row + 1], x[row : row + 1], plain) < 1.5 * limit
    assert error(found[rows], x[rows], plain) < limit
    if packing == "INT8":  # Integers: other rows make no difference.
        assert torch.equal(matrix.matmul(x[3:])[4:], found[7:])
    assert torch.equal(matrix.matmul(x[7:24]), exact.matmul(x[7:24]))
    on_cards.has_scaled_products.cache_clear()


def test_scaled_products_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, has = torch.device("cpu"), on_cards.has_scaled_products.__wrapped__
    assert has(cpu, torch.bfloat16, 0) and not has(cpu, torch.bfloat16, 128)
    monkeypatch.setattr(torch, "_scaled_mm", by_groups)
    assert has(cpu, torch.bfloat16, 128)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    assert not has(torch.device("cuda"), torch.bfloat16, 0)
    zeros = random_weight("INT8", 16, 128, has_zeros=True)
    for part in (zeros, random_weight("INT8", 16, 128, group=64), random_weight("FP8", 24, 128)):
        assert (
            rounded_as(
                planes_of(part.packing, part.weight, part.scales, part.zeros), 999, torch.float32
            )
            == ""
        )


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("Q4_K", torch.float32),
        ("INT4 32 True", torch.float16),
        ("FP8 of a row", torch.float32),
    ],
)
def test_a_row_does_not_depend_on_others(case: str, dtype: torch.dtype) -> None:
    weight = random_weight(case.split()[0], 29, 2304, **CASES[case])
    tiles = tiles_for(1, 29, 2304, dtype)
    assert tiles.split > 4 and tiles == tiles_for(16, 29, 2304, dtype)
    matrix = TritonMatrix([weight])
    x = torch.randn(16, 2304, generator=torch.Generator().manual_seed(1)).to(dtype)
    whole = matrix.matmul(x)
    assert error(whole, x, weight.unpacked(torch.float32)) < 1e-5
    # At the same positions of a tile, because numpy's products, which the interpreter uses, may
    # depend on them.
    for count in (1, 9):
        assert torch.equal(matrix.matmul(x[:count]), whole[:count])
        others = torch.cat([x[:count], torch.ones_like(x[count:])])
        assert torch.equal(matrix.matmul(others)[:count], whole[:count])
    assert torch.equal(matrix.matmul(x), whole) and not matrix.tensors[-1].any()


@pytest.mark.parametrize("split", [1, 2, 3, 4, 5, 8, 12])
def test_inputs_may_be_split_in_any_number(split: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with more parts than tiles of inputs, so that some are empty."""
    tiles = replace(tiles_for(1, 37, 1, torch.float32), split=split)
    monkeypatch.setattr(on_cards, "tiles_for", lambda *about: tiles)
    weight = random_weight("Q6_K", 37, 512)
    matrix, x = TritonMatrix([weight]), torch.randn(5, 512)
    assert error(matrix.matmul(x), x, weight.unpacked(torch.float32)) < 1e-10


def test_what_prepare_chooses(card: None) -> None:
    x = torch.randn(256, 3).t()
    codes = random_weight("INT4", 5, 256, 2, group=64)
    ordered = replace(codes, order=torch.randperm(256, generator=torch.Generator().manual_seed(0)))
    parts = {
        "one call": [random_weight("Q4_K", 8, 256), random_weight("Q4_K", 6, 256, 1)],
        "two calls": [random_weight("Q4_K", 8, 256), random_weight("Q6_K", 4, 256, 1)],
        "in order": [ordered],
        "in more bits": [random_weight("INT3", 5, 256, group=64)],
        "joined": [random_weight("Q4_K", 8, 256), PackedWeight(torch.randn(5, 256)), codes],
        "reference": [random_weight("INT4", 5, 96, group=48)],
    }
    made = {name: prepare(some, exact=False) for name, some in parts.items()}
    for name, matrix in made.items():
        plain = torch.cat([one.unpacked(torch.float32) for one in parts[name]])
        some = x[:, : matrix.inputs]
        assert error(matrix.matmul(some), some, plain) < 1e-10, name
        assert matrix.matmul(some[None, :0]).shape == (1, 0, matrix.outputs)
    assert len(made["one call"].parts) == 1 and len(made["two calls"].parts) == 2
    assert made["two calls"].kind == "Q4_K+Q6_K, Triton"
    assert isinstance(made["joined"], JoinedMatrix) and isinstance(made["reference"], BlockMatrix)
    assert made["in more bits"].kind == "INT4, Triton"
    assert made["in order"].kind == "INT4, Triton, in activation order"
    with pytest.raises(ValueError, match="256 inputs, not 255"):
        made["one call"].matmul(torch.zeros(1, 255))
    assert "run on H100s" in made["one call"].route(1, torch.bfloat16).reason


def test_what_has_no_planes_is_refused() -> None:
    assert not reads(random_weight("Q4_1", 4, 64)) and not reads(
        random_weight("INT4", 4, 36, group=0)
    )
    assert reads(random_weight("INT8", 4, 33, group=0))
    with pytest.raises(ValueError, match="no scales"):
        planes_of("INT4", torch.zeros(4, 16, dtype=torch.uint8))
    with pytest.raises(ValueError, match="Q4_1 has no planes"):
        planes_of("Q4_1", torch.zeros(4, 20, dtype=torch.uint8))


def test_a_device_is_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert multiplies_on(cpu)
    monkeypatch.setattr(TritonMatrix, "matmul", lambda self, x: torch.full((2, FEW), 31.0))
    assert not multiplies_on(cpu)

    def fails(self: TritonMatrix, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(TritonMatrix, "matmul", fails)
    assert not multiplies_on(cpu)


FEW = on_cards.FEW
COUNTS = (1, 0, 5, 20, 0, 17, 2)
"""Rows of each group."""


@pytest.mark.parametrize(
    ("packing", "dtype"),
    [
        *((one, torch.float16) for one in ("Q4_K", "Q5_K", "Q6_K", "MXFP4", "INT8", "NF4")),
        *((one, torch.float32) for one in ("Q4_K", "NF4")),
    ],
)
def test_groups_of_rows_have_matrices_of_their_own(
    packing: str, dtype: torch.dtype, card: None
) -> None:
    weights = [random_weight(packing, 37, 256, seed) for seed in range(len(COUNTS))]
    grouped = GroupedLinear([prepare([one], exact=False) for one in weights])
    assert grouped.on_card is not None
    # One block of memory for all experts, of which each matrix is a part.
    stack = grouped.on_card.parts[0].codes
    assert grouped.matrices[3].tensors[0].data_ptr() == stack[3].data_ptr()
    offsets = torch.tensor([0, *COUNTS]).cumsum(0)
    x = torch.randn(sum(COUNTS), 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = grouped.matmul(x, offsets)
    for group, count in enumerate(COUNTS):
        rows = slice(int(offsets[group]), int(offsets[group + 1]))
        if count:
            plain = weights[group].unpacked(torch.float32)
            assert error(found[rows], x[rows], plain) < 1e-5
            assert error(grouped.matrices[group].matmul(x[rows]), x[rows], plain) < 1e-5


def test_experts_are_chosen_and_multiplied_on_the_device(
    card: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No data of the experts is copied to the host; in the interpreter that is `Tensor.cpu`."""
    config = ExpertsConfig(
        count=4, active=2, width=32, routing="softmax_then_topk", renormalise=True, biases=False
    )
    experts = Experts(config, 64, "silu", torch.float32, is_wide=False)
    plain = {}
    for name, rows, inputs in (("gate_up", 64, 64), ("down", 64, 32)):
        weights = [random_weight("Q8_0", rows, inputs, seed) for seed in range(4)]
        plain[name] = torch.stack([one.unpacked(torch.float32) for one in weights])
        made = GroupedLinear([prepare([one], exact=False) for one in weights])
        setattr(experts, name, PackedExperts(made))
    generator = torch.Generator().manual_seed(0)
    hidden, scores = (torch.randn(9, size, generator=generator) for size in (64, 4))
    by_host = Experts(config, 64, "silu", torch.float64, is_wide=False)
    for name, weight in plain.items():
        getattr(by_host, name).weight = torch.nn.Parameter(weight.double(), requires_grad=False)
    wanted = by_host(hidden.double(), scores.double()).float()
    asked: list[object] = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: (asked.append(self.shape), cpu(self))[1])
    found = experts(hidden, scores)
    assert (5,) not in asked
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert float((found - wanted).square().sum() / wanted.square().sum()) < 1e-11
