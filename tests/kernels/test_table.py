"""One table: references for all devices, faster functions for some."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hearth.kernels.device import best_device, default_dtype, free_bytes, multiplies
from hearth.kernels.packed_linear import packed_linear
from hearth.kernels.table import PACKED_LINEAR, KernelTable, Op, kernels, pick

DOUBLE: Op[Callable[[int], int]] = Op("double")
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_a_device_without_its_own_function_gets_the_reference() -> None:
    table = KernelTable()
    table.register(DOUBLE, lambda x: x + x)
    table.register(DOUBLE, lambda x: 2 * x + 1, "cuda")
    assert table.pick(DOUBLE, CPU)(3) == 6
    assert table.pick(DOUBLE, CUDA)(3) == 7
    assert table.reference(DOUBLE)(3) == 6


def test_an_operation_is_registered_once_and_reference_first() -> None:
    table = KernelTable()
    with pytest.raises(ValueError, match="no reference"):
        table.register(DOUBLE, lambda x: x, "cpu")
    table.register(DOUBLE, lambda x: x)
    with pytest.raises(ValueError, match="already"):
        table.register(DOUBLE, lambda x: x)
    with pytest.raises(KeyError):
        table.pick(PACKED_LINEAR, CPU)


def test_hearth_brings_its_own() -> None:
    assert pick(PACKED_LINEAR, CPU) is packed_linear
    assert kernels().reference(PACKED_LINEAR) is not None


def test_the_device_can_hold_and_multiply_what_it_is_said_to() -> None:
    device = best_device()
    dtype = default_dtype(device)
    assert multiplies(device, torch.float32)
    assert dtype == torch.float32 or multiplies(device, dtype)
    assert free_bytes(device) > 0
    square = torch.ones(2, 2, dtype=dtype, device=device)
    assert (square @ square).sum().item() == 8
