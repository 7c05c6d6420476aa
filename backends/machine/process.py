"""What Hearth's processes do at their first instruction: tie their life to the parent's, keep
their pipes private; and the environment of those that compute.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the end of stdin
    tells it).

    Source: prctl(2), PR_SET_PDEATHSIG. The parent may have died before the call: then the process
    leaves at once. The kernel means the thread that started this process, so that must be one that
    lives as long as the parent.

    Args:
        parent: process id of the parent, as it gave it itself: the one that `os.getppid` says may
            already be who adopts orphans.
    """
    if sys.platform != "linux":
        return
    import ctypes  # 2 ms, which the terminal app need not pay for its pipes.

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def take_private_pipes() -> tuple[int, int]:
    """Move stdin and stdout to private descriptors for frames; returns (input, output).

    Afterwards descriptor 0 reads nothing and 1 goes where stderr goes (the log), so that nothing
    printed by native code can get between two frames.
    """
    private_in, private_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return private_in, private_out


def with_huge_pages(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` for a child that computes: glibc asks the kernel for large pages then, where
    that leaves it to programs (`madvise`, as Linux usually does). What the user has set stays.
    Weights are read once for each token, and looking up a page for every 4 KiB takes its time.
    """
    set_before = environment.get("GLIBC_TUNABLES", "")
    if not sys.platform.startswith("linux") or "glibc.malloc.hugetlb" in set_before:
        return dict(environment)
    tunables = ":".join(filter(None, (set_before, "glibc.malloc.hugetlb=1")))
    return {**environment, "GLIBC_TUNABLES": tunables}
