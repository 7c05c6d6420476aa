"""What the GPUs of Apple multiply as it is stored, for those who must not import torch."""

from __future__ import annotations

import os
from typing import Final

PACKINGS: Final = frozenset({"INT4", "INT8", "Q4_0", "Q4_K", "Q6_K", "Q8_0"})
FORCE: Final = "HEARTH_METAL_KERNELS"
"""The environment variable that leaves the kernels out: "off"."""
NOT_RUN: Final = "run on processors in the tests, never run on hardware"
"""What is known of these kernels."""


def is_left_out() -> bool:
    """As `FORCE` says."""
    return os.environ.get(FORCE) == "off"
