"""Setup of Hearth's child processes: end with the parent, keep their pipes private, and the
environment of processes that compute.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux only; on other systems the
    process notices the end of stdin).

    Source: prctl(2), PR_SET_PDEATHSIG. If the parent died before the call, the process exits at
    once. The kernel watches the thread that started this process, so that thread must live as long
    as the parent.

    Args:
        parent: process id that the parent passed itself; `os.getppid` may already return the
            process that adopts orphans.
    """
    if sys.platform != "linux":
        return
    import ctypes  # Takes 2 ms, which the terminal app does not need for its pipes.

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def signal_name(number: int) -> str:
    """The name of a signal, such as "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def take_private_pipes() -> tuple[int, int]:
    """Move stdin and stdout to private descriptors for frames; returns (input, output).

    Afterwards descriptor 0 reads nothing and descriptor 1 goes where stderr goes (the log), so that
    output of native code cannot get between two frames.
    """
    private_in, private_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return private_in, private_out


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a child that computes, in which glibc asks the kernel for huge pages; this
    has an effect if the kernel leaves the choice to programs (`madvise`, the usual mode of Linux).
    A value that the user has set is kept.

    All weights are read once for each token, and page lookups for every 4 KiB take time.
    """
    set_before = environment.get("GLIBC_TUNABLES", "")
    if not sys.platform.startswith("linux") or "glibc.malloc.hugetlb" in set_before:
        return dict(environment)
    tunables = ":".join(filter(None, (set_before, "glibc.malloc.hugetlb=1")))
    return {**environment, "GLIBC_TUNABLES": tunables}
