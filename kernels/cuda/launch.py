"""Common to all kernel launches on NVIDIA GPUs."""

from __future__ import annotations

import functools

import torch


def early(device: torch.device) -> dict[str, bool]:
    """Launch arguments for `device`: whether the kernel is started early (`turns`)."""
    if _starts_early(device):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


@functools.cache
def _starts_early(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
