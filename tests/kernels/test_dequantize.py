"""Every GGUF type gives the same as gguf-py, bit for bit, for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hearth.kernels.blocks import block_of, packings, scale_offsets
from hearth.kernels.dequantize import dequantize, dequantize_into

gguf = pytest.importorskip("gguf")  # Missing on some machines with a card.
Bytes = NDArray[np.uint8]


def random_rows(packing: str, rows: int, blocks: int, seed: int = 0) -> Bytes:
    """[rows, bytes] of random bytes, NaN and infinite scales among them."""
    size = block_of(packing)[1]
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), dtype=np.uint8)


def theirs(packing: str, rows: Bytes) -> NDArray[np.float32]:
    with np.errstate(all="ignore"):
        found: NDArray[np.float32] = gguf.quants.dequantize(
            rows, gguf.GGMLQuantizationType[packing]
        )
    return found


def assert_same(found: torch.Tensor, expected: NDArray[np.float32]) -> None:
    """The same bits, including the sign of zero; any NaN equals any NaN."""
    numbers = found.numpy()
    assert numbers.shape == expected.shape
    nan = np.isnan(expected)
    np.testing.assert_array_equal(nan, np.isnan(numbers))
    bits, wanted = numbers.view(np.uint32), np.ascontiguousarray(expected).view(np.uint32)
    np.testing.assert_array_equal(bits[~nan], wanted[~nan])


def test_every_type_that_gguf_py_can_dequantize_is_known() -> None:
    known = {kind.name for kind in gguf.quants._type_traits}
    assert set(packings()) == known | {"F32", "F16"}


@pytest.mark.parametrize("packing", packings())
def test_random_bytes(packing: str) -> None:
    assert block_of(packing) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[packing]]
    rows = random_rows(packing, 64, 40)
    assert_same(dequantize(packing, torch.from_numpy(rows)), theirs(packing, rows))


@pytest.mark.parametrize("packing", [name for name in packings() if scale_offsets(name)])
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00, 0x8000, 0x0001, 0x7BFF])
def test_special_scales(packing: str, half: int) -> None:
    """Infinite, NaN, minus zero, the smallest and the largest."""
    size = block_of(packing)[1]
    blocks = random_rows(packing, 32, 1)
    for start in scale_offsets(packing):
        blocks[:, start : start + 2] = np.frombuffer(half.to_bytes(2, "little"), np.uint8)
    assert blocks.shape[1] == size
    assert_same(dequantize(packing, torch.from_numpy(blocks)), theirs(packing, blocks))


@pytest.mark.parametrize("packing", ["MXFP4", "NVFP4"])
def test_every_small_scale(packing: str) -> None:
    blocks = random_rows(packing, 256, 1)
    blocks[:, 0] = np.arange(256)
    assert_same(dequantize(packing, torch.from_numpy(blocks)), theirs(packing, blocks))


@pytest.mark.parametrize("packing", packings())
def test_slices_of_something_larger(packing: str) -> None:
    """Rows and bytes need not be contiguous, nor begin at an even address."""
    size = block_of(packing)[1]
    rows = random_rows(packing, 9, 6)
    large = torch.zeros(9, rows.shape[1] + 3, dtype=torch.uint8)
    large[:, 1:-2] = torch.from_numpy(rows)
    shifted = large[::2, 1:-2]
    assert_same(dequantize(packing, shifted), theirs(packing, rows[::2]))
    some = torch.from_numpy(rows)[:, 2 * size : 4 * size]
    assert_same(dequantize(packing, some), theirs(packing, rows[:, 2 * size : 4 * size].copy()))
    columns = torch.from_numpy(np.ascontiguousarray(rows.T)).t()
    assert_same(dequantize(packing, columns), theirs(packing, rows))


@pytest.mark.parametrize("packing", ["Q4_K", "MXFP4", "IQ2_XS", "F16"])
def test_leading_dimensions_stay(packing: str) -> None:
    rows = random_rows(packing, 6, 2)
    stacked = torch.from_numpy(rows).view(2, 3, -1)
    assert_same(dequantize(packing, stacked).flatten(0, 1), theirs(packing, rows))
    one = dequantize(packing, stacked[0, 0])
    assert_same(one, theirs(packing, rows[:1])[0])


@pytest.mark.parametrize("packing", ["Q4_K", "Q6_K", "MXFP4", "BF16", "F32"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_dtypes_are_the_exact_numbers_rounded(packing: str, dtype: torch.dtype) -> None:
    rows = torch.from_numpy(random_rows(packing, 5, 8))
    found = dequantize(packing, rows, dtype)
    expected = dequantize(packing, rows).to(dtype)
    assert found.dtype == dtype
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_more_rows_than_are_unpacked_at_a_time() -> None:
    rows = np.tile(random_rows("Q8_0", 1, 64), (1200, 1))
    found = dequantize("Q8_0", torch.from_numpy(rows))
    assert_same(found, np.tile(theirs("Q8_0", rows[:1]), (1200, 1)))


def test_nothing_gives_nothing() -> None:
    assert dequantize("Q4_K", torch.empty(0, 144, dtype=torch.uint8)).shape == (0, 256)
    assert dequantize("Q4_K", torch.empty(3, 0, dtype=torch.uint8)).shape == (3, 0)


@pytest.mark.parametrize(
    ("packing", "blocks", "problem"),
    [
        ("Q9_Z", torch.zeros(1, 18, dtype=torch.uint8), "'Q9_Z' cannot be dequantized"),
        ("Q8_1", torch.zeros(1, 36, dtype=torch.uint8), "'Q8_1' cannot be dequantized"),
        ("Q4_0", torch.zeros(1, 19, dtype=torch.uint8), "a multiple of 18"),
        ("Q4_0", torch.zeros(1, 18, dtype=torch.int8), "uint8, not torch.int8"),
        ("Q4_0", torch.zeros((), dtype=torch.uint8), "no whole blocks"),
    ],
)
def test_what_cannot_be_is_refused(packing: str, blocks: torch.Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        dequantize(packing, blocks)


def test_room_of_the_wrong_shape_is_refused() -> None:
    blocks = torch.zeros(2, 18, dtype=torch.uint8)
    with pytest.raises(ValueError, match="contiguous room"):
        dequantize_into("Q4_0", blocks, torch.empty(2, 31))
    with pytest.raises(ValueError, match="contiguous room"):
        dequantize_into("Q4_0", blocks, torch.empty(32, 2).t())


@pytest.mark.cuda
@pytest.mark.parametrize("packing", packings())
def test_random_bytes_on_a_card(packing: str) -> None:
    rows = random_rows(packing, 64, 40)
    found = dequantize(packing, torch.from_numpy(rows).cuda())
    assert_same(found.cpu(), theirs(packing, rows))
