"""How the matrices of a checkpoint are quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hearth.quant.stored import StoredTensor

Layout = Literal["gptq", "awq", "packed", "scaled", "nf4"]
"""Determines the tensors of a matrix and the order of codes in them: see `modules.py`."""
SHORTEST_GROUP: Final = 8
"""Minimum number of inputs in a group. Weights are rounded in groups of a multiple of it."""
NF4_BLOCKS: Final = tuple(1 << power for power in range(5, 13))
"""The possible numbers of weights that share a scale (bitsandbytes)."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one matrix is stored."""

    layout: Layout
    bits: int
    """Bits of a code."""
    group: int = 0
    """Inputs that share a scale; 0: all."""
    zero_offset: int = 0
    """The number to add to the stored codes for zero (1 in GPTQ's first format)."""
    has_zeros: bool = False
    """Groups have different codes for zero. Only used to estimate memory."""
    is_ordered: bool = False
    """Inputs may be assigned to groups in any order."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale (FP8)."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of a `quantization_config`."""

    label: str
    """Name for users, e.g. "GPTQ 4-bit"."""
    scheme_of: Callable[[str], Scheme | None]
    """Returns the scheme of the module with a given name; None if it is not quantized. Raises
    `UnsupportedModel` for schemes that cannot be read.
    """
    layouts: frozenset[Layout]
    """The layouts that occur."""
    notices: tuple[str, ...] = ()
    """Sentences about other features that the checkpoint requests, and how they are handled."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor(StoredTensor):
    """A matrix that is stored in several tensors, presented as one tensor: `kind` is its packing,
    `nbytes` its size in memory.
    """

    scheme: Scheme = field(kw_only=True)
    parts: Mapping[str, str] = field(kw_only=True)
    """Names of the tensors, by their role (suffix) in the scheme's layout."""
