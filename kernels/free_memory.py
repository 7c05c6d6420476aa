"""Memory of the machine that can be taken without swapping. Without torch, and without psutil where
that is missing, as it may be on a machine with nothing but a card and PyTorch.
"""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def free_memory_bytes(meminfo: Path = _MEMINFO) -> int:
    """As the system says.

    Raises:
        ModuleNotFoundError: psutil is missing, and this is not Linux.
    """
    try:
        import psutil
    except ModuleNotFoundError:
        if not meminfo.exists():
            raise
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) << 10
    return int(psutil.virtual_memory().available)
