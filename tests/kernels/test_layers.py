"""Attention in C over pages equals attention in float64 over their contents, and so do experts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hearth.backends.native.kv_rows import Q8_0, from_rows, row_elements, to_rows
from hearth.kernels.cpu.layers import (
    Attention,
    ExpertWeights,
    Gate,
    HalfLayers,
    HalfMatrix,
    HeadShape,
    LayerWeights,
    Pages,
)
from hearth.kernels.cpu.layouts import Instructions
from hearth.kernels.cpu.library import CpuLibrary
from hearth.kernels.packed import GroupedLinear, TiledMatrix
from product_cases import library_with
from random_weights import random_weight

PAGE = 16
SETS: tuple[Instructions, ...] = ("plain", "avx2", "avx512")
SHAPES = (
    HeadShape(4, 4, 64, 0.125),
    HeadShape(16, 8, 128, 0.09, window=40),
    HeadShape(9, 3, 64, 0.125, softcap=20.0),
    HeadShape(7, 1, 80, 0.2, window=300),
)
TYPES = (
    (torch.float16, torch.float16),
    (torch.float32, torch.float32),
    (Q8_0, Q8_0),
    (torch.float16, Q8_0),
)
HEAD_DIMS = {
    (dtype == Q8_0, row_elements(shape.head_dim, dtype)): shape.head_dim
    for shape in SHAPES
    for dtype in (torch.float32, Q8_0)
}
"""By whether rows are packed, and by their elements."""
LENGTHS = (1, 2, 15, 16, 17, 255, 256, 257, 600, 601, 602, 640)


@pytest.fixture(params=SETS)
def library(request: pytest.FixtureRequest) -> CpuLibrary:
    return library_with(request.param)


@dataclass
class Case:
    """Sequences of several lengths; the last token of each is the query."""

    pool: tuple[Tensor, Tensor]
    tables: list[list[int]]
    lengths: tuple[int, ...]

    def pages(self, which: list[int], apart: tuple[int, ...] = ()) -> Pages:
        starts, tables = [], []
        for index in which:
            starts.append(len(tables))
            tables += self.tables[index]
        return Pages(
            torch.tensor([self.lengths[index] - 1 for index in which]),
            torch.tensor(tables, dtype=torch.int32),
            torch.tensor(starts),
            torch.tensor([index in apart for index in which]),
            torch.empty(0, 2, dtype=torch.int64),
        )


Types = tuple[torch.dtype, torch.dtype]


def empty_pool(shape: HeadShape, blocks: int, types: Types) -> tuple[Tensor, Tensor]:
    """A pool of NaN, or of bytes that are NaN as scales."""
    fills = {dtype: -1 if dtype == Q8_0 else float("nan") for dtype in types}
    return tuple(  # type: ignore[return-value]
        torch.full(
            (shape.kv_heads, blocks, PAGE, row_elements(shape.head_dim, dtype)),
            fills[dtype],
            dtype=dtype,
        )
        for dtype in types
    )


def drawn(shape: HeadShape, types: Types, rng: np.random.Generator) -> Case:
    """Blocks in random order; each sequence shares all full pages with the one before it, and the
    last one shares ten. Cells outside all sequences, and blocks outside a window, are NaN.
    """
    counts = [-(-length // PAGE) for length in LENGTHS]
    blocks = sum(counts) + 3
    order = [int(block) for block in rng.permutation(blocks)]
    tables: list[list[int]] = []
    for count in counts:
        before = tables[-1] if tables else [0]
        full = min(len(before), count) - 1
        shared = before[: full if len(tables) + 1 < len(counts) else 10]
        tables.append([*shared, *(order.pop() for _ in range(count - len(shared)))])
    pool = empty_pool(shape, blocks, types)
    for table, length in zip(tables, LENGTHS, strict=True):
        put(pool, table, length, rng)
    for table, length in zip(tables, LENGTHS, strict=True):
        if shape.window is not None:
            table[: max(length - shape.window, 0) // PAGE] = [-1] * (
                max(length - shape.window, 0) // PAGE
            )
    return Case(pool, tables, LENGTHS)


def put(
    pool: tuple[Tensor, Tensor],
    table: list[int],
    count: int,
    rng: np.random.Generator,
    first: int = 0,
) -> None:
    """Write random keys and values of `count` tokens of a sequence, from place `first` on."""
    for side in pool:
        size = HEAD_DIMS[side.dtype == Q8_0, side.shape[-1]]
        numbers = torch.from_numpy(rng.standard_normal((len(side), count, size)))
        side[:, *places_of(table, range(first, first + count))] = to_rows(numbers, side.dtype)


def places_of(table: list[int], tokens: range) -> tuple[Tensor, Tensor]:
    """The block of each token, and its place in the block."""
    at = torch.tensor(tokens)
    return torch.tensor(table)[at // PAGE], at % PAGE


def wanted(case: Case, shape: HeadShape, query: Tensor, sinks: Tensor | None) -> Tensor:
    """[sequences, heads, head_dim] float64."""
    rows = []
    for table, length, heads in zip(case.tables, case.lengths, query.double(), strict=True):
        first = max(length - (shape.window or length), 0)
        places = range(first, length)
        keys, values = (side[:, *places_of(table, places)] for side in case.pool)
        keys, values = (
            from_rows(rows, torch.float64).repeat_interleave(shape.heads // shape.kv_heads, 0)
            for rows in (keys, values)
        )
        scores = torch.einsum("hd,htd->ht", heads, keys) * shape.scale
        if shape.softcap:
            scores = torch.tanh(scores / shape.softcap) * shape.softcap
        if sinks is not None:
            scores = torch.cat((scores, sinks.double()[:, None]), 1)
        weights = scores.softmax(-1)[:, : len(places)]
        rows.append(torch.einsum("ht,htd->hd", weights, values))
    return torch.stack(rows)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_attention_over_pages(
    library: CpuLibrary, shape: HeadShape, types: Types, has_sinks: bool
) -> None:
    if Q8_0 in types and shape.head_dim % 32:
        pytest.skip("Q8_0 has no heads of this size")
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    case = drawn(shape, types, rng)
    count = len(LENGTHS)
    # Tokens are further apart than their queries, because keys and values are between them.
    rows = torch.from_numpy(rng.standard_normal((count, shape.heads + 3, shape.head_dim))).float()
    query = rows[:, : shape.heads]
    sinks = torch.from_numpy(rng.standard_normal(shape.heads)).float() if has_sinks else None
    attend = Attention(library, shape, case.pool, sinks)
    found = torch.full((count, shape.heads, shape.head_dim), 7.0)
    attend(case.pool, case.pages(list(range(count)), apart=(3,)), query, found)
    assert (found[3] == 7.0).all()
    expected = wanted(case, shape, query, sinks)
    expected[3] = 7.0
    assert (found - expected).abs().max() < 2e-5, seed
    # A row has the same bits when it is alone.
    for index in range(count):
        if index == 3:
            continue
        alone = torch.empty(1, shape.heads, shape.head_dim)
        attend(case.pool, case.pages([index]), query[index : index + 1], alone)
        assert torch.equal(alone[0], found[index]), seed


def test_tokens_of_several_batches(library: CpuLibrary) -> None:
    """The partial sums of 600 tokens exceed the memory that is available at a time."""
    shape, count, start = HeadShape(16, 8, 128, 0.09), 600, 1000
    blocks = -(-(start + count) // PAGE)
    pool = tuple(torch.randn(8, blocks, PAGE, 128).half() for _ in range(2))
    query = torch.randn(count, 16, 128)
    attend = Attention(library, shape, pool, None)  # type: ignore[arg-type]

    def attended(which: slice) -> Tensor:
        positions = torch.arange(start, start + count)[which]
        rows = len(positions)
        pages = Pages(
            positions,
            torch.arange(blocks, dtype=torch.int32),
            torch.zeros(rows, dtype=torch.int64),
            torch.zeros(rows, dtype=torch.bool),
            torch.empty(0, 2, dtype=torch.int64),
        )
        out = torch.full((rows, 16, 128), float("nan"))
        attend(pool, pages, query[which].contiguous(), out)  # type: ignore[arg-type]
        return out

    together = attended(slice(None))
    for at in (0, 250, 333, 599):
        assert torch.equal(together[at], attended(slice(at, at + 1))[0])


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("start", "count"), [(0, 33), (5, 17), (230, 60), (1000, 40)])
def test_many_tokens_of_a_sequence_by_amx(
    shape: HeadShape, start: int, count: int, types: Types
) -> None:
    if Q8_0 in types and shape.head_dim % 32:
        pytest.skip("Q8_0 has no heads of this size")
    library = library_with("amx")
    rng = np.random.default_rng()
    end = start + count
    table = [int(block) for block in rng.permutation(-(-end // PAGE) + 3)]
    pool = empty_pool(shape, len(table), types)
    left = 0 if shape.window is None else max(start + 1 - shape.window, 0) // PAGE
    put(pool, table, end - left * PAGE, rng, left * PAGE)
    rows = torch.from_numpy(rng.standard_normal((count + 1, shape.heads + 3, shape.head_dim)))
    query = rows.float()[:, : shape.heads]
    sinks = torch.from_numpy(rng.standard_normal(shape.heads)).float()
    # A token of another sequence with the same pages comes first.
    pages = Pages(
        torch.tensor([start, *range(start, end)]),
        torch.tensor([*table, *table], dtype=torch.int32),
        torch.tensor([0, *([len(table)] * count)]),
        torch.tensor([False, *([True] * count)]),
        torch.tensor([[1, count + 1]]),
    )
    found = torch.full((count + 1, shape.heads, shape.head_dim), float("nan"))
    Attention(library, shape, pool, sinks)(pool, pages, query, found)
    lengths = (start + 1, *range(start + 1, end + 1))
    case = Case(pool, [table] * (count + 1), lengths)
    expected = wanted(case, shape, query, sinks)
    assert (found[0] - expected[0]).abs().max() < 2e-5
    assert (found - expected).square().mean() < 1e-4 * expected.square().mean()


def test_shapes_that_have_no_kernel_are_refused(library: CpuLibrary) -> None:
    with pytest.raises(ValueError, match="heads of 24 numbers"):
        HeadShape(4, 2, 24, 1.0)
    with pytest.raises(ValueError, match="3 over 2"):
        HeadShape(3, 2, 64, 1.0)
    side = torch.zeros(2, 1, PAGE, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="bfloat16"):
        Attention(library, HeadShape(4, 2, 64, 1.0), (side, side), None)


WIDTH, HIDDEN, EXPERTS, ACTIVE = 256, 64, 11, 3


@dataclass
class Mixture:
    """A layer whose attention adds nothing, with random experts."""

    layer: HalfLayers
    held: list[GroupedLinear | TiledMatrix]
    """The matrices whose addresses the layer has."""
    router: Tensor
    norm: Tensor
    matrices: list[Tensor]
    """gate and up, and down, of all experts: [experts, outputs, inputs] float64."""
    biases: list[Tensor]
    gate: Gate
    weighs_all: bool

    def fed(self, hidden: Tensor) -> Tensor:
        """The layer's contribution, [tokens, width] float32."""
        found = hidden.clone()
        self.layer.feed(torch.zeros(len(hidden), 1, 32), found)
        return found - hidden

    def wanted(self, hidden: Tensor) -> Tensor:
        """The same in float64."""
        x = hidden.double()
        x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * self.norm
        scores = x @ self.router.double().T + self.biases[0]
        best, chosen = scores.topk(ACTIVE)
        shares = scores.softmax(-1).gather(1, chosen) if self.weighs_all else best.softmax(-1)
        found = torch.zeros_like(x)
        for place in range(ACTIVE):
            which = chosen[:, place]
            both = torch.einsum("toi,ti->to", self.matrices[0][which], x) + self.biases[1][which]
            gate, up = both.chunk(2, -1)
            match self.gate:
                case "silu":
                    inner = functional.silu(gate) * up
                case "gelu_tanh":
                    inner = functional.gelu(gate, approximate="tanh") * up
                case "swiglu_clamped":
                    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
                    inner = gate * torch.sigmoid(1.702 * gate) * (up + 1.0)
            down = torch.einsum("toi,ti->to", self.matrices[1][which], inner)
            found += shares[:, place, None] * (down + self.biases[2][which])
        return found


def mixture(library: CpuLibrary, gate: Gate, *, weighs_all: bool, exact: bool) -> Mixture:
    weights = [
        [
            [random_weight("Q4_0", HIDDEN, WIDTH, 9 * e + part) for part in (0, 1)]
            for e in range(EXPERTS)
        ],
        [[random_weight("Q8_0", WIDTH, HIDDEN, 9 * e + 2)] for e in range(EXPERTS)],
    ]
    packed = [
        GroupedLinear([TiledMatrix(library, parts, exact=exact) for parts in some])
        for some in weights
    ]
    plain = [
        torch.stack([torch.cat([one.unpacked(torch.float64) for one in parts]) for parts in some])
        for some in weights
    ]
    has_biases = gate == "swiglu_clamped"
    biases = [torch.randn(EXPERTS, *size) * has_biases for size in ((), (2 * HIDDEN,), (WIDTH,))]
    router, norm = torch.randn(EXPERTS, WIDTH) / 8, torch.rand(WIDTH) * 2
    gate_up, down = (
        HalfMatrix(one.parts, one.outputs, bias if has_biases else None)
        for one, bias in zip(packed, biases[1:], strict=True)
    )
    experts = ExpertWeights(
        router, ACTIVE, HIDDEN, gate_up, down, weighs_all, biases[0] if has_biases else None
    )
    attention = [
        TiledMatrix(library, [random_weight("Q8_0", size, inputs)], exact=exact)
        for size, inputs in ((96, WIDTH), (WIDTH, 32))
    ]
    qkv, out = (HalfMatrix(one.parts, one.outputs) for one in attention)
    one = torch.ones(WIDTH)
    layer = LayerWeights(WIDTH, 0, 1e-6, gate, one, norm, qkv, out, experts=experts)
    side = torch.zeros(1, 1, PAGE, 32)
    pool = side, side
    made = HalfLayers(library, HeadShape(1, 1, 32, 1.0), layer, pool, exact=exact)
    held = [*packed, *attention]
    return Mixture(made, held, router, norm, plain, biases, gate, weighs_all)


@pytest.mark.parametrize("weighs_all", [False, True])
@pytest.mark.parametrize("gate", ["silu", "gelu_tanh", "swiglu_clamped"])
def test_experts(library: CpuLibrary, gate: Gate, weighs_all: bool) -> None:
    hidden = torch.randn(70, WIDTH)
    for exact, limit in ((True, 1e-5), (False, 5e-4)):
        case = mixture(library, gate, weighs_all=weighs_all, exact=exact)
        found, expected = case.fed(hidden), case.wanted(hidden)
        off = (found - expected).square().sum() / expected.square().sum()
        assert off < limit
        for rows in (slice(1), slice(3, 10), slice(69, 70), slice(20, 60)):
            assert torch.equal(case.fed(hidden[rows]), found[rows])


def test_experts_of_many_rows_by_amx() -> None:
    library = library_with("amx")
    case = mixture(library, "silu", weighs_all=False, exact=False)
    hidden = torch.randn(300, WIDTH)
    found, expected = case.fed(hidden), case.wanted(hidden)
    assert (found - expected).square().sum() < 5e-4 * expected.square().sum()


def test_a_token_that_is_not_finite_leaves_others_alone(library: CpuLibrary) -> None:
    case = mixture(library, "silu", weighs_all=False, exact=True)
    hidden = torch.randn(9, WIDTH)
    expected = case.fed(hidden)
    hidden[4, 7] = torch.nan
    found = case.fed(hidden)
    others = [token for token in range(9) if token != 4]
    assert torch.equal(found[others], expected[others]) and not torch.isfinite(found[4]).any()
