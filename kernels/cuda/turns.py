"""CUDA's programmatic dependent launch: since Hopper (9.0) a kernel can be started when all
programs of the preceding kernel have begun, and then waits for its results itself. The work that it
does before waiting takes no time of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """Allow the next kernel to start, and wait for the results of the preceding one if it has not
    ended yet."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
