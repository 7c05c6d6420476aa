"""Which tiling of products with few rows is fastest on an NVIDIA card: `kernels/cuda/few_rows.cu`
with every number of tiles, warps and blocks read ahead, for the matrices of a layer of Llama 3 8B.

    python benchmarks/few_rows_cuda.py [--kinds INT4 FP8 Q4_K Q6_K bf16] [--rows 1 16]

Prints the fastest tilings of each matrix, the time with the tiling that `few_rows` chooses, and
the time of a layer of each kind with its norms and gate. Times are medians of CUDA graphs in which
a matrix is used again only after others have evicted it from the card's cache; percentages are
relative to the bandwidth of copying.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle, product
from typing import Any, Final
from unittest import mock

import torch
from kernels_cuda import DTYPE, KINDS, GraphCard, bandwidth, copies
from torch import Tensor

from hearth.kernels.cuda import few_rows
from hearth.kernels.cuda.elementwise import add_and_normalise, silu_up
from hearth.kernels.cuda.matrix import TritonMatrix
from hearth.kernels.cuda.planes import Planes
from random_weights import random_weight

SHAPES: Final = {
    "qkv": (6144, 4096),
    "out": (4096, 4096),
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
}
"""[outputs, inputs]."""
CHOICES: Final = {
    "TILES": (1, 2),
    "WARPS": (4, 8, 16),
    "AHEAD": (1, 2, 3, 4),
    "LANES": (512, 768, 1024),
}
"""LANES is the number of threads per multiprocessor that registers must suffice for; with fewer
threads, each has more registers.
"""
SHOWN: Final = 3


class Matrix:
    """A matrix of one kind, in as many copies as it takes to exceed the card's cache."""

    def __init__(self, kind: str, outputs: int, inputs: int, card: GraphCard) -> None:
        self.outputs = outputs
        if kind == "bf16":
            plain = torch.randn(outputs, inputs, device=card.device, dtype=DTYPE) / 64
            self.nbytes = plain.nbytes
            self._every: list[Tensor | Planes] = list(copies(plain, plain.nbytes))  # type: ignore[arg-type]
        else:
            weight = random_weight(kind, outputs, inputs, **KINDS[kind]).to(card.device)
            (part,) = TritonMatrix([weight]).parts
            self.nbytes = sum(one.nbytes for one in part.tensors)
            codes = copies(part.codes, self.nbytes)
            self._every = [replace(part, codes=one) for one in codes if one is not None]
        self._next = cycle(self._every)

    def multiply(self, x: Tensor, out: Tensor) -> None:
        """Multiply by the next copy."""
        one = next(self._next)
        few_rows.multiply(one, x, out)


def choices() -> Iterator[dict[str, int]]:
    """All combinations of one value from each of `CHOICES`."""
    for values in product(*CHOICES.values()):
        some = dict(zip(CHOICES, values, strict=True))
        yield {**some, "PROGRAMS": max(some.pop("LANES") // 32 // some["WARPS"], 1)}


def measure(kind: str, rows: int, card: GraphCard, peak: float) -> None:
    """Print the lines for one kind of weights and one number of rows."""
    matrices = {name: Matrix(kind, *shape, card) for name, shape in SHAPES.items()}
    real = few_rows._tiles
    for name, (outputs, inputs) in SHAPES.items():
        matrix = matrices[name]
        x = torch.randn(rows, inputs, device=card.device, dtype=DTYPE)
        out = torch.empty(rows, outputs, device=card.device, dtype=DTYPE)
        found = []
        for some in ({}, *choices()):

            def tiles(*about: Any, some: dict[str, int] = some, **how: Any) -> few_rows.Constants:
                return {**real(*about, **how), **some}

            with mock.patch.object(few_rows, "_tiles", tiles):
                seconds = card.seconds(lambda m=matrix, x=x, out=out: m.multiply(x, out))
            found.append((seconds, some))
        own = found[0][0]
        print(f"{kind}, {name}, {rows} rows: {own * 1e6:.1f} µs, {matrix.nbytes / own / peak:.0%}")
        for seconds, some in sorted(found[1:], key=lambda one: one[0])[:SHOWN]:
            print(f"    {seconds * 1e6:6.1f} µs {matrix.nbytes / seconds / peak:4.0%}  {some}")
    nbytes = sum(one.nbytes for one in matrices.values())
    hidden = torch.randn(rows, SHAPES["out"][0], device=card.device, dtype=DTYPE)
    weight = torch.ones(hidden.shape[1], device=card.device)
    outs = {
        name: torch.zeros(rows, shape[0], device=card.device, dtype=DTYPE)
        for name, shape in SHAPES.items()
    }

    def layer() -> None:
        def multiplied(name: str, x: Tensor) -> Tensor:
            matrices[name].multiply(x, outs[name])
            return outs[name]

        normed = add_and_normalise(hidden, outs["down"], weight, 1e-5)
        queries = multiplied("qkv", normed)[:, : hidden.shape[1]]
        normed = add_and_normalise(hidden, multiplied("out", queries), weight, 1e-5)
        multiplied("down", silu_up(multiplied("gate_up", normed)))

    seconds = card.seconds(layer)
    print(f"{kind}, a layer, {rows} rows: {seconds * 1e6:.1f} µs, {nbytes / seconds / peak:.0%}")


@torch.no_grad()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=["INT4", "FP8", "Q4_K", "Q6_K", "bf16"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 16])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no NVIDIA card here: there is nothing to measure.")
    card = GraphCard()
    torch.cuda.set_device(0)
    if not few_rows.is_there(torch.device("cuda", 0)):
        sys.exit("The kernel cannot be compiled here; the warning above says why.")
    peak = bandwidth(card)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {peak / 1e9:,.0f} GB/s")
    for kind, rows in product(options.kinds, options.rows):
        measure(kind, rows, card, peak)


if __name__ == "__main__":
    main()
