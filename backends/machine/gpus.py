"""Whether PyTorch can use a CUDA card on this machine, and how much memory the card has.

This is found out without importing torch, because the host and the front ends ask too, and the
import takes seconds and hundreds of megabytes. The driver is queried without a CUDA context, which
would take memory of the card.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

_IS_WINDOWS: Final = sys.platform == "win32"
_DRIVER: Final = "nvcuda.dll" if _IS_WINDOWS else "libcuda.so.1"
_MANAGEMENT: Final = "nvml.dll" if _IS_WINDOWS else "libnvidia-ml.so.1"
_BUILDS: Final = ("libtorch_cuda.so", "torch_cuda.dll")
_PLACE_BYTES: Final = 32
"""Buffer size for a PCI bus id as text: NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE."""


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@functools.cache
def has_cuda() -> bool:
    """Whether the installed PyTorch is a CUDA build and the driver shows this process a card."""
    return _is_cuda_build() and _driver_cards() > 0


def card_free_bytes(number: int = 0) -> int | None:
    """Free memory of a card; its total memory if the free memory is unknown; None if there is no
    such card.

    Args:
        number: among the cards that the driver shows this process; PyTorch uses the first.
    """
    if _driver_cards() <= number:
        return None
    driver, card, total = _library(_DRIVER), ctypes.c_int(0), ctypes.c_size_t(0)
    if not _does(driver, "cuDeviceGet", ctypes.byref(card), number):
        return None
    if not _does(driver, "cuDeviceTotalMem_v2", ctypes.byref(total), card):
        return None
    free = _free_bytes(driver, card)
    # For a part of a card (MIG), the management library reports the memory of the whole card.
    return total.value if free is None else min(free, total.value)


def _free_bytes(driver: Any, card: ctypes.c_int) -> int | None:
    """Free memory that NVIDIA's management library reports for the card at the same PCI address;
    None if it reports none.
    """
    place = ctypes.create_string_buffer(_PLACE_BYTES)
    management = _library(_MANAGEMENT)
    if not _does(driver, "cuDeviceGetPCIBusId", place, _PLACE_BYTES, card):
        return None
    if not _does(management, "nvmlInit_v2"):
        return None
    try:
        handle, memory = ctypes.c_void_p(), _Memory()
        by_place = "nvmlDeviceGetHandleByPciBusId_v2"
        if not _does(management, by_place, place, ctypes.byref(handle)):
            return None
        if not _does(management, "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory)):
            return None
        return int(memory.free)
    finally:
        _does(management, "nvmlShutdown")


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
    """Number of cards that the driver shows; 0 without a driver."""
    driver, count = _library(_DRIVER), ctypes.c_int(0)
    is_counted = _does(driver, "cuInit", 0) and _does(
        driver, "cuDeviceGetCount", ctypes.byref(count)
    )
    return count.value if is_counted else 0


def _library(name: str) -> Any:
    """A library of the driver; None where it is not installed."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _does(library: Any, function: str, *arguments: object) -> bool:
    """Call a function of a library; True if the library and the function exist and the call
    succeeded.
    """
    call = getattr(library, function, None)
    return call is not None and call(*arguments) == 0
