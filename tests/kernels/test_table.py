"""References for all devices, faster functions for some."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hearth.kernels.device import best_device, default_dtype, free_bytes, multiplies
from hearth.kernels.table import Op, pick


def test_a_device_without_its_own_function_gets_the_reference() -> None:
    double: Op[Callable[[int], int]] = Op(lambda x: x + x, {"cuda": lambda x: 2 * x + 1})
    assert pick(double, torch.device("cpu"))(3) == 6
    assert pick(double, torch.device("cuda", 0))(3) == 7


def test_the_device_can_hold_and_multiply_what_it_is_said_to() -> None:
    device = best_device()
    dtype = default_dtype(device)
    assert multiplies(device, torch.float32)
    assert dtype == torch.float32 or multiplies(device, dtype)
    assert free_bytes(device) > 0
    square = torch.ones(2, 2, dtype=dtype, device=device)
    assert (square @ square).sum().item() == 8
