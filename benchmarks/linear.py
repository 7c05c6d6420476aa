"""What the processor's own functions save: products with a matrix of half precision as PyTorch
makes them, widened slice by slice, and of a `HalfMatrix`; and norms.

    python benchmarks/linear.py [--outputs 6144] [--inputs 1024] [--repeats 9] [--packing]

Each number is the least of some repeats, in milliseconds. Where `widened` is the less of both from
some number of rows on, `hearth.kernels.linear` takes it from there, if the processor has no
instructions for such numbers; the next column is what it does, which for one row is a product with
a vector. The matrices are so many that they come from memory, as a model's do.

--packing: what a `HalfMatrix` costs by the rows of its parts, to make and to multiply with.
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

from hearth.kernels.device import multiplies
from hearth.kernels.half_matrix import NUMBERS_OF_A_PART, HalfMatrix, has_half_matrices, pack
from hearth.kernels.linear import plain_linear, processor_linear, widened_linear
from hearth.kernels.norm import plain_rms_norm, processor_rms_norm

ROWS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 128, 512)
PARTS: Final = (128, 512, 1024, 2048, 4096, 1 << 20)
NUMBERS: Final = 48 << 20
"""Of all matrices together: more than caches hold."""


Matrix = Any


def least(function: Callable[[], object], repeats: int) -> float:
    """Milliseconds."""
    function()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def half_matrix(weight: torch.Tensor, rows: int) -> HalfMatrix:
    """Of parts of so many rows."""
    return HalfMatrix([pack(part) for part in torch.split(weight, rows)])


def each(
    function: Callable[[torch.Tensor, Matrix], object], x: torch.Tensor, matrices: list[Matrix]
) -> Callable[[], None]:
    """A call for each of the matrices."""

    def call() -> None:
        for matrix in matrices:
            function(x, matrix)

    return call


def products(weights: list[torch.Tensor], repeats: int) -> None:
    """A table: milliseconds for one matrix."""
    print("| rows | plain | widened | as it is done | half matrix |")
    print("|---:|---:|---:|---:|---:|")
    usual = max(NUMBERS_OF_A_PART // weights[0].shape[1], 1)
    halves = [half_matrix(one, usual) for one in weights] if has_half_matrices() else []
    for rows in ROWS:
        x = torch.randn(rows, weights[0].shape[1])
        found = [
            least(each(function, x, weights), repeats) / len(weights)
            for function in (plain_linear, widened_linear, processor_linear)
        ]
        if halves:
            times = each(lambda rows, matrix: matrix.times(rows), x, halves)
            found.append(least(times, repeats) / len(weights))
        print(f"| {rows} | " + " | ".join(f"{one:.2f}" for one in found) + " |", flush=True)


def packing(weights: list[torch.Tensor], repeats: int) -> None:
    """A table: nanoseconds a number to make, and milliseconds a product of some rows."""
    shown = (1, 8, 512)
    print("| rows of a part | to make, ns |" + "".join(f" {rows} rows, ms |" for rows in shown))
    print("|---:|" + "---:|" * (1 + len(shown)))
    for part in PARTS:
        made_s = least(lambda p=part: half_matrix(weights[0], p), repeats) / 1e3
        halves = [half_matrix(one, part) for one in weights]
        cells = [1e9 * made_s / weights[0].numel()]
        for rows in shown:
            x = torch.randn(rows, weights[0].shape[1])
            times = each(lambda rows, matrix: matrix.times(rows), x, halves)
            cells.append(least(times, repeats) / len(halves))
        print(f"| {part} | " + " | ".join(f"{one:.2f}" for one in cells) + " |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outputs", type=int, default=6144)
    parser.add_argument("--inputs", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--packing", action="store_true")
    options = parser.parse_args()
    cpu = torch.device("cpu")
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__}, "
        f"{options.outputs} × {options.inputs}, ms, {datetime.date.today()}"
    )
    count = -(-NUMBERS // (options.outputs * options.inputs))
    if options.packing:
        shape = (count, options.outputs, options.inputs)
        packing(list(torch.randn(shape).bfloat16()), options.repeats)
        return
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
