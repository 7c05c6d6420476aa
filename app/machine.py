"""Facts of this machine that matter for running models: processor, memory, disk, compiler."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from hearth.backends.machine.cpu import cpu_fields, cpu_name

_X86_CPU_FLAGS = (
    "avx2",
    "fma",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_int8",
)
_ARM_CPU_FLAGS = ("asimd", "asimddp", "i8mm", "bf16", "sve")
_COMPILERS = ("c++", "g++", "clang++", "cl")
_COMPILER_TIMEOUT_S = 10.0
_LOOK_S = 0.25
QUIET_CORES = 0.4
"""Up to this many processors may be used by other programs while speed is measured."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of this machine. Sizes in bytes; `cpu_flags` are those that matter to llama.cpp."""

    system: str
    cpu: str
    cpu_flags: tuple[str, ...]
    physical_cores: int
    usable_cores: int
    memory_total_bytes: int
    memory_available_bytes: int


def this_machine() -> Machine:
    """Query the system."""
    memory = psutil.virtual_memory()
    return Machine(
        system=platform.platform(),
        cpu=cpu_name(),
        cpu_flags=_cpu_flags(),
        physical_cores=psutil.cpu_count(logical=False) or 0,
        usable_cores=len(os.sched_getaffinity(0))
        if sys.platform == "linux"
        else os.cpu_count() or 1,
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
    )


def busy_cores() -> float:
    """The number of processors in use while this process is idle, measured over `_LOOK_S`."""
    return psutil.cpu_percent(_LOOK_S) / 100 * (psutil.cpu_count() or 1)


def free_disk_bytes(folder: Path) -> int:
    """Free space of the file system that holds `folder`, which need not exist yet."""
    return shutil.disk_usage(_existing(folder)).free


def can_write(folder: Path) -> bool:
    """Whether `folder`, or the existing part of the path to it, is writable."""
    folder = _existing(folder)
    return folder.is_dir() and os.access(folder, os.W_OK)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def compiler() -> str:
    """The first line of the C++ compiler's version; empty if there is no compiler."""
    for name in _COMPILERS:
        path = shutil.which(name)
        if path is None:
            continue
        arguments = [path] if name == "cl" else [path, "--version"]
        try:
            done = subprocess.run(
                arguments,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILER_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{path} does not run: {error}"
        return next(iter((done.stdout or done.stderr).splitlines()), path)
    return ""


def _cpu_flags() -> tuple[str, ...]:
    """The flags of the processor that affect how fast models run."""
    fields = cpu_fields()
    present = (fields.get("flags") or fields.get("features", "")).split()
    telling = _X86_CPU_FLAGS if "flags" in fields else _ARM_CPU_FLAGS
    return tuple(flag for flag in telling if flag in present)
