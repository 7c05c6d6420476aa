"""The peak arithmetic of this processor: loops over registers alone, on all cores at the same time.

One loop also loads a tile of AMX for each product: where other virtual machines use the other
threads of the cores, loads and products do not overlap.

    python benchmarks/peaks.py [--threads N]

Needs a C compiler, on Linux on x86-64. One multiply-add counts as two operations.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from hearth.kernels.cpu.build_library import compiler

SOURCE: Final = Path(__file__).with_suffix(".c")
NEEDS: Final = {
    "avx2_fma": "avx2",
    "avx2_maddubs": "avx2",
    "avx512_fma": "avx512f",
    "avx512_vpdpbusd": "avx512_vnni",
    "amx_tdpbssd": "amx_int8",
    "amx_tdpbf16ps": "amx_bf16",
    "amx_load_tdpbf16ps": "amx_bf16",
}
"""The loops, and the flag that Linux shows for processors with their instructions."""


def loops(threads: int) -> dict[str, Callable[[], float]]:
    """The loops that this processor can run. A call runs one for some milliseconds on `threads`
    threads, and returns their GOP/s together.
    """
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "peaks.so")
        command = [*compiler(), "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(built)]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(built))
    pool = ThreadPoolExecutor(threads)

    def speed(name: str) -> float:
        loop = getattr(library, name)
        loop.restype = ctypes.c_int64
        began = time.perf_counter()
        made = sum(pool.map(lambda _: loop(), range(threads)))
        return 2 * made / (time.perf_counter() - began) / 1e9

    return {name: partial(speed, name) for name, flag in NEEDS.items() if flag in flags}


def peaks(threads: int, repeats: int = 5) -> dict[str, float]:
    """GOP/s of `threads` threads together, by loop: the best of `repeats`."""
    return {name: max(run() for _ in range(repeats)) for name, run in loops(threads).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    threads = parser.parse_args().threads
    print(f"{threads} threads\n\n| loop | GOP/s |\n|---|---:|")
    for name, speed in peaks(threads).items():
        print(f"| {name} | {speed:.0f} |")


if __name__ == "__main__":
    main()
