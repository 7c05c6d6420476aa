"""Rounding with activations: evaluated on activations that were not used for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.gguf.errors import CannotQuantize
from hearth.quant.rounding import gptq
from hearth.quant.rounding.awq import (
    Activations,
    fold_into_rows,
    of_kv_heads,
    round_awq,
    search_clip,
    search_scales,
    tied_heads,
)
from hearth.quant.rounding.choose import choose, output_error
from hearth.quant.rounding.gptq import Hessian, round_gptq
from hearth.quant.rounding.grid import Grid, round_plain
from hearth.quant.rounding.hqq import round_hqq

INPUTS = 512
GRIDS = {
    "INT4 of 128": Grid(),
    "INT4 of 64 with zeros": Grid(group=64, symmetric=False),
    "INT4 of rows": Grid("int", 4, None, "row"),
    "INT3 of 128": Grid(bits=3),
    "INT8 of rows": Grid("int", 8, None, "row"),
    "NF4 of 64": Grid("nf4", 4, 64),
    "FP8 of blocks": Grid("fp8", 8, 128, "block"),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Threads would wait for each other longer than these operations take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def activations(kind: str, seed: int, rows: int = 1024) -> Tensor:
    """[rows, INPUTS]: independent; from 64 hidden directions plus noise; or the latter with
    channels that are twenty times as large.
    """
    if kind == "independent":
        return random(rows, INPUTS, seed=seed)
    x = random(rows, 64, seed=seed) @ random(64, INPUTS, seed=1000) / 8
    x += 0.3 * random(rows, INPUTS, seed=seed + 500)
    if kind == "outliers":
        x[:, random(INPUTS, seed=1001).argsort()[:8]] *= 20
    return x


def seen(x: Tensor) -> Hessian:
    found = Hessian(x.shape[-1])
    found.add(x)
    return found


def loss(packed: PackedWeight, weight: Tensor, hessian: Hessian) -> float:
    """Squared errors of the outputs, summed over all rows that `hessian` has seen."""
    change = packed.unpacked(torch.float32) - weight
    return float((change @ hessian.total).mul_(change).sum(dtype=torch.float64))


def of_moments(total: Tensor) -> Hessian:
    """A Hessian from any symmetric matrix, including matrices that no activations give."""
    found = Hessian(len(total))
    found.total.copy_(total)
    return found


# GPTQ.


@pytest.mark.parametrize(("kind", "limit"), [("correlated", 0.6), ("outliers", 0.45)])
@pytest.mark.parametrize("name", GRIDS)
def test_gptq_makes_errors_of_outputs_smaller(name: str, kind: str, limit: float) -> None:
    weight, grid = random(256, INPUTS), GRIDS[name]
    hessian, others = seen(activations(kind, 1)), activations(kind, 2)
    plain = output_error(weight, round_plain(weight, grid), others)
    found = output_error(weight, round_gptq(weight, hessian, grid), others)
    in_order = output_error(weight, round_gptq(weight, hessian, grid, act_order=False), others)
    assert found <= limit * plain and in_order <= 0.6 * plain
    for act_order in (True, False):
        packed = round_gptq(weight, hessian, grid, act_order=act_order, narrowed=True)
        narrowed = output_error(weight, packed, others)
        best = found if act_order else in_order
        # With eight bits there is nothing to gain.
        assert narrowed <= (1.1 if grid.bits == 8 else 1.0) * best


def paper(weight: Tensor, x: Tensor, grid: Grid, act_order: bool) -> Tensor:
    """The result of the paper's algorithm in float64, with the inverse kept up to date."""
    w, inputs = weight.double(), weight.shape[1]
    group = grid.group or inputs
    moments = 2 / len(x) * x.double().T @ x.double()
    order = torch.arange(inputs)
    if act_order:
        order = moments.diagonal().argsort(descending=True, stable=True)
    w, moments = w[:, order], moments[order][:, order]
    moments += 0.01 * moments.diagonal().mean() * torch.eye(inputs)
    inverse = torch.linalg.cholesky(moments).cholesky_inverse()
    factor = torch.linalg.cholesky(inverse, upper=True)
    out = torch.zeros_like(w)
    scales = torch.unflatten(weight, 1, (-1, group)).abs().amax(-1) / 7.5
    scale = torch.zeros(len(weight))
    for i in range(inputs):
        if act_order:
            scale = scales[:, int(order[i]) // group]
        elif i % group == 0:
            scale = (w[:, i : i + group].abs().amax(1) / 7.5).float()
        out[:, i] = (w[:, i] / scale).round().clamp(-8, 7) * scale
        change = (w[:, i] - out[:, i]) / factor[i, i]
        w[:, i:] -= change[:, None] * factor[i, i:]
    return out[:, order.argsort()].float()


@pytest.mark.parametrize("act_order", [True, False])
def test_gptq_is_the_algorithm_of_the_paper(act_order: bool) -> None:
    weight, x = random(64, INPUTS), activations("correlated", 1)
    grid = Grid(group=32, scales=torch.float32)
    found = round_gptq(weight, seen(x), grid, act_order=act_order).unpacked(torch.float32)
    wanted = paper(weight, x, grid, act_order)
    # A tie that is decided differently changes the rest of the row.
    same = (found - wanted).abs().amax(1) < 1e-4
    assert float(same.float().mean()) > 0.7
    ours, theirs = ((one - weight) @ x.T for one in (found, wanted))
    assert float(ours.norm() / theirs.norm()) == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize("name", GRIDS)
def test_blocks_of_columns_and_chunks_of_rows_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, hessian = random(150, 256), seen(activations("correlated", 1)[:, :256])
    whole = round_gptq(weight, hessian, GRIDS[name])
    monkeypatch.setattr(gptq, "_CHUNK", 70 * 256)
    parts = round_gptq(weight, hessian, GRIDS[name])
    assert [one.shape for one in whole.tensors] == [one.shape for one in parts.tensors]
    assert all(map(torch.equal, whole.tensors[1:], parts.tensors[1:]))
    blocks = round_gptq(weight, hessian, GRIDS[name], block=40)
    for other in (parts, blocks):
        # Sums in another order sometimes decide a tie differently.
        same = (other.unpacked(torch.float32) == whole.unpacked(torch.float32)).float().mean()
        assert float(same) > 0.97
        assert loss(other, weight, hessian) == pytest.approx(loss(whole, weight, hessian), rel=0.01)


def test_the_order_of_inputs_does_not_matter() -> None:
    """For row scales, the order of all inputs; for groups, of the groups and within them."""
    weight, hessian = random(32, 256), seen(activations("outliers", 1)[:, :256])
    groups = torch.cat([64 * g + random(64, seed=g).argsort() for g in (2, 0, 3, 1)])
    for grid, order in (
        (Grid("int", 4, None, "row"), random(256).argsort()),
        (Grid(group=64), groups),
    ):
        moved = of_moments(hessian.total[order][:, order])
        found = round_gptq(weight[:, order], moved, grid).unpacked(torch.float32)
        assert torch.equal(
            found, round_gptq(weight, hessian, grid).unpacked(torch.float32)[:, order]
        )


@pytest.mark.parametrize("act_order", [True, False])
def test_inputs_that_are_always_zero(act_order: bool) -> None:
    """They are rounded to nearest, and have no influence on others."""
    x, grid = 1e-4 * activations("correlated", 1), Grid("int", 8, None, "row")
    dead = random(INPUTS, seed=3).argsort()[:40]
    x[:, dead] = 0
    alive = torch.ones(INPUTS, dtype=torch.bool)
    alive[dead] = False
    weight, hessian = random(16, INPUTS), seen(x)
    weight[:, 0] = 5
    alive[0], x[:, 0] = True, x[:, 1]
    found = round_gptq(weight, hessian, grid, act_order=act_order).unpacked(torch.float32)
    plain = round_plain(weight, grid).unpacked(torch.float32)
    assert torch.equal(found[:, dead], plain[:, dead])
    others = weight.clone()
    others[:, dead] = -others[:, dead] / 2
    again = round_gptq(others, hessian, grid, act_order=act_order).unpacked(torch.float32)
    assert torch.equal(found[:, alive], again[:, alive])


def test_fewer_rows_than_inputs_and_inputs_that_are_equal() -> None:
    weight, grid = random(64, INPUTS), Grid()
    x = activations("correlated", 1, rows=100)
    x[:, 100:200] = x[:, :100]
    for damp in (0.01, 0.0):
        notes: list[str] = []
        packed = round_gptq(weight, seen(x), grid, damp=damp, report=notes.append)
        found = output_error(weight, packed, x)
        plain = output_error(weight, round_plain(weight, grid), x)
        assert found < 0.5 * plain if damp else (found <= plain and len(notes) <= 1)


def test_where_no_damping_helps_it_is_reported() -> None:
    weight, grid = random(16, 128), Grid()
    plain = round_plain(weight, grid)
    none = Hessian(128)
    indefinite = of_moments(torch.full((128, 128), -50.0).fill_diagonal_(1))
    for hessian, said in ((indefinite, "no Cholesky factor"), (none, "has not reached")):
        notes: list[str] = []
        found = round_gptq(weight, hessian, grid, report=notes.append)
        assert all(map(torch.equal, found.tensors, plain.tensors))
        assert len(notes) == 1 and said in notes[0]
    slightly = of_moments(torch.full((128, 128), -0.009).fill_diagonal_(1))
    notes = []
    assert round_gptq(weight, slightly, grid, report=notes.append).inputs == 128 and not notes
    with pytest.raises(CannotQuantize, match="no finite number"):
        round_gptq(weight, seen(torch.full((1, 128), torch.inf)), grid)
    with pytest.raises(CannotQuantize, match="64 inputs were seen for rows of 128"):
        round_gptq(weight, Hessian(64), grid)
    with pytest.raises(ValueError, match="rows of 128 inputs, not 64"):
        none.add(torch.ones(3, 64))


@pytest.mark.parametrize("strip", [1024, 100])
def test_moments_do_not_depend_on_batches(strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq, "_STRIP", strip)
    x = activations("outliers", 1).view(8, 128, INPUTS)
    whole, parts, exact = seen(x), Hessian(INPUTS), x.double().flatten(0, 1)
    for some in torch.split(x.flatten(0, 1), [1, 500, 3, 520]):
        parts.add(some)
    assert whole.rows == parts.rows == 1024
    wanted = exact.T @ exact
    for one in (whole, parts):
        assert float((one.total - wanted).norm() / wanted.norm()) < 1e-6
        squares = exact.square().mean(0)
        assert float(((one.mean_square - squares) / squares).abs().max()) < 1e-5
    weight = random(64, INPUTS)
    parts.add(x[:0])
    packed = round_gptq(weight, whole, Grid())
    found = [one.unpacked(torch.float32) for one in (packed, round_gptq(weight, parts, Grid()))]
    assert float((found[0] == found[1]).float().mean()) > 0.95
    lost = float(((found[0] - weight).double() @ exact.T).square().sum())
    kept = float((weight.double() @ exact.T).square().sum())
    assert output_error(weight, packed, x) == pytest.approx((lost / kept) ** 0.5, rel=1e-4)


def test_what_was_made_of_moments_is_kept_until_there_are_others() -> None:
    x, weight = activations("correlated", 1), random(16, INPUTS)
    hessian = seen(x[:600])
    first = hessian.feedback(act_order=True, damp=0.01)
    assert first is hessian.feedback(act_order=True, damp=0.01)
    in_order = hessian.feedback(act_order=False, damp=0.01)
    assert in_order is not None and in_order.order.tolist() == list(range(INPUTS))
    hessian.add(x[600:])
    found, fresh = (round_gptq(weight, one, Grid()) for one in (hessian, seen(x)))
    assert loss(found, weight, hessian) == pytest.approx(loss(fresh, weight, hessian), rel=0.01)


# AWQ.


@pytest.mark.parametrize("name", GRIDS)
def test_scales_make_errors_of_outputs_smaller_with_outliers(name: str) -> None:
    weights, grid = [random(96, INPUTS), random(64, INPUTS, seed=1)], GRIDS[name]
    x, others = activations("outliers", 1), activations("outliers", 2)
    scales = search_scales(weights, x, grid)
    assert scales.error <= scales.plain_error and bool((scales.values > 0).all())
    limit = 1.0 if grid.kind == "fp8" else 0.8
    for weight in weights:
        plain = output_error(weight, round_plain(weight, grid), others)
        scaled = weight * scales.values
        clip = search_clip(scaled, x / scales.values, grid)
        for packed in (round_plain(scaled, grid), round_awq(scaled, grid, clip)):
            assert output_error(scaled, packed, others / scales.values) <= limit * plain


def test_scales_are_never_worse_than_none() -> None:
    """With any criterion; if no scale helps, none is used."""
    weight = random(64, INPUTS)
    x, means = activations("independent", 1), torch.rand(INPUTS) + 0.1
    scales = search_scales([weight], x, Grid(), mean_abs=means)
    assert scales.error <= scales.plain_error
    none = search_scales([weight], torch.zeros(1, INPUTS), Grid())
    assert none.ratio == 0 and bool((none.values == 1).all())
    with pytest.raises(CannotQuantize, match="no finite number"):
        search_scales([weight], torch.full((1, INPUTS), torch.nan), Grid())


@pytest.mark.parametrize("name", GRIDS)
def test_clipping_makes_errors_of_groups_smaller(name: str) -> None:
    grid = GRIDS[name]
    weight, x = random(140, 256) ** 3, activations("independent", 1)[:, :256]
    clip = search_clip(weight, x, grid)
    largest = torch.unflatten(weight.abs(), 1, (clip.shape[1], -1)).amax(-1)
    assert bool((clip <= largest).all()) and bool((clip > 0.5 * largest).all())
    found = output_error(weight, round_awq(weight, grid, clip), x)
    plain = output_error(weight, round_plain(weight, grid), x)
    assert found <= 1.002 * plain
    if grid.kind == "int" and grid.bits == 3:
        assert found < 0.92 * plain


def swiglu(x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    x = functional.rms_norm(x, x.shape[-1:]) * norm
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def test_folding_into_norms_and_the_matrix_before() -> None:
    x, norm = random(9, 64), random(64, seed=1) / 10 + 1
    gate, up, down = random(96, 64, seed=2) / 8, random(96, 64, seed=3) / 8, random(64, 96, seed=4)
    down /= 10
    wanted = swiglu(x, norm, gate, up, down)
    ins, hidden = random(64, seed=5).exp(), random(96, seed=6).exp()
    folded = fold_into_rows(up, hidden)
    found = swiglu(x, norm / ins, gate * ins, folded * ins, down * hidden)
    assert float((found - wanted).abs().max()) < 1e-5


def attention(
    x: Tensor, qkv: Tensor, bias: Tensor, out: Tensor, heads: int, kv_heads: int
) -> Tensor:
    every = (x @ qkv.T + bias).view(len(x), heads + 2 * kv_heads, -1).transpose(0, 1)
    q, k, v = torch.split(every, [heads, kv_heads, kv_heads])
    found = functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True, enable_gqa=True
    )
    return found[0].transpose(0, 1).flatten(1) @ out.T


@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_folding_into_values_of_shared_heads(kv_heads: int) -> None:
    x, width = random(9, 64), (6 + 2 * kv_heads) * 8
    qkv, bias, out = (
        random(width, 64, seed=1) / 8,
        random(width, seed=2),
        random(64, 48, seed=3) / 8,
    )
    wanted = attention(x, qkv, bias, out, 6, kv_heads)
    scales = tied_heads(random(48, seed=4).exp(), 6, kv_heads)
    assert torch.allclose(tied_heads(scales, 6, kv_heads), scales)
    of_values = of_kv_heads(scales, 6, kv_heads)
    bias = fold_into_rows(bias[:, None], of_values)[:, 0]
    found = attention(x, fold_into_rows(qkv, of_values), bias, out * scales, 6, kv_heads)
    assert float((found - wanted).abs().max()) < 1e-5


def test_scales_can_be_tied() -> None:
    weight, x = random(64, INPUTS), activations("outliers", 1)
    tied = search_scales([weight], x, Grid(), tie=lambda scales: tied_heads(scales, 8, 2))
    heads = tied.values.view(2, 4, 64)
    assert tied.ratio > 0 and torch.equal(heads[:, :1].expand_as(heads), heads)
    assert tied.error < tied.plain_error


def test_a_sample_does_not_depend_on_batches() -> None:
    x = activations("outliers", 1)
    whole, parts = (Activations(INPUTS, sample=100, seed=3) for _ in range(2))
    whole.add(x.view(2, 512, INPUTS))
    for some in torch.split(x, [1, 40, 3, 980]):
        parts.add(some)
    assert torch.equal(whole.sample, parts.sample) and whole.sample.shape == (100, INPUTS)
    assert torch.allclose(whole.mean_abs, parts.mean_abs, rtol=1e-5)
    assert torch.allclose(whole.mean_abs, x.abs().mean(0), rtol=1e-5) and parts.rows == 1024
    places = [int((x == row).all(1).nonzero()) for row in whole.sample]
    assert places == sorted(set(places)) and places[-1] > 900 and places[0] < 100
    few = Activations(INPUTS)
    few.add(x[:7].bfloat16())
    assert torch.equal(few.sample, x[:7].bfloat16().float())
    with pytest.raises(ValueError, match="not 3"):
        few.add(torch.ones(2, 3))


# The choice.


@pytest.mark.parametrize("kind", ["independent", "correlated", "outliers"])
def test_the_choice_is_never_worse_than_rounding_to_nearest(kind: str) -> None:
    """It is made on other activations than the candidates, and evaluated on a third set."""
    for seed, grid in enumerate((Grid(), Grid(group=32, symmetric=False), GRIDS["INT8 of rows"])):
        weight, x = random(128, INPUTS, seed=seed), activations(kind, 1)
        candidates = {
            "plain": round_plain(weight, grid),
            "hqq": round_hqq(weight, grid),
            "gptq": round_gptq(weight, seen(x), grid),
            "clipped": round_awq(weight, grid, search_clip(weight, x, grid)),
        }
        choice = choose(candidates, weight, activations(kind, 2))
        assert choice.errors[choice.name] == min(choice.errors.values())
        judged = {
            name: output_error(weight, one, activations(kind, 3))
            for name, one in candidates.items()
        }
        assert judged[choice.name] <= 1.001 * judged["plain"]
        if kind == "independent":
            assert choice.name != "gptq" and judged["gptq"] > judged["plain"]
        else:
            assert choice.name == "gptq" and judged[choice.name] < 0.6 * judged["plain"]


@pytest.mark.cuda
@pytest.mark.parametrize("name", GRIDS)
def test_every_method_on_a_card(name: str) -> None:
    weight, x, grid = random(130, INPUTS), activations("outliers", 1), GRIDS[name]
    found: list[list[float]] = []
    for device in ("cpu", "cuda"):
        own, rows = weight.to(device), x.to(device)
        hessian, scales = Hessian(INPUTS, device), search_scales([own], rows, grid)
        hessian.add(rows)
        scaled, divided = own * scales.values, rows / scales.values
        made = [round_plain(own, grid), round_gptq(own, hessian, grid)]
        if grid.scope == "group":
            made.append(round_hqq(own, grid))
        assert {one.weight.device.type for one in made} == {device}
        clipped = round_awq(scaled, grid, search_clip(scaled, divided, grid))
        errors = [output_error(own, one, rows) for one in made]
        found.append([*errors, output_error(scaled, clipped, divided)])
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_equal_candidates() -> None:
    weight, x = random(8, 128), random(16, 128, seed=1)
    same = round_plain(weight, Grid())
    assert choose({"hqq": same, "plain": same, "gptq": same}, weight, x).name == "plain"
    assert choose({"hqq": same, "gptq": same}, weight, x).name == "hqq"
    zeros = torch.zeros(8, 128)
    assert output_error(zeros, round_plain(zeros, Grid()), x) == 0
    assert output_error(zeros, same, x) == torch.inf
    for wrong in ({}, {"plain": round_plain(random(8, 256), Grid())}):
        with pytest.raises(ValueError, match=r"no candidate|256 packed"):
            choose(wrong, weight, x)
    broken = replace(same, scales=torch.full((8, 1), torch.nan))
    assert choose({"gptq": broken, "plain": same}, weight, x).name == "plain"
