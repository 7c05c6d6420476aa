"""Memory of the machine that can be used without swapping. Does not import torch, and works without
psutil on Linux, because a machine set up only with a GPU and PyTorch may lack it.
"""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def free_memory_bytes(meminfo: Path = _MEMINFO) -> int:
    """Available memory in bytes, as reported by the system.

    Raises:
        ModuleNotFoundError: psutil is missing, and the system is not Linux.
    """
    try:
        import psutil
    except ModuleNotFoundError:
        if not meminfo.exists():
            raise
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    return int(psutil.virtual_memory().available)
