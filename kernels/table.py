"""The one table of hot operations: which function does what on which device.

An operation is an `Op`, whose type says how it is called. Every operation has a reference in plain
torch that runs on any device; faster ones are registered for a type of device ("cpu", "cuda",
"mps") and give what the reference gives, within what their own docstrings say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import torch

from hearth.kernels.linear import (
    cuda_linear,
    cuda_wide_linear,
    plain_linear,
    processor_linear,
    processor_logits,
    wide_linear,
)
from hearth.kernels.norm import plain_rms_norm, processor_rms_norm
from hearth.kernels.packed_linear import packed_linear

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Op(Generic[Function]):
    """The name of an operation, and its type."""

    name: str


PACKED_LINEAR: Op[Callable[[torch.Tensor, str, torch.Tensor], torch.Tensor]] = Op("packed_linear")
"""As `packed_linear.packed_linear`."""
LINEAR: Op[Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]] = Op("linear")
"""As `linear.plain_linear`."""
WIDE_LINEAR: Op[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = Op("wide_linear")
"""As `linear.wide_linear`."""
LOGITS: Op[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = Op("logits")
"""As `linear.wide_linear`, for the output matrix."""
RMS_NORM: Op[Callable[[torch.Tensor, float], torch.Tensor]] = Op("rms_norm")
"""As `norm.plain_rms_norm`."""

_REFERENCE = "any"


class KernelTable:
    """Operations by name, and their functions by type of device."""

    def __init__(self) -> None:
        self._functions: dict[tuple[str, str], Callable[..., Any]] = {}

    def register(
        self, op: Op[Function], function: Function, device_type: str | None = None
    ) -> None:
        """`function` does `op` on devices of that type; None: it is the reference.

        Raises:
            ValueError: there is one already, or there is no reference to compare it with.
        """
        if device_type is not None and (op.name, _REFERENCE) not in self._functions:
            raise ValueError(f"{op.name} has no reference yet")
        key = (op.name, device_type or _REFERENCE)
        if key in self._functions:
            raise ValueError(f"{op.name} is registered for {key[1]} devices already")
        self._functions[key] = function

    def pick(self, op: Op[Function], device: torch.device) -> Function:
        """The function for `op` on `device`. Raises `KeyError` for an unknown operation."""
        found = self._functions.get((op.name, device.type))
        return cast(Function, found or self._functions[op.name, _REFERENCE])

    def reference(self, op: Op[Function]) -> Function:
        """The plain one. Raises `KeyError` for an unknown operation."""
        return cast(Function, self._functions[op.name, _REFERENCE])


@functools.cache
def kernels() -> KernelTable:
    """The table of this process, with everything that Hearth brings."""
    table = KernelTable()
    table.register(PACKED_LINEAR, packed_linear)
    table.register(LINEAR, plain_linear)
    table.register(LINEAR, processor_linear, "cpu")
    table.register(LINEAR, cuda_linear, "cuda")
    table.register(WIDE_LINEAR, wide_linear)
    table.register(WIDE_LINEAR, cuda_wide_linear, "cuda")
    table.register(LOGITS, wide_linear)
    table.register(LOGITS, processor_logits, "cpu")
    table.register(LOGITS, cuda_wide_linear, "cuda")
    table.register(RMS_NORM, plain_rms_norm)
    table.register(RMS_NORM, processor_rms_norm, "cpu")
    return table


def pick(op: Op[Function], device: torch.device) -> Function:
    """The function for `op` on `device`, of `kernels()`."""
    return kernels().pick(op, device)
