"""The gain from the processor's own functions: products with a matrix in half precision as PyTorch
computes them, widened slice by slice, and with a tiled matrix (`kernels/packed.py`); and norms.

    python benchmarks/linear.py [--outputs 6144] [--inputs 1024] [--repeats 9]

Each number is the lowest of several repeats, in milliseconds. On a processor without instructions
for these numbers, `hearth.kernels.linear` uses `widened` from the number of rows on at which it is
faster than `plain`; the next column is what it really does, which for one row is a product with a
vector. There are enough matrices that they are read from memory, as a model's are.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from collections.abc import Callable
from typing import Any, Final

import torch

from hearth.kernels.cpu.layouts import multiplied
from hearth.kernels.device import multiplies
from hearth.kernels.linear import plain_linear, processor_linear, widened_linear
from hearth.kernels.norm import plain_rms_norm, processor_rms_norm
from hearth.kernels.packed import prepare
from hearth.kernels.packed_weight import PackedWeight

ROWS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 128, 512)
NUMBERS: Final = 48 << 20
"""Numbers in all matrices together: more than the caches hold."""


Matrix = Any


def least(function: Callable[[], object], repeats: int) -> float:
    """The least milliseconds of `repeats` calls."""
    function()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def each(
    function: Callable[[torch.Tensor, Matrix], object], x: torch.Tensor, matrices: list[Matrix]
) -> Callable[[], None]:
    """A function that calls `function` with each of the matrices."""

    def call() -> None:
        for matrix in matrices:
            function(x, matrix)

    return call


def products(weights: list[torch.Tensor], repeats: int) -> None:
    """Print a table of the milliseconds for one matrix."""
    print("| rows | plain | widened | as it is done | tiles |")
    print("|---:|---:|---:|---:|---:|")
    tiles = [prepare([PackedWeight(one)], exact=False) for one in weights] if multiplied() else []
    for rows in ROWS:
        x = torch.randn(rows, weights[0].shape[1])
        found = [
            least(each(function, x, weights), repeats) / len(weights)
            for function in (plain_linear, widened_linear, processor_linear)
        ]
        if tiles:
            times = each(lambda rows, matrix: matrix.matmul(rows), x, tiles)
            found.append(least(times, repeats) / len(weights))
        print(f"| {rows} | " + " | ".join(f"{one:.2f}" for one in found) + " |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=6144)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    cpu = torch.device("cpu")
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__}, "
        f"{options.outputs} × {options.inputs}, ms, {datetime.date.today()}"
    )
    count = -(-NUMBERS // (options.outputs * options.inputs))
    for dtype in (torch.bfloat16, torch.float16):
        has = "has" if multiplies(cpu, dtype) else "has no"
        print(f"\n{dtype}; this processor {has} instructions for it\n")
        weights = list(torch.randn(count, options.outputs, options.inputs).to(dtype))
        products(weights, options.repeats)
    print("\nnorms\n\n| rows | plain | processor's own |\n|---:|---:|---:|")
    for rows in ROWS:
        x = torch.randn(rows, options.inputs)
        plain = least(lambda x=x: plain_rms_norm(x, 1e-6), 100 * options.repeats)
        own = least(lambda x=x: processor_rms_norm(x, 1e-6), 100 * options.repeats)
        print(f"| {rows} | {plain:.4f} | {own:.4f} |", flush=True)


if __name__ == "__main__":
    main()
