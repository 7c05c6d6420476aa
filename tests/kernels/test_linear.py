"""The processor's own products give the same as torch's plain ones, up to rounding."""

from __future__ import annotations

import pytest
import torch

from hearth.kernels import linear
from hearth.kernels.cpu.layouts import Instructions
from hearth.kernels.linear import (
    plain_linear,
    processor_linear,
    processor_logits,
    row_linear,
    wide_linear,
    widened_linear,
)
from product_cases import library_with


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (2, 3), (40,), ()])
@pytest.mark.parametrize("outputs", [1, 7, 64])
def test_widened_is_float32(
    dtype: torch.dtype,
    bias: bool,
    shape: tuple[int, ...],
    outputs: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(linear, "_SLICE", 5 * 48)  # Five rows of the matrix, and a rest.
    monkeypatch.setattr(linear, "_SLICE_FOR_FEW", 3 * 48)
    x, weight = drawn(*shape, 48, seed=0), drawn(outputs, 48, seed=1).to(dtype)
    added = drawn(outputs, seed=2).to(dtype) if bias else None
    found = widened_linear(x, weight, added)
    wanted = x @ weight.float().T + (0.0 if added is None else added.float())
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert widened_linear(x.to(dtype), weight, added).dtype == dtype


@pytest.mark.parametrize("is_quick", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("spread", [5.0, 60.0], ids=["flat", "peaked"])
def test_logits_that_matter_are_not_rounded(
    spread: float,
    rows: int,
    dtype: torch.dtype,
    is_quick: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most flat logits are close to the maximum of their row, so that all are computed twice."""
    monkeypatch.setattr(linear, "multiplies", lambda device, kind: is_quick)
    x = drawn(rows, 64, seed=8).to(dtype).float()
    weight = (drawn(400, 64, seed=9) * spread / 8).to(dtype)
    exact = x.double() @ weight.double().T
    found = processor_logits(x, weight)
    assert found.dtype == torch.float32
    near = (exact > exact.amax(1, keepdim=True) - 11.0) & (exact.abs() > 2.02)
    assert (found - exact)[near].abs().max() < 2e-4
    assert (near.any(0).float().mean() > 0.2) == (spread == 5.0)
    torch.testing.assert_close(found, exact.float(), atol=0.004, rtol=0.01)
    torch.testing.assert_close(wide_linear(x, weight), exact.float(), atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_row_is_a_plain_product(bias: bool, shape: tuple[int, ...]) -> None:
    x, weight = drawn(*shape, 96, seed=3), drawn(50, 96, seed=4).bfloat16()
    added = drawn(50, seed=5).bfloat16() if bias else None
    found, wanted = row_linear(x, weight, added), plain_linear(x, weight, added)
    assert found.shape == wanted.shape and found.dtype == x.dtype
    torch.testing.assert_close(found, wanted, atol=0.06, rtol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_the_processor_takes_any_number_of_rows(dtype: torch.dtype, rows: int) -> None:
    x, weight = drawn(rows, 64, seed=6), drawn(30, 64, seed=7).to(dtype)
    found = processor_linear(x, weight)
    torch.testing.assert_close(found, x @ weight.float().T, atol=0.1, rtol=0.03)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("instructions", ["plain", "avx2", "avx512", "amx"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_few_rows_by_the_kernels(instructions: Instructions, dtype: torch.dtype) -> None:
    """For any number of outputs; a row has the same bits whatever other rows there are."""
    library = library_with(instructions)
    for inputs in (16, 64, 1056):
        weight, x = drawn(67, inputs, seed=1).to(dtype), drawn(21, inputs, seed=2)
        x = x.to(library.taken_with(dtype, inputs))
        found = library.multiply_plain(weight, x)
        exact = x.double() @ weight.double().T
        assert ((found - exact).norm() / exact.norm()) ** 2 < 1e-12
        for rows in (1, 2, 3, 5, 8, 16, 17):
            assert torch.equal(library.multiply_plain(weight, x[:rows].contiguous()), found[:rows])


def test_what_the_kernels_do_not_take() -> None:
    library = library_with("avx2")
    weight = drawn(4, 24, seed=1)
    with pytest.raises(ValueError, match="a shape that does not fit"):
        library.multiply_plain(weight, drawn(1, 24, seed=2))
    with pytest.raises(ValueError, match="instructions"):
        library.multiply_plain(drawn(4, 32, seed=1).bfloat16(), drawn(1, 32, seed=2).bfloat16())


def test_gradients_are_those_of_torch() -> None:
    x = drawn(2, 64, seed=1).requires_grad_()
    processor_linear(x, drawn(5, 64, seed=2).bfloat16()).sum().backward()
    assert x.grad is not None
