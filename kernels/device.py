"""The devices of this machine, their free memory, and the dtypes that they multiply natively."""

from __future__ import annotations

import functools
import platform

import torch

from hearth.kernels.free_memory import free_memory_bytes


def best_device() -> torch.device:
    """The fastest kind of device available: CUDA, then MPS, then the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def all_devices() -> list[torch.device]:
    """Every device of this machine, GPUs first."""
    devices = []
    if torch.cuda.is_available():
        devices += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append(torch.device("mps"))
    return [*devices, torch.device("cpu")]


def device_name(device: torch.device) -> str:
    """Name and free memory of `device`, for users."""
    name = {"cpu": "processor", "mps": "Apple GPU"}.get(device.type, "")
    name = name or torch.cuda.get_device_name(device)
    return f"{device} ({name}, {free_bytes(device) / 1e9:.1f} GB free)"


def use(device: torch.device) -> None:
    """Run the kernels that this thread starts on `device`, if it is one of several."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def wait_for(device: torch.device) -> None:
    """Wait until `device` has finished its work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def default_dtype(device: torch.device) -> torch.dtype:
    """The default dtype of weights on `device`: bfloat16 if the device multiplies it natively, else
    float16 on CUDA (GPUs before Ampere) and float32 elsewhere.
    """
    if multiplies(device, torch.bfloat16):
        return torch.bfloat16
    return torch.float16 if device.type == "cuda" else torch.float32


def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `device` multiplies matrices of `dtype` (float32, float16 or bfloat16) natively, not
    number by number.
    """
    if dtype == torch.float32:
        return True
    if device.type == "cuda":
        return dtype == torch.float16 or torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "mps":
        return dtype == torch.float16 or _macos_version() >= 14
    return device.type == "cpu" and _processor_multiplies(dtype)


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated on `device` now, in bytes."""
    if device.type == "cuda":
        # PyTorch's caching allocator reserves memory that no tensor uses.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type == "mps":
        limit = torch.mps.recommended_max_memory()
        return max(0, int(limit) - int(torch.mps.driver_allocated_memory()))
    return free_memory_bytes()


@functools.cache
def _processor_multiplies(dtype: torch.dtype) -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return True  # On ARM, torch uses the instructions that there are.
    if dtype == torch.bfloat16:
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch.cpu._is_amx_fp16_supported())


def _macos_version() -> int:
    """The major version of macOS; 0 on other systems. Since 14, MPS supports bfloat16."""
    return int(platform.mac_ver()[0].split(".")[0] or 0)
