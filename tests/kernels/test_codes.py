"""Codes with separate scales: the values that they represent, and products with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drawn_codes import DTYPES, drawn
from hearth.kernels.cuda.packings import WIDER
from hearth.kernels.dequantize_codes import CODE_BITS, MIDDLE, NF4, fp8_by_bits
from hearth.kernels.packed import BlockMatrix, JoinedMatrix, OrderedMatrix, prepare, widened
from hearth.kernels.packed_weight import PackedWeight


def numbers(part: PackedWeight) -> np.ndarray:
    """[rows, inputs] float32, computed number by number."""
    assert part.scales is not None
    bits = CODE_BITS[part.packing]
    ones = np.unpackbits(part.weight.numpy(), axis=1, bitorder="little")
    ones = ones[:, : part.inputs * bits].reshape(len(ones), -1, bits)
    codes = np.packbits(ones, axis=2, bitorder="little")[..., 0]
    if part.packing == "FP8":
        exponents, fractions = codes >> 3 & 15, codes & 7
        sizes = np.where(
            exponents > 0, (8.0 + fractions) * 2.0 ** (exponents - 10.0), fractions * 2.0**-9
        )
        values = np.where(codes & 128, -sizes, sizes).astype(np.float32)
    elif part.packing == "FP8_E5M2":
        exponents, fractions = codes >> 2 & 31, codes & 3
        sizes = np.where(
            exponents > 0, (4.0 + fractions) * 2.0 ** (exponents - 17.0), fractions * 2.0**-16
        )
        values = np.where(codes & 128, -sizes, sizes).astype(np.float32)
    elif part.packing == "NF4":
        values = np.array(NF4, dtype=np.float32)[codes]
    else:
        values = codes.astype(np.float32)
    groups = part.scales.shape[1]
    inputs = values.shape[1]
    length = 128 if part.packing.startswith("FP8") and groups > 1 else inputs // groups
    place = np.arange(inputs) // length
    if part.packing.startswith("INT"):
        middle = np.full(part.scales.shape, MIDDLE[part.packing])
        zeros = middle if part.zeros is None else part.zeros.numpy()
        values = values - zeros.astype(np.float32)[:, place]
    return np.asarray(values * part.scales.float().numpy()[:, place])


@given(
    packing=st.sampled_from(sorted(CODE_BITS)),
    rows=st.integers(1, 40),
    groups=st.integers(1, 5),
    length=st.integers(1, 40),
    zeros=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_codes_are_the_numbers_that_they_stand_for(
    packing: str, rows: int, groups: int, length: int, zeros: bool, seed: int
) -> None:
    inputs = (8 if packing == "INT3" else 4) * length * groups
    if packing.startswith("FP8"):
        inputs = 128 * (groups - 1) + length
    has_zeros = zeros and packing.startswith("INT")
    part = drawn(packing, rows, inputs, groups, seed=seed, zeros=has_zeros)
    wanted = torch.from_numpy(numbers(part))
    assert part.inputs == inputs
    for dtype in DTYPES:
        assert torch.equal(part.unpacked(dtype), wanted.to(dtype))


def test_many_rows_are_unpacked_in_chunks() -> None:
    part = drawn("NF4", 3000, 512, 8)
    assert torch.equal(part.unpacked(torch.float32), torch.from_numpy(numbers(part)))
    assert torch.equal(
        part.unpacked(torch.bfloat16)[2990:], part.rows(slice(2990, 3000)).unpacked(torch.bfloat16)
    )


@pytest.mark.parametrize("packing", sorted(CODE_BITS))
def test_products_with_codes(packing: str) -> None:
    part = drawn(packing, 33, 256, 2)
    x = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    matrix = JoinedMatrix([BlockMatrix(part), BlockMatrix(PackedWeight(torch.ones(2, 256)))])
    found = matrix.matmul(x)
    wanted = x.double() @ part.unpacked(torch.float32).double().T
    assert torch.allclose(found[:, :33].double(), wanted, atol=1e-4)
    assert len(matrix.tensors) == 3
    with pytest.raises(ValueError, match="256 inputs, not 255"):
        BlockMatrix(part).matmul(x[:, 1:])


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("packing", sorted(WIDER))
def test_codes_in_more_bits_stand_for_the_same_numbers(packing: str, zeros: bool) -> None:
    part = drawn(packing, 5, 64, 2, zeros=zeros)
    wide = widened(part)
    assert wide.packing == WIDER[packing] and wide.inputs == 64
    assert torch.equal(wide.unpacked(torch.float32), part.unpacked(torch.float32))
    assert widened(wide) is wide


def test_inputs_in_another_order() -> None:
    """Each part has its own order, as in fused GPTQ matrices."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(256, generator=generator) for _ in range(2)]
    parts = [
        replace(drawn("INT4", 8, 256, 4, seed=0), order=orders[0]),
        replace(drawn("INT4", 5, 256, 8, seed=1), order=orders[0].clone()),
        replace(drawn("INT8", 6, 256, 4, seed=2), order=orders[1]),
        drawn("INT4", 7, 256, 4, seed=3),
    ]
    plain = torch.cat([part.unpacked(torch.float32) for part in parts])
    for part, order in zip(parts[:3], (orders[0], orders[0], orders[1]), strict=True):
        in_file = replace(part, order=None).unpacked(torch.float32)
        assert torch.equal(part.unpacked(torch.float32)[:, order], in_file)
    matrix = prepare(parts, exact=True)
    assert isinstance(matrix, JoinedMatrix) and len(matrix.matrices) == 3
    assert [isinstance(one, OrderedMatrix) for one in matrix.matrices] == [True, True, False]
    x = torch.randn(4, 3, 256, generator=generator)
    assert (matrix.inputs, matrix.outputs) == (256, 26)
    assert torch.allclose(matrix.matmul(x), x @ plain.T, atol=1e-4)
    assert {one.data_ptr() for one in matrix.tensors} >= {
        orders[0].data_ptr(),
        orders[1].data_ptr(),
    }
    one, ids = prepare(parts[:1], exact=True), torch.tensor([7, 0, 7])
    assert torch.equal(one.rows(ids, torch.float32), plain[:8][ids])


def test_codes_of_other_shapes_are_refused() -> None:
    part = drawn("INT4", 4, 64, 4)
    for wrong, said in (
        (replace(part, scales=None), "no scales"),
        (replace(part, scales=torch.ones(3, 4)), "have no scales"),
        (replace(part, scales=torch.ones(4, 5)), "no 5 groups"),
        (replace(part, zeros=torch.ones(4, 2)), "have no scales"),
        (replace(drawn("FP8", 4, 300, 3), scales=torch.ones(4, 2)), "no 2 groups"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong.unpacked(torch.float32)
    with pytest.raises(ValueError, match="do not fill"):
        part.unpack_into(torch.empty(4, 63))


def test_eight_bit_floats_of_devices_that_have_none() -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    finite = codes[codes & 0x7F != 0x7F]
    assert torch.equal(fp8_by_bits(finite), finite.view(torch.float8_e4m3fn).to(torch.float16))
