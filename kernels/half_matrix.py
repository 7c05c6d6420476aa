"""Matrices of half precision that float32 is multiplied with, as FBGEMM does it
(https://github.com/pytorch/FBGEMM, which PyTorch brings on x86): numbers are read as float16 and
widened in registers, so that a product takes half the memory traffic of one in float32, and the
processor needs no instructions for half precision.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

NUMBERS_OF_A_PART: Final = 1 << 22
"""More of them make a product cheaper and take longer to pack, which cannot be interrupted. Printed
by `benchmarks/linear.py --packing`.
"""
_LARGEST: Final = 65504.0
_SMALLEST: Final = 2.0**-14
"""Of float16's normal numbers."""


class NotHalf(ValueError):
    """float16 does not hold these numbers."""


@dataclass(frozen=True, slots=True)
class HalfRows:
    """Some rows of a matrix, in the order in which FBGEMM reads them."""

    count: int
    inputs: int
    packed: Any
    """An object of PyTorch's."""


def pack(rows: Tensor) -> HalfRows:
    """`rows` for products. It takes one thread, and some 40 ns a number.

    Numbers of float16 stay as they are; those of bfloat16 too, but for tiny ones, which change by
    2⁻²⁵ at most; others are rounded.

    Args:
        rows: [rows, inputs], of any float dtype.

    Raises:
        NotHalf: the largest number of a row is neither zero nor a normal one of float16, so that
            more would be lost than by rounding.
    """
    wide = rows.float()
    largest = torch.linalg.vector_norm(wide, float("inf"), dim=1)
    fits = (largest == 0) | ((largest >= _SMALLEST) & (largest <= _LARGEST))
    if not bool(fits.all()):
        raise NotHalf("numbers that float16 does not hold")
    return HalfRows(wide.shape[0], wide.shape[1], _packed(wide))


class HalfMatrix:
    """[outputs, inputs].

    Args:
        parts: one below the other.

    Raises:
        ValueError: there are no parts.
    """

    def __init__(self, parts: Sequence[HalfRows]) -> None:
        if not parts:
            raise ValueError("a matrix needs rows")
        self._parts = tuple(parts)
        self.inputs = parts[0].inputs
        self.outputs = sum(part.count for part in parts)

    @property
    def nbytes(self) -> int:
        """What it takes of memory."""
        return self.outputs * self.inputs * torch.float16.itemsize

    def times(self, x: Tensor) -> Tensor:
        """x · matrixᵀ.

        Args:
            x: [rows, inputs] float32.

        Returns:
            [rows, outputs] float32.
        """
        multiply = torch.ops.quantized.linear_dynamic_fp16
        found = [multiply(x, part.packed) for part in self._parts]
        return found[0] if len(found) == 1 else torch.cat(found, 1)


@functools.cache
def has_half_matrices() -> bool:
    """Whether PyTorch brings FBGEMM here, and it computes what it should."""
    x, weight = torch.eye(3, 5), torch.arange(40.0).view(8, 5) / 64
    try:
        found = torch.ops.quantized.linear_dynamic_fp16(x, _packed(weight))
    except (AttributeError, RuntimeError):
        return False
    return torch.equal(found, weight.T[:3])


def _packed(rows: Tensor) -> Any:
    with warnings.catch_warnings():
        # That these operators move to another package: `has_half_matrices` sees when they have.
        warnings.simplefilter("ignore")
        return torch.ops.quantized.linear_prepack_fp16(rows, None)
