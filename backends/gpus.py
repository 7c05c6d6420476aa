"""Whether PyTorch could use a CUDA card here, found out without importing it: the host and the
front ends ask too, and importing torch takes seconds and hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Final

_DRIVERS: Final = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",)
_BUILDS: Final = ("libtorch_cuda.so", "torch_cuda.dll")


@functools.cache
def has_cuda() -> bool:
    """The installed PyTorch is a CUDA build, and the driver shows this process a card."""
    return _is_cuda_build() and _driver_cards() > 0


def _is_cuda_build() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return False
    return any(
        Path(folder, "lib", name).exists()
        for folder in spec.submodule_search_locations or ()
        for name in _BUILDS
    )


def _driver_cards() -> int:
    """Cards by the driver's own count (`cuDeviceGetCount`); 0 without a driver."""
    for name in _DRIVERS:
        try:
            driver = ctypes.CDLL(name)
            count = ctypes.c_int(0)
            if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
                return count.value
        except (OSError, AttributeError):
            continue
    return 0
