"""What the CPU kernels support. Does not import torch, because the host uses it too."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
from typing import Final, Literal

from hearth.kernels.cpu.build_library import is_current, library_path

log = logging.getLogger(__name__)

Instructions = Literal["plain", "avx2", "avx512", "amx"]
SETS: Final[tuple[Instructions, ...]] = ("plain", "avx2", "avx512", "amx")
"""In the order of packed.c; each includes those before it. "avx512" includes VNNI."""

LAYOUTS: Final = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"),
    *("INT2", "INT3", "INT4", "INT6", "INT8", "FP8", "NF4"),
)
"""GGUF types of blocks, and codes in groups, in the order of `Kind` in layouts.h."""
FRACTIONS: Final = frozenset({"FP8", "NF4"})
"""Those of them whose codes are not integers: activations stay float32."""
HALVES: Final = ("BF16", "F16")
"""Half-precision types, numbered after `LAYOUTS`."""
FLOATS: Final = FRACTIONS | set(HALVES)
"""Types that are never multiplied by int8 activations."""
FORCE: Final = "HEARTH_CPU_KERNELS"
"""Environment variable: a set of instructions to use instead of the best one, or "off"."""


def multiplied() -> frozenset[str]:
    """Types that are multiplied as stored: `LAYOUTS`, or none if the kernels are disabled or the
    library was not built from these sources.
    """
    is_there = os.environ.get(FORCE) != "off" and _is_built()
    return frozenset(LAYOUTS) if is_there else frozenset()


def instructions() -> Instructions | None:
    """The instructions used for products; None if there are no kernels, or not those that `FORCE`
    requires.
    """
    best = _best() if multiplied() else None
    forced = os.environ.get(FORCE, "")
    if not forced or best is None:
        return best
    return next((one for one in SETS[: SETS.index(best) + 1] if one == forced), None)


@functools.cache
def _best() -> Instructions | None:
    try:
        number: int = ctypes.CDLL(str(library_path())).hearth_instructions()
        return SETS[number]
    except (OSError, AttributeError) as error:
        log.warning("the kernels for processors are not used: %s", error)
        return None


@functools.cache
def _is_built() -> bool:
    return is_current()
