"""Attention of single tokens over keys and values in half precision: widened to float32 first, and
used as they are.

    python benchmarks/half_attention.py [--kv-heads 8] [--shared 2] [--width 128] [--repeats 30]

Each number is the lowest of several repeats, in milliseconds, for one layer. Up to some hundreds of
keys of all rows together `hearth.backends.native.paged_attention` widens them, because that costs
little and rounds less; beyond that it does not.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import time
from typing import Final

import torch

from hearth.backends.native.scores import attend_to

ROWS: Final = (1, 8)
KEYS: Final = (16, 32, 48, 64, 128, 256, 384, 512, 1024, 4096)


def least_ms(
    query: torch.Tensor, kept: torch.Tensor, dtype: torch.dtype, scale: float, repeats: int
) -> float:
    """Least milliseconds of attention of `query` [kv_heads, rows, shared, width] over `kept`
    [2, kv_heads, rows, keys, width], computed in `dtype`.
    """
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        keys, values = kept.to(dtype)
        attend_to(query.to(dtype), keys, values, scale=scale).to(query.dtype)
        best = min(best, time.perf_counter() - began)
    return best * 1e3


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--shared", type=int, default=2, help="queries for each head of keys")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, torch {torch.__version__}, "
        f"{options.kv_heads} × {options.shared} heads of {options.width}, ms, "
        f"{datetime.date.today()}\n"
    )
    print("| rows | keys of each | of all | widened | as kept |")
    print("|---:|---:|---:|---:|---:|")
    for rows in ROWS:
        query = torch.randn(options.kv_heads, rows, options.shared, options.width)
        for keys in KEYS:
            kept = torch.randn(2, options.kv_heads, rows, keys, options.width).half()
            wide, half = (
                least_ms(query, kept, dtype, options.width**-0.5, options.repeats)
                for dtype in (torch.float32, torch.float16)
            )
            print(f"| {rows} | {keys} | {rows * keys} | {wide:.3f} | {half:.3f} |", flush=True)


if __name__ == "__main__":
    main()
