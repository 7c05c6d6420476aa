"""Products with packed matrices on this processor, compared with its limits and dense products.

    python benchmarks/packed.py [--layouts Q4_0,Q4_K,Q6_K,Q8_0] [--instructions avx512] [--exact]
                                [--outputs 8192] [--inputs 2048] [--repeats 5] [--threads N]

For each type and number of rows: milliseconds of a product (the lowest of several repeats), packed
gigabytes per second, and arithmetic; then medians of ratios within one repeat, because the speed of
a virtual machine changes from one second to the next:

- of the limit: the longer of reading the matrix at the speed of memory and of computing at the
  speed of the same instruction in registers (`peaks.py`), divided by the time of the product;
- the time of torch's own product with the same matrix in bfloat16 and float32, divided by Hearth's.

Matrices rotate through 160 megabytes, more than the caches hold. The first lines give the speed of
reading memory alone, and of arithmetic in registers. `--exact`: activations stay float32.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
from peaks import loops
from torch.nn import functional

from hearth.kernels.cpu.build_library import library_path
from hearth.kernels.cpu.library import CpuLibrary
from hearth.kernels.packed import TiledMatrix
from hearth.kernels.packed_weight import PackedWeight

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from random_weights import random_weight

ROWS: Final = (1, 2, 4, 8, 16, 64, 128, 512)
ROTATED_BYTES: Final = 160 << 20
MOST_ROWS_OF_VNNI: Final = 8
"""The limit of more rows of integers is that of AMX, where the processor has it."""


def average(functions: Sequence[Callable[[], object]]) -> float:
    """Seconds per call, of one call of each."""
    began = time.perf_counter()
    for function in functions:
        function()
    return (time.perf_counter() - began) / len(functions)


def dense(dtype: torch.dtype, weight: PackedWeight, rows: int) -> list[Callable[[], object]]:
    """Torch's products with copies of the matrix in `dtype`."""
    plain = weight.unpacked(dtype)
    copies = [plain] + [plain.clone() for _ in range(ROTATED_BYTES // plain.nbytes)]
    x = torch.randn(rows, weight.inputs).to(dtype)
    return [partial(functional.linear, x, one) for one in copies]


def loop_of(library: CpuLibrary, packing: str, rows: int, *, exact: bool) -> str:
    """The loop of `peaks.py` that limits products of `rows` rows."""
    vector = "avx512" if library.instructions in ("avx512", "amx") else "avx2"
    match library.activations(packing, rows, exact=exact):
        case "bf16":
            return "amx_tdpbf16ps"
        case "int8" if library.instructions == "amx" and rows > MOST_ROWS_OF_VNNI:
            return "amx_tdpbssd"
        case "int8":
            return "avx2_maddubs" if vector == "avx2" else "avx512_vpdpbusd"
    return f"{vector}_fma"


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
    speeds = loops(asked.threads)
    memory = torch.ones(1 << 27, dtype=torch.int64)
    bandwidth = max(memory.nbytes / average([memory.sum]) / 1e9 for _ in range(5))
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, {asked.threads} "
        f"threads, {library.instructions}, torch {torch.__version__}; memory reads at "
        f"{bandwidth:.1f} GB/s"
    )
    most = ", ".join(f"{name} {max(run() for _ in range(5)):.0f}" for name, run in speeds.items())
    print(f"in registers, GOP/s: {most}")
    print(f"{asked.outputs} x {asked.inputs}{', exact' if asked.exact else ''}\n")
    print("| type | bits | rows | ms | GB/s | GOP/s | of the limit | bf16 / ours | f32 / ours |")
    print("|---|---|---|---|---|---|---|---|---|")
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
            ours = [partial(one.matmul, x) for one in some]
            others = [dense(dtype, weight, rows) for dtype in (torch.bfloat16, torch.float32)]
            speed = speeds[loop_of(library, packing, rows, exact=asked.exact)]
            operations = 2 * rows * asked.outputs * asked.inputs
            times, ratios = [], []
            for functions in (ours, *others):
                average(functions)
            for _ in range(asked.repeats):
                took = average(ours)
                reading = size * average([memory.sum]) / memory.nbytes
                computing = operations / max(speed() for _ in range(3)) / 1e9
                limit = max(reading, computing)
                times.append(took)
                ratios.append([one / took for one in (limit, *map(average, others))])
            took = min(times)
            middle = " | ".join(
                f"{statistics.median(some):.2f}" for some in zip(*ratios, strict=True)
            )
            print(
                f"| {packing} | {bits:.2f} | {rows} | {took * 1e3:.2f} | "
                f"{size / took / 1e9:.1f} | {operations / took / 1e9:.0f} | {middle} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
