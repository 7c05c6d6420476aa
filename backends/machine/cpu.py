"""Facts about the processor, as the system reports them."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def cpu_fields() -> dict[str, str]:
    """The fields of the first core in /proc/cpuinfo, by their lower-case names; empty if the system
    has no such file.
    """
    fields: dict[str, str] = {}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return fields
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip().lower(), value.strip())
    return fields


def cpu_name() -> str:
    """The processor's name, or its architecture."""
    return cpu_fields().get("model name") or platform.processor() or platform.machine()
