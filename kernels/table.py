"""Hot operations: which function to use on which device.

An operation is an `Op`, whose type parameter is its signature. Each has a reference in plain torch
that runs on any device; faster functions for a type of device ("cpu", "cuda", "mps") give the same
results except as stated in their docstrings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import torch
from torch import Tensor

from hearth.kernels.linear import (
    cuda_linear,
    cuda_wide_linear,
    plain_linear,
    processor_linear,
    processor_logits,
    wide_linear,
)
from hearth.kernels.norm import plain_rms_norm, processor_rms_norm

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Op(Generic[Function]):
    """An operation: its reference, and its functions by type of device."""

    reference: Function
    on: Mapping[str, Function] = field(default_factory=dict)


LINEAR: Final[Op[Callable[[Tensor, Tensor, Tensor | None], Tensor]]] = Op(
    plain_linear, {"cpu": processor_linear, "cuda": cuda_linear}
)
WIDE_LINEAR: Final[Op[Callable[[Tensor, Tensor], Tensor]]] = Op(
    wide_linear, {"cuda": cuda_wide_linear}
)
LOGITS: Final[Op[Callable[[Tensor, Tensor], Tensor]]] = Op(
    wide_linear, {"cpu": processor_logits, "cuda": cuda_wide_linear}
)
"""`WIDE_LINEAR`, for the output matrix."""
RMS_NORM: Final[Op[Callable[[Tensor, float], Tensor]]] = Op(
    plain_rms_norm, {"cpu": processor_rms_norm}
)


def pick(op: Op[Function], device: torch.device) -> Function:
    """The function for `op` on `device`."""
    return op.on.get(device.type, op.reference)
