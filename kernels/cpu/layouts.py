"""What the kernels for processors multiply, without torch: the host asks as well."""

from __future__ import annotations

import functools
import os
from typing import Final

from hearth.kernels.cpu.build_library import is_current

LAYOUTS: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("INT4", "INT8", "FP8", "NF4"),
)
"""GGUF types of blocks, and codes in groups, in the order of `Kind` in layouts.h."""
FRACTIONS: Final = frozenset({"FP8", "NF4"})
"""Of them those whose codes are not whole numbers: activations stay float32."""
HALVES: Final = ("BF16", "F16")
"""Numbers of half precision, which come after them."""
FORCE: Final = "HEARTH_CPU_KERNELS"
"""Environment: a set of instructions to use instead of the best one, or "off"."""


def multiplied() -> frozenset[str]:
    """Types that are multiplied as they are: `LAYOUTS`, or none where the library was not built, or
    from other sources.
    """
    is_there = os.environ.get(FORCE) != "off" and _is_built()
    return frozenset(LAYOUTS) if is_there else frozenset()


@functools.cache
def _is_built() -> bool:
    return is_current()
