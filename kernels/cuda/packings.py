"""What NVIDIA cards multiply as it is stored, for those who must not import torch."""

from __future__ import annotations

import importlib.util
import os
from typing import Final

PACKINGS: Final = frozenset(
    {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "MXFP4", "INT4", "INT8", "FP8", "NF4"}
)
WIDER: Final = {"INT2": "INT4", "INT3": "INT4", "INT6": "INT8"}
"""Codes that kernels of GPUs, these and Apple's, have in 4 or 8 bits."""
FORCE: Final = "HEARTH_CUDA_KERNELS"
"""The environment variable that leaves the kernels out: "off"."""
NO_GRAPHS: Final = "HEARTH_CUDA_GRAPHS"
"""The environment variable that leaves CUDA graphs out: "off"."""
CHUNK: Final = 256
"""Keys of a program of attention, at least."""
MOST_PARTS: Final = 32
"""Programs of one text and head: of 32,768 keys and eight heads there are 256, and putting their
sums together takes little of the time."""
NOT_RUN: Final = "run on an H100 and on H200s"
"""What is known of these kernels."""


def is_wanted() -> bool:
    """The kernels are not left out."""
    return os.environ.get(FORCE) != "off"


def is_installed() -> bool:
    """Triton is there and not left out. Whether the card can use it is for `matrix.has_triton`."""
    return is_wanted() and importlib.util.find_spec("triton") is not None


def has_graphs() -> bool:
    """CUDA graphs are not left out."""
    return os.environ.get(NO_GRAPHS) != "off"
