"""The error and the run time of the methods of `quant/rounding`.

    python benchmarks/rounding.py [--outputs 1024] [--inputs 2048] [--rows 2048]

The first table is for weights from N(0, 1): the root mean squared error, in percent of their
standard deviation. The second is the error of outputs ‖(W - Q) X‖ / ‖W X‖, in percent, for
activations of 64 hidden directions with noise, where eight channels are twenty times as large. The
methods see half of the activations, and errors are measured on the other half. Times are processor
time, in milliseconds per million weights, on one thread; the time of moments and their factor is
for all matrices with the same inputs together. AWQ tries 39 scales, on at most 512 rows.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import time
from collections.abc import Callable
from typing import Final, TypeVar

import torch
from torch import Tensor

from hearth.kernels.packed_weight import PackedWeight
from hearth.quant.rounding.awq import round_awq, search_clip, search_scales
from hearth.quant.rounding.choose import output_error
from hearth.quant.rounding.gptq import Hessian, round_gptq
from hearth.quant.rounding.grid import Grid, round_plain
from hearth.quant.rounding.hqq import round_hqq

GRIDS: Final = {
    "INT4, groups of 128": Grid(),
    "INT4, groups of 128, zeros": Grid(symmetric=False),
    "INT4, groups of 32": Grid(group=32),
    "INT3, groups of 128": Grid(bits=3),
    "NF4, blocks of 64": Grid("nf4", 4, 64),
    "INT8, rows": Grid("int", 8, None, "row"),
    "FP8 E4M3, rows": Grid("fp8", 8, None, "row"),
    "FP8 E5M2, rows": Grid("fp8", 8, None, "row", e5m2=True),
}
Result = TypeVar("Result")


def timed(function: Callable[[], Result], weights: int) -> tuple[Result, float]:
    """The result, and the milliseconds per million weights."""
    began = time.process_time()
    found = function()
    return found, (time.process_time() - began) * 1e9 / weights


def of_normal_weights(weight: Tensor) -> None:
    """Print the first table."""
    print("| grid | plain | ms | weighted | ms | HQQ | ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    ones = torch.ones(weight.shape[1])
    for name, grid in GRIDS.items():
        cells = []
        for function in (
            lambda grid=grid: round_plain(weight, grid),
            lambda grid=grid: round_plain(weight, grid, importance=ones),
            lambda grid=grid: round_hqq(weight, grid),
        ):
            packed, spent = timed(function, weight.numel())
            off = (packed.unpacked(torch.float32) - weight).square().mean().sqrt()
            cells += [f"{100 * float(off):.2f}", f"{spent:.0f}"]
        print(f"| {name} | {' | '.join(cells)} |")


def of_outputs(weight: Tensor, x: Tensor, others: Tensor) -> None:
    """Print the second table."""
    hessian = Hessian(weight.shape[1])
    _, summed = timed(lambda: hessian.add(x), weight.numel())
    _, factored = timed(lambda: hessian.feedback(act_order=True, damp=0.01), weight.numel())
    hessian.feedback(act_order=True, damp=0.01)
    print(f"\nMoments of {len(x):,} rows: {summed:.0f} ms; their factor: {factored:.0f} ms.\n")
    print("| grid | plain | HQQ | GPTQ | ms | GPTQ, narrowed | AWQ | ms | AWQ with clip | ms |")
    print("|---|" + "---:|" * 9)
    sample = x[:512]
    for name, grid in GRIDS.items():

        def error(packed: PackedWeight, scales: Tensor | float = 1.0) -> str:
            return f"{100 * output_error(weight * scales, packed, others / scales):.2f}"

        gptq, of_gptq = timed(lambda grid=grid: round_gptq(weight, hessian, grid), weight.numel())
        scales, of_scales = timed(
            lambda grid=grid: search_scales([weight], sample, grid), weight.numel()
        )
        factors = scales.values
        scaled = weight * factors
        clip, of_clip = timed(
            lambda grid=grid, scaled=scaled, x=sample / factors: search_clip(scaled, x, grid),
            weight.numel(),
        )
        cells = (
            *(error(round_plain(weight, grid)), error(round_hqq(weight, grid))),
            *(error(gptq), f"{of_gptq:.0f}"),
            error(round_gptq(weight, hessian, grid, narrowed=True)),
            *(error(round_plain(scaled, grid), factors), f"{of_scales:.0f}"),
            *(error(round_awq(scaled, grid, clip), factors), f"{of_clip:.0f}"),
        )
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--outputs", type=int, default=1024)
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=2048)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"{datetime.date.today()}, {platform.machine()}, torch {torch.__version__}, one thread\n")
    weight = torch.randn(asked.outputs, asked.inputs)
    of_normal_weights(weight)
    x = torch.randn(2 * asked.rows, 64) @ torch.randn(64, asked.inputs) / 8
    x += 0.3 * torch.randn(x.shape)
    x[:, torch.randperm(asked.inputs)[:8]] *= 20
    of_outputs(weight, x[: asked.rows], x[asked.rows :])


if __name__ == "__main__":
    main()
