"""Packings that Apple GPUs multiply as stored, for modules that must not import torch."""

from __future__ import annotations

import os
from typing import Final

PACKINGS: Final = frozenset({"INT4", "INT8", "Q4_0", "Q4_K", "Q6_K", "Q8_0"})
FORCE: Final = "HEARTH_METAL_KERNELS"
"""Environment variable that disables the kernels: "off"."""
NOT_RUN: Final = "run on processors in the tests, never run on hardware"
"""Where these kernels have run."""


def is_left_out() -> bool:
    """Whether `FORCE` disables the kernels."""
    return os.environ.get(FORCE) == "off"
