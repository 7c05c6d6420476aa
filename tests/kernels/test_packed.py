"""Products with packed matrices equal products with the values that their blocks represent."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from hearth.kernels.blocks import packings
from hearth.kernels.cpu.build_library import build, is_current, library_path
from hearth.kernels.cpu.layouts import FORCE, HALVES, LAYOUTS, Instructions, multiplied
from hearth.kernels.cpu.library import CpuLibrary, cpu_library
from hearth.kernels.dequantize_codes import CODE_BITS
from hearth.kernels.packed import BlockMatrix, GroupedLinear, JoinedMatrix, TiledMatrix, prepare
from hearth.kernels.packed_weight import PackedWeight
from product_cases import error, library_with
from random_weights import random_weight

ROWS = (1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 64, 65, 128)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
GROUPS = (32, 64, 128, 0)
CASES: dict[str, dict[str, Any]] = {
    **{packing: {} for packing in LAYOUTS if packing not in CODE_BITS},
    **{
        f"{packing} {group} {zeros}": {
            "group": group,
            "has_zeros": zeros,
            "scales": DTYPES[(index + zeros) % len(DTYPES)],
        }
        for packing in ("INT2", "INT3", "INT4", "INT6", "INT8")
        for index, group in enumerate(GROUPS)
        for zeros in (False, True)
    },
    **{f"FP8 128 {dtype}": {"scales": dtype} for dtype in DTYPES},
    "FP8 of a row": {"group": 0, "scales": torch.float32},
    "FP8 and a shorter group": {"inputs": 544},
    **{f"NF4 {group}": {"group": group, "scales": torch.float32} for group in GROUPS},
}
"""Every layout, and for codes every group length, with and without zero points, and every dtype of
scales.
"""
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 5e-3}


def weight_of(case: str, seed: int = 0) -> PackedWeight:
    """37 rows of one of `CASES`."""
    options = {"inputs": 512, **CASES[case]}
    return random_weight(case.split()[0], 37, seed=seed, **options)


def half(kind: str, rows: int, inputs: int) -> PackedWeight:
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16}[kind]
    return PackedWeight(torch.randn(rows, inputs, generator=torch.Generator()).to(dtype))


@pytest.fixture(params=["plain", "avx2", "avx512"])
def library(request: pytest.FixtureRequest) -> CpuLibrary:
    """The library with each set of instructions that this processor has."""
    return library_with(request.param)


@pytest.fixture
def fresh_seed(request: pytest.FixtureRequest) -> int:
    """A different seed in every run; a failure shows it."""
    seed = int.from_bytes(np.random.default_rng().bytes(4), "little")
    print(f"seed {seed}")
    return seed


# The kernels of processors.


@pytest.mark.parametrize("case", CASES)
def test_a_tiled_matrix_holds_what_the_file_holds(case: str, library: CpuLibrary) -> None:
    weight = weight_of(case)
    exact, packing, inputs = weight.unpacked(torch.float32), weight.packing, weight.inputs
    tiles = library.pack(packing, weight.weight, weight.scales, weight.zeros)
    ids = torch.tensor([36, 0, 17, 17])
    assert torch.equal(library.rows(packing, tiles, 37, inputs, ids), exact[ids])


@pytest.mark.parametrize("case", CASES)
def test_products_are_near_and_do_not_depend_on_other_rows(
    case: str, library: CpuLibrary, fresh_seed: int
) -> None:
    weight = weight_of(case, fresh_seed)
    plain = weight.unpacked(torch.float32)
    x = torch.randn(max(ROWS), weight.inputs, generator=torch.Generator().manual_seed(fresh_seed))
    x[::3, 100] *= 20
    for exact, limit in ((True, 1e-5), (False, 5e-4)):
        matrix = TiledMatrix(library, [weight], exact=exact)
        whole = matrix.matmul(x)
        for rows in ROWS:
            found = matrix.matmul(x[:rows])
            assert error(found, x[:rows], plain) < limit
            assert torch.equal(found, whole[:rows]) and torch.equal(
                matrix.matmul(x[-rows:]), whole[-rows:]
            )


@pytest.mark.parametrize("large_number", [80.0, 1000.0])
@pytest.mark.parametrize(
    "case", ["Q4_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "INT4 64 True"]
)
def test_a_large_number_leaves_the_others_of_its_run_accurate(
    case: str, large_number: float, library: CpuLibrary
) -> None:
    weight = weight_of(case)
    plain, matrix = weight.unpacked(torch.float32), TiledMatrix(library, [weight], exact=False)
    x, large = torch.randn(13, 512), torch.zeros(13, 512)
    large[::2, 100] = large_number
    found = matrix.matmul(x + large) - large.double() @ plain.double().T
    assert error(found, x, plain) < 1e-4


@pytest.mark.parametrize("inputs", [1, 30, 515])
@pytest.mark.parametrize("kind", HALVES)
def test_half_precision_is_multiplied_as_it_is(kind: str, inputs: int, library: CpuLibrary) -> None:
    """In float32, for any number of rows."""
    weight = half(kind, 37, inputs)
    plain, x = weight.unpacked(torch.float32), torch.randn(max(ROWS), inputs)
    matrix = TiledMatrix(library, [weight], exact=True)
    whole = matrix.matmul(x)
    assert error(whole, x, plain) < 1e-12
    for rows in ROWS:
        assert torch.equal(matrix.matmul(x[:rows]), whole[:rows])
    assert torch.equal(matrix.rows(torch.tensor([36, 0]), torch.float32), plain[[36, 0]])
    quick = TiledMatrix(library, [weight], exact=False)
    assert error(quick.matmul(x), x, plain) < 1e-12 and not quick.is_row_invariant
    with pytest.raises(ValueError, match="shape"):
        matrix.rows(torch.tensor([37]), torch.float32)


def test_packed_rows_over_rows_of_half_precision(library: CpuLibrary) -> None:
    parts = [random_weight("Q4_K", 20, 256), half("F16", 5, 256)]
    matrix, x = TiledMatrix(library, parts, exact=False), torch.randn(9, 256)
    plain = torch.cat([part.unpacked(torch.float32) for part in parts])
    found = matrix.matmul(x)
    assert error(found, x, plain) < 5e-4 and error(found[:, 20:], x, plain[20:]) < 1e-12
    assert matrix.matmul(x[:0]).shape == (0, 25)


@pytest.mark.parametrize(
    "parts", [("Q4_0", "Q6_K", "Q8_0", "Q2_K"), ("INT4 96 False", "Q5_0", "INT8 160 True", "Q4_1")]
)
def test_parts_of_several_kinds(parts: Sequence[str], library: CpuLibrary) -> None:
    """Each takes its own zero from its codes; groups do not have to end where 8 runs do."""
    weights = []
    for part, outputs in zip(parts, (48, 33, 64, 17), strict=True):
        kind, *groups = part.split()
        inputs = 480 if "INT4 96 False" in parts else 512
        options = {"group": int(groups[0]), "has_zeros": groups[1] == "True"} if groups else {}
        weights.append(random_weight(kind, outputs, inputs, **options))
    x = torch.randn(70, weights[0].inputs)
    x[::3, 5] *= 80
    matrix = TiledMatrix(library, weights, exact=False)
    alone = torch.cat([matrix.matmul(row) for row in x.split(1)])
    start = 0
    for weight in weights:
        plain = weight.unpacked(torch.float32)
        assert error(alone[:, start : start + len(plain)], x, plain) < 1e-4
        start += len(plain)
    for rows in ROWS[:-2]:
        assert torch.equal(matrix.matmul(x[:rows]), alone[:rows])


@pytest.mark.parametrize("rows", [1, 20])
def test_what_is_not_finite_is_not_hidden(rows: int, library: CpuLibrary) -> None:
    """A row with NaN or infinity has no finite products; those of other rows are unaffected."""
    matrix = TiledMatrix(library, [random_weight("Q4_K", 16, 256)], exact=False)
    x = torch.ones(rows + 2, 256)
    x[rows, 3], x[rows + 1, 200] = torch.nan, torch.inf
    x[0] = 1e-38  # A scale for this row would have no finite reciprocal.
    found = matrix.matmul(x)
    assert not torch.isfinite(found[rows:]).any() and torch.isfinite(found[:rows]).all()
    assert not found[0].any()


def test_every_code_of_fp8_is_its_number(library: CpuLibrary) -> None:
    """The two NaN codes give NaN products in their own row only."""
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).repeat(3, 1)
    codes[1:, [0x7F, 0xFF]] = 0
    weight = PackedWeight(codes, "FP8", torch.tensor([[1.0], [1.0], [0.375]]))
    exact = weight.unpacked(torch.float32)
    matrix = TiledMatrix(library, [weight], exact=True)
    whole = torch.arange(3)
    assert torch.equal(matrix.rows(whole, torch.float32).nan_to_num(7), exact.nan_to_num(7))
    for rows in (1, 5):
        assert (
            matrix.matmul(torch.ones(rows, 256)).isnan().tolist() == [[True, False, False]] * rows
        )


@pytest.mark.parametrize(
    ("packing", "inputs", "group"), [("INT4", 96, 48), ("INT8", 40, 0), ("FP8", 136, 128)]
)
def test_groups_that_are_no_multiple_of_32(packing: str, inputs: int, group: int) -> None:
    """Are for the reference."""
    weight = random_weight(packing, 5, inputs, group=group)
    matrix, x = prepare([weight], exact=False), torch.randn(2, inputs)
    assert isinstance(matrix, BlockMatrix)
    assert error(matrix.matmul(x), x, weight.unpacked(torch.float32)) < 1e-10


def test_many_rows_go_through_amx_in_bfloat16(fresh_seed: int) -> None:
    library = library_with("amx")
    for case in (*CASES, *HALVES):
        weight = half(case, 100, 1034) if case in HALVES else weight_of(case, fresh_seed)
        matrix = TiledMatrix(library, [weight, weight], exact=False)
        assert not matrix.is_row_invariant
        assert TiledMatrix(library, [weight], exact=True).is_row_invariant
        x, plain = torch.randn(600, weight.inputs), weight.unpacked(torch.float32)
        if case not in HALVES and weight.packing not in ("FP8", "NF4"):
            # Fewer rows have int8 activations, and the same bits as one row at a time.
            alone = torch.cat([matrix.matmul(x[row : row + 1]) for row in range(47)])
            for rows in (2, 8, 9, 15, 16, 17, 24, 33, 47):
                assert torch.equal(matrix.matmul(x[:rows]), alone[:rows])
        whole = matrix.matmul(x)
        for rows in (48, 63, 65, 128, 513, 600):
            found = matrix.matmul(x[:rows])
            assert error(found, x[:rows], torch.cat((plain, plain))) < 5e-5
            assert torch.equal(found, whole[:rows])


@pytest.mark.parametrize("inputs", [1034, 1056])
def test_from_two_rows_on_bfloat16_goes_through_amx(inputs: int) -> None:
    """Tiles are read as they are if the inputs fill them, otherwise unpacked."""
    weights = [half("BF16", rows, inputs) for rows in (100, 23)]
    matrix = TiledMatrix(library_with("amx"), weights, exact=False)
    x = torch.randn(65, inputs)
    plain = torch.cat([one.unpacked(torch.float32) for one in weights])
    whole = matrix.matmul(x)
    assert error(whole, x, plain) < 5e-5
    for rows in (2, 8, 15, 16, 17, 32, 33, 49):
        assert torch.equal(matrix.matmul(x[:rows]), whole[:rows])
    assert error(matrix.matmul(x[:1]), x[:1], plain) < 1e-12  # In float32.


@pytest.mark.parametrize("packing", ["FP8", "NF4", "BF16"])
def test_more_rows_are_multiplied_by_torch_without_amx(packing: str) -> None:
    if packing == "BF16":
        weights = [half(packing, 40, 256), half("F16", 23, 256)]
    else:
        weights = [random_weight(packing, 40, 256, group=128)]
    matrix = TiledMatrix(CpuLibrary(library_path(), "plain"), weights, exact=False)
    assert matrix.most_rows is not None and not matrix.is_row_invariant
    x = torch.randn(matrix.most_rows + 1, 256)
    plain = torch.cat([one.unpacked(torch.float32) for one in weights])
    assert error(matrix.matmul(x), x, plain) < 1e-10


COUNTS = (1, 0, 5, 40, 0, 17, 2, 0)
"""Rows of each group."""


def grouped(
    library: CpuLibrary, seed: int, *, exact: bool
) -> tuple[GroupedLinear, list[torch.Tensor]]:
    """A matrix for each of `COUNTS`, and its values."""
    weights = [
        [random_weight("Q4_K", 20, 512, seed), random_weight("Q6_K", 17, 512, seed + group)]
        for group in range(len(COUNTS))
    ]
    plain = [torch.cat([one.unpacked(torch.float32) for one in parts]) for parts in weights]
    return GroupedLinear([TiledMatrix(library, parts, exact=exact) for parts in weights]), plain


@pytest.mark.parametrize("exact", [True, False])
def test_groups_of_rows_have_matrices_of_their_own(
    exact: bool, library: CpuLibrary, fresh_seed: int
) -> None:
    matrix, plain = grouped(library, fresh_seed, exact=exact)
    offsets = torch.tensor([0, *COUNTS]).cumsum(0)
    x = torch.randn(sum(COUNTS), 512, generator=torch.Generator().manual_seed(fresh_seed))
    found = matrix.matmul(x, offsets)
    assert matrix.tiled is not None and matrix.is_row_invariant
    assert found.shape == (sum(COUNTS), 37) == (len(x), matrix.outputs)
    for group, count in enumerate(COUNTS):
        rows = slice(int(offsets[group]), int(offsets[group + 1]))
        if count:
            assert error(found[rows], x[rows], plain[group]) < (1e-5 if exact else 5e-4)
        # The same bits without any other row.
        alone = torch.zeros(len(COUNTS) + 1, dtype=torch.int64)
        alone[group + 1 :] = count
        assert torch.equal(matrix.matmul(x[rows], alone), found[rows])


def test_a_group_of_many_rows_goes_through_amx() -> None:
    library = library_with("amx")
    matrix, plain = grouped(library, 0, exact=False)
    offsets = torch.tensor([0, *COUNTS]).cumsum(0)
    x = torch.randn(sum(COUNTS), 512)
    found = matrix.matmul(x, offsets)
    assert torch.equal(found[6:46], matrix.matrices[3].matmul(x[6:46]))
    assert torch.equal(found[1:6], matrix.matrices[2].matmul(x[1:6]))
    assert error(found[6:46], x[6:46], plain[3]) < 5e-5 and not matrix.is_row_invariant


@pytest.mark.parametrize("packing", ["IQ2_S", "BF16"])
def test_groups_without_one_call_are_multiplied_one_by_one(packing: str) -> None:
    """The type has no kernel, or, without AMX, groups with that many rows are left to torch."""
    if packing == "BF16":
        library, weights = CpuLibrary(library_path(), "plain"), [half("BF16", 6, 256)] * 3
        matrix = GroupedLinear([TiledMatrix(library, [one], exact=False) for one in weights])
        assert matrix.most_rows == 128
    else:
        weights = [random_weight(packing, 6, 256, seed) for seed in range(3)]
        matrix = GroupedLinear([prepare([one], exact=False) for one in weights])
        assert matrix.tiled is None and len(matrix.tensors) == 3
    x = torch.randn(140, 256)
    found = matrix.matmul(x, torch.tensor([0, 5, 5, 140]))
    for rows, weight in ((slice(5), weights[0]), (slice(5, 140), weights[2])):
        assert error(found[rows], x[rows], weight.unpacked(torch.float32)) < 1e-10
    with pytest.raises(ValueError, match="3 matrices of 256 inputs, not 2 of 256"):
        matrix.matmul(x, torch.tensor([0, 5, 140]))
    with pytest.raises(ValueError, match="one shape, not of 2"):
        GroupedLinear([matrix.matrices[0], prepare([random_weight("Q8_0", 4, 32)], exact=False)])


def test_every_thread_computes_its_part(library: CpuLibrary) -> None:
    threads = torch.get_num_threads()
    weight = random_weight("Q4_K", 1000, 256)
    matrix = TiledMatrix(library, [weight], exact=False)
    x = torch.randn(20, 256)
    try:
        found = []
        groups, _ = grouped(library, 0, exact=False)
        offsets, rows = torch.tensor([0, *COUNTS]).cumsum(0), torch.randn(sum(COUNTS), 512)
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(
                torch.cat((matrix.matmul(x).flatten(), groups.matmul(rows, offsets).flatten()))
            )
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    finally:
        torch.set_num_threads(threads)


def test_what_the_library_cannot_do_is_refused(library: CpuLibrary) -> None:
    weight = random_weight("Q4_K", 4, 256)
    tiles = library.pack("Q4_K", weight.weight)
    with pytest.raises(ValueError, match="shape"):
        library.rows("Q4_K", tiles, 4, 256, torch.tensor([4]))
    codes = random_weight("INT4", 4, 256)
    for scales, zeros in ((None, None), (torch.ones(3, 2), None), (codes.scales, torch.ones(4))):
        with pytest.raises(ValueError, match="scales"):
            library.pack("INT4", codes.weight, scales, zeros)
    with pytest.raises(ValueError, match="256 inputs, not 32"):
        TiledMatrix(library, [weight], exact=False).matmul(torch.zeros(1, 32))


def test_kernels_can_be_forced_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random_weight("Q4_0", 4, 32)
    for forced, kind in (("plain", "Q4_0, plain"), ("off", "Q4_0"), ("sse", "Q4_0")):
        monkeypatch.setenv(FORCE, forced)
        cpu_library.cache_clear()
        assert prepare([weight], exact=False).kind == kind
        assert bool(multiplied()) == (forced != "off")
    cpu_library.cache_clear()


@pytest.mark.parametrize("packing", ["Q4_K", "FP8"])
@pytest.mark.parametrize("instructions", ["avx2", "avx512", "amx"])
def test_rows_of_one_route_have_the_same_bits(packing: str, instructions: Instructions) -> None:
    library = library_with(instructions)
    matrix = TiledMatrix(library, [random_weight(packing, 37, 512)], exact=False)
    x = torch.randn(200, 512, generator=torch.Generator().manual_seed(3))
    first = {rows: matrix.matmul(x[:rows])[0] for rows in (1, *range(5, 30), 128, 129, 200)}
    for rows, found in first.items():
        is_like_one = matrix.route(rows) == matrix.route(1)
        assert torch.equal(found, first[1]) == is_like_one, (rows, matrix.route(rows))
    changes = matrix.route(200) != matrix.route(1)
    assert changes == (instructions == "amx" or packing == "FP8")


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_current(), "run `make`"
    monkeypatch.setattr("hearth.kernels.cpu.library.version", lambda: "0" * 12)
    with pytest.raises(ValueError, match="other sources"):
        CpuLibrary(library_path())


@pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    from hearth.kernels.cpu.build_library import NoCompiler

    with pytest.raises(NoCompiler, match="no-such-compiler"):
        build(tmp_path, ["no-such-compiler"])
    with pytest.raises(NoCompiler, match="-no-such-flag"):
        build(tmp_path, ["cc", "-no-such-flag"])
    assert not list(tmp_path.rglob("*.o"))


# The reference.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("packing", packings())
def test_the_reference_multiplies_every_type(packing: str, dtype: torch.dtype) -> None:
    if packing in ("F32", "F16", "BF16"):
        pytest.skip("not packed")
    part = random_weight(packing, 5, 256)
    part.weight[:, :] = part.weight[:, :] & 0x3B  # IQ1_M and NVFP4 have scales everywhere.
    matrix = BlockMatrix(part)
    for shape in ((256,), (1, 256), (3, 5, 256)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
        found, wanted = matrix.matmul(x), functional.linear(x, part.unpacked(dtype))
        scale = wanted.float().abs().max()
        assert found.dtype == dtype and found.shape == wanted.shape
        assert (found.float() - wanted.float()).abs().max() <= TOLERANCE[dtype] * scale


def test_rows_are_unpacked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    unpack = PackedWeight.unpack_into

    def counting(part: PackedWeight, out: torch.Tensor) -> None:
        sizes.append(out.nbytes)
        unpack(part, out)

    monkeypatch.setattr(PackedWeight, "unpack_into", counting)
    part = random_weight("Q8_0", 5000, 512)
    x = torch.randn(2, 512)
    found = BlockMatrix(part).matmul(x)
    assert len(sizes) > 1 and max(sizes) <= 64 << 20
    assert error(found, x, part.unpacked(torch.float32)) < 1e-10


@pytest.mark.parametrize("is_tiled", [True, False])
def test_parts_of_different_types(is_tiled: bool) -> None:
    """Queries and keys in one type, values in another, and optionally rows that are not packed."""
    parts = [random_weight("Q4_K", 8, 256), random_weight("Q6_K", 4, 256, 1)]
    if not is_tiled:
        parts.append(PackedWeight(torch.randn(5, 256)))
    matrix = prepare(parts, exact=True)
    assert isinstance(matrix, TiledMatrix if is_tiled else JoinedMatrix)
    x = torch.randn(256, 6).t()  # Not contiguous.
    plain = torch.cat([part.unpacked(torch.float32) for part in parts])
    assert error(matrix.matmul(x), x, plain) < 1e-10
    assert (matrix.inputs, matrix.outputs) == (256, 12 if is_tiled else 17)
    assert ("Q4_K+Q6_K" if is_tiled else "Q4_K over Q6_K over plain") in matrix.kind


@pytest.mark.parametrize("packing", ["Q4_K", "IQ2_S"])
def test_rows_of_an_embedding(packing: str) -> None:
    part = random_weight(packing, 50, 256)
    matrix, ids = prepare([part], exact=False), torch.tensor([3, 0, 49, 3])
    for dtype in DTYPES:
        assert torch.equal(matrix.rows(ids, dtype), part.unpacked(dtype)[ids])


def test_each_tensor_is_moved_once() -> None:
    class Copies(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.moved: list[torch.Size] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.ops.aten._to_copy.default:
                self.moved.append(args[0].shape)
            return func(*args, **(kwargs or {}))

    weight = random_weight("INT4", 4, 64, group=32, has_zeros=True)
    with Copies() as copies:
        moved = weight.to(torch.device("meta"))
    assert copies.moved == [one.shape for one in weight.tensors]
    assert {one.device.type for one in moved.tensors} == {"meta"}


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        prepare([random_weight("Q8_0", 4, 32), random_weight("Q8_0", 4, 64)], exact=False)
    with pytest.raises(ValueError, match="one length, not none"):
        prepare([], exact=False)
    with pytest.raises(ValueError, match="32 inputs, not 33"):
        BlockMatrix(random_weight("Q8_0", 4, 32)).matmul(torch.zeros(1, 33))
