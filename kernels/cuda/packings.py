"""Packings that NVIDIA GPUs multiply as stored, for modules that must not import torch."""

from __future__ import annotations

import importlib.util
import os
from typing import Final

PACKINGS: Final = frozenset(
    {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "INT4", "INT8", "FP8", "NF4"}
)
WIDER: Final = {"INT2": "INT4", "INT3": "INT4", "INT6": "INT8"}
"""Codes that are widened to 4 or 8 bits for GPU kernels, these and Apple's."""
FORCE: Final = "HEARTH_CUDA_KERNELS"
"""Environment variable that disables the kernels: "off"."""
NO_GRAPHS: Final = "HEARTH_CUDA_GRAPHS"
"""Environment variable that disables CUDA graphs: "off"."""
CHUNK: Final = 256
"""Fewest keys of a chunk, which one program of attention reads."""
MOST_PARTS: Final = 32
"""Most programs of one text and KV head: with 32,768 keys and eight heads there are 256, and
combining their sums takes little of the time."""
NOT_RUN: Final = "run on H100s and on H200s"
"""Where these kernels have run."""


def is_wanted() -> bool:
    """Whether the kernels are not disabled."""
    return os.environ.get(FORCE) != "off"


def is_installed() -> bool:
    """Whether Triton is installed and not disabled. `matrix.has_triton` checks the GPU."""
    return is_wanted() and importlib.util.find_spec("triton") is not None


def has_graphs() -> bool:
    """Whether CUDA graphs are not disabled."""
    return os.environ.get(NO_GRAPHS) != "off"
