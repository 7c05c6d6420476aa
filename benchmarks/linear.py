"""What the processor's own functions save: products with a matrix of half precision as PyTorch
makes them and widened slice by slice, and norms.

    python benchmarks/linear.py [--outputs 6144] [--inputs 1024] [--repeats 9]

Each number is the least of some repeats, in milliseconds. Where `widened` is the less of both from
some number of rows on, `hearth.kernels.linear` takes it from there, if the processor has no
instructions for such numbers; the last column is what it does, which for one row is a product with
a vector.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from collections.abc import Callable
from typing import Final

import torch

from hearth.kernels.device import multiplies
from hearth.kernels.linear import plain_linear, processor_linear, widened_linear
from hearth.kernels.norm import plain_rms_norm, processor_rms_norm

ROWS: Final = (1, 2, 3, 4, 6, 8, 16, 32, 128, 512)


def least(function: Callable[[], object], repeats: int) -> float:
    """Milliseconds."""
    function()
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


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
    for dtype in (torch.bfloat16, torch.float16):
        has = "has" if multiplies(cpu, dtype) else "has no"
        print(f"\n{dtype}; this processor {has} instructions for it\n")
        print("| rows | plain | widened | as it is done |")
        print("|---:|---:|---:|---:|")
        weight = torch.randn(options.outputs, options.inputs).to(dtype)
        for rows in ROWS:
            x = torch.randn(rows, options.inputs)
            plain = least(lambda x=x, w=weight: plain_linear(x, w), options.repeats)
            widened = least(lambda x=x, w=weight: widened_linear(x, w), options.repeats)
            done = least(lambda x=x, w=weight: processor_linear(x, w), options.repeats)
            print(f"| {rows} | {plain:.2f} | {widened:.2f} | {done:.2f} |", flush=True)
    print("\nnorms\n\n| rows | plain | processor's own |\n|---:|---:|---:|")
    for rows in ROWS:
        x = torch.randn(rows, options.inputs)
        plain = least(lambda x=x: plain_rms_norm(x, 1e-6), 100 * options.repeats)
        own = least(lambda x=x: processor_rms_norm(x, 1e-6), 100 * options.repeats)
        print(f"| {rows} | {plain:.4f} | {own:.4f} |", flush=True)


if __name__ == "__main__":
    main()
