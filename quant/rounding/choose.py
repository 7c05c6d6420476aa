"""The best of several candidates, by activations that no method has seen. Since rounding to nearest
is a candidate too, the choice is never worse than that on the sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight

PLAIN: Final = "plain"
"""The name of the candidate that is rounded to nearest."""
_CHUNK: Final = 1 << 22
"""Weights processed at a time: 16 MiB of float32."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate, and the errors of all candidates."""

    name: str
    errors: Mapping[str, float]
    """`output_error` of every candidate."""


def choose(
    candidates: Mapping[str, PackedWeight],
    weight: Tensor,
    x_heldout: Tensor,
) -> Choice:
    """The candidate of least output error; among equals "plain", else the first.

    Args:
        candidates: by the name of the method; at least one.
        weight: [outputs, inputs], the original.
        x_heldout: [rows, inputs], activations that were not used to make a candidate.

    Raises:
        ValueError: there are no candidates, or activations have another length.
    """
    if not candidates:
        raise ValueError("there is no candidate")
    errors = {name: output_error(weight, one, x_heldout) for name, one in candidates.items()}
    return Choice(min(errors, key=lambda name: (errors[name], name != PLAIN)), errors)


def output_error(weight: Tensor, packed: PackedWeight, x: Tensor) -> float:
    """‖(W - Q) X‖ / ‖W X‖, where Q is `packed` dequantized; infinity if that is not a finite
    number.

    Args:
        weight: [outputs, inputs] of any float dtype.
        x: [rows, inputs].

    Raises:
        ValueError: the shapes do not match.
    """
    if x.shape[-1] != weight.shape[1] or packed.inputs != weight.shape[1]:
        raise ValueError(
            f"{weight.shape[1]:,} inputs, {packed.inputs:,} packed, activations of {x.shape[-1]:,}"
        )
    rows = x.reshape(-1, x.shape[-1]).to(weight.device, torch.float32)
    lost = kept = 0.0
    step = max(1, _CHUNK // weight.shape[1])
    for start in range(0, len(weight), step):
        some = slice(start, start + step)
        exact = weight[some].to(torch.float32)
        dequantized = packed.rows(some).unpacked(torch.float32)
        kept += _square(rows @ exact.t())
        lost += _square(rows @ (exact - dequantized).t())
    if not isfinite(lost + kept):
        return inf
    return (lost / kept) ** 0.5 if kept else inf if lost else 0.0


def _square(numbers: Tensor) -> float:
    """The sum of squares."""
    return float(torch.linalg.vector_norm(numbers)) ** 2
