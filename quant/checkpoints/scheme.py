"""How the matrices of a checkpoint are quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from hearth.quant.stored import StoredTensor

Layout = Literal["gptq", "awq", "packed", "scaled", "nf4"]
"""Which tensors there are, and the order of codes in them: see `modules.py`."""
SHORTEST_GROUP: Final = 8
"""Inputs of a group. Weights are rounded in groups of a multiple of it."""
NF4_BLOCKS: Final = tuple(1 << power for power in range(5, 13))
"""Weights that can share a scale (bitsandbytes)."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How one matrix is stored."""

    layout: Layout
    bits: int
    """Of a code."""
    group: int = 0
    """Inputs that share a scale; 0: all."""
    zero_offset: int = 0
    """What is missing to the codes for zero that are stored (1 in GPTQ's first format)."""
    has_zeros: bool = False
    """Zero is another code in each group. Only a hint of how much memory is needed."""
    is_ordered: bool = False
    """Inputs may be assigned to groups in any order."""
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale (FP8)."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a `quantization_config` says."""

    label: str
    """For people, e.g. "GPTQ 4-bit"."""
    scheme_of: Callable[[str], Scheme | None]
    """The scheme of the module of that name; None: it is not quantized. Raises `UnsupportedModel`
    for one that cannot be read.
    """
    layouts: frozenset[Layout]
    """Those that occur."""
    notices: tuple[str, ...] = ()
    """What else the checkpoint asks for, and what is done about it."""


@dataclass(frozen=True, slots=True)
class QuantizedTensor(StoredTensor):
    """A matrix that is stored in several tensors, as if it were one: `kind` is its packing,
    `nbytes` what it takes in memory.
    """

    scheme: Scheme = field(kw_only=True)
    parts: Mapping[str, str] = field(kw_only=True)
    """Names of the tensors, by what they are in the scheme's layout."""
