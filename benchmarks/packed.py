"""Products with packed matrices on this processor, compared with memory speed and dense products.

    python benchmarks/packed.py [--layouts Q4_0,Q4_K,Q6_K,Q8_0] [--instructions avx512] [--exact]
                                [--outputs 8192] [--inputs 2048] [--repeats 5] [--threads N]

For each type and number of rows: milliseconds of a product (the lowest of several repeats), packed
gigabytes per second, arithmetic, and the time of torch's own product with the same matrix in
bfloat16 and float32 divided by Hearth's. Matrices rotate through 160 megabytes, more than the
caches hold. The first lines give the speed of reading memory alone, and of arithmetic in registers.
With one thread, times are processor time, which other programs disturb less. `--exact`: activations
stay float32.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from peaks import peaks
from torch.nn import functional

from hearth.kernels.cpu.build_library import library_path
from hearth.kernels.cpu.library import CpuLibrary
from hearth.kernels.packed import TiledMatrix
from hearth.kernels.packed_weight import PackedWeight

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from random_weights import random_weight

ROWS: Final = (1, 2, 4, 8, 16, 64, 128, 512)
ROTATED_BYTES: Final = 160 << 20


def least(functions: list[Callable[[], object]], repeats: int) -> float:
    """Least seconds per call, over rounds through all `functions`."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    for function in functions:
        function()
    best = float("inf")
    for _ in range(repeats):
        began = clock()
        for function in functions:
            function()
        best = min(best, (clock() - began) / len(functions))
    return best


def read_gigabytes_a_second() -> float:
    """Read bandwidth over a gigabyte, with all threads."""
    memory = torch.ones(1 << 27, dtype=torch.int64)
    return memory.nbytes / least([memory.sum], 5) / 1e9


def dense(dtype: torch.dtype, weight: PackedWeight, rows: int, repeats: int) -> float:
    plain = weight.unpacked(dtype)
    copies = [plain] + [plain.clone() for _ in range(ROTATED_BYTES // plain.nbytes)]
    x = torch.randn(rows, weight.inputs).to(dtype)
    return least([lambda one=one: functional.linear(x, one) for one in copies], repeats)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layouts", default="Q4_0,Q4_K,Q6_K,Q8_0")
    parser.add_argument("--instructions", choices=("plain", "avx2", "avx512", "amx"))
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--outputs", type=int, default=8192)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    library = CpuLibrary(library_path(), asked.instructions)
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, {asked.threads} "
        f"threads, {library.instructions}, torch {torch.__version__}; memory reads at "
        f"{read_gigabytes_a_second():.1f} GB/s"
    )
    most = ", ".join(f"{name} {speed:.0f}" for name, speed in peaks(asked.threads).items())
    print(f"in registers, GOP/s: {most}")
    print(f"{asked.outputs} x {asked.inputs}{', exact' if asked.exact else ''}\n")
    print("| type | bits | rows | ms | GB/s | GOP/s | bf16 / ours | f32 / ours |")
    print("|---|---|---|---|---|---|---|---|")
    for packing in asked.layouts.split(","):
        weight = random_weight(packing, asked.outputs, asked.inputs)
        first = TiledMatrix(library, [weight], exact=asked.exact)
        size = sum(tensor.nbytes for tensor in first.tensors)
        more = range(ROTATED_BYTES // size)
        matrices = [first, *(TiledMatrix(library, [weight], exact=asked.exact) for _ in more)]
        bits = 8 * size / (asked.outputs * asked.inputs)
        for rows in ROWS:
            x = torch.randn(rows, asked.inputs)
            some = matrices if rows <= 16 else matrices[:3]
            calls = [lambda one=one, x=x: one.matmul(x) for one in some]  # type: ignore[misc]
            took = least(calls, asked.repeats)
            ratios = [
                dense(dtype, weight, rows, max(2, asked.repeats // 2)) / took
                for dtype in (torch.bfloat16, torch.float32)
            ]
            work = 2 * rows * asked.outputs * asked.inputs / took / 1e9
            print(
                f"| {packing} | {bits:.2f} | {rows} | {took * 1e3:.2f} | "
                f"{size / took / 1e9:.1f} | {work:.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
