"""Matrices of half precision: products as of float32, and no number that changes."""

from __future__ import annotations

import pytest
import torch

from hearth.kernels import half_matrix
from hearth.kernels.half_matrix import HalfMatrix, NotHalf, has_half_matrices, pack

pytestmark = pytest.mark.skipif(not has_half_matrices(), reason="PyTorch has no FBGEMM here")
INPUTS = 96


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def made(weight: torch.Tensor, rows: int = 40) -> HalfMatrix:
    return HalfMatrix([pack(part) for part in torch.split(weight, rows)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 7, 40])
@pytest.mark.parametrize("outputs", [1, 40, 130])
def test_products_are_those_of_float32(dtype: torch.dtype, rows: int, outputs: int) -> None:
    x, weight = drawn(rows, INPUTS), drawn(outputs, INPUTS, seed=1).to(dtype)
    matrix = made(weight)
    assert (matrix.outputs, matrix.inputs) == weight.shape
    assert matrix.nbytes == weight.nbytes
    found = matrix.times(x)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, x @ weight.float().T, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_stay_as_they_are(dtype: torch.dtype) -> None:
    weight = (drawn(64, INPUTS) * 2.0 ** torch.arange(-4, 4).repeat(12)).to(dtype)
    weight[3] = 0.0
    assert torch.equal(made(weight).times(torch.eye(INPUTS)), weight.float().T)


def test_tiny_numbers_of_bfloat16_lose_next_to_nothing() -> None:
    weight = (drawn(8, INPUTS) * 10.0 ** -torch.arange(INPUTS).div(8)).bfloat16()
    found = made(weight).times(torch.eye(INPUTS)).T
    assert not torch.equal(found, weight.float())
    assert (found - weight.float()).abs().max() <= 2.0**-25


@pytest.mark.parametrize("number", [70_000.0, 1e30, float("inf"), float("nan")])
def test_what_float16_does_not_hold_is_refused(number: float) -> None:
    weight = drawn(100, INPUTS)
    weight[77, 5] = number
    with pytest.raises(NotHalf):
        pack(weight)


def test_a_row_of_tiny_numbers_is_refused() -> None:
    weight = drawn(100, INPUTS)
    weight[50] *= 1e-6
    with pytest.raises(NotHalf):
        pack(weight)


def test_a_matrix_has_rows() -> None:
    with pytest.raises(ValueError, match="rows"):
        HalfMatrix([])


def test_torch_without_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(rows: torch.Tensor) -> object:
        raise RuntimeError("Didn't find engine for operation")

    monkeypatch.setattr(half_matrix, "_packed", missing)
    assert not has_half_matrices.__wrapped__()
