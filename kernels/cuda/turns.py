"""How kernels on NVIDIA cards follow each other. Since Hopper (9.0) a kernel can be started when
all programs of the one ahead of it have begun, and wait for its results itself: what it does until
then costs no time of its own (CUDA's programmatic dependent launch).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def take_turn(EARLY: tl.constexpr):
    """Let the next kernel start, and wait for the results of the one ahead where that has not ended
    yet."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()
