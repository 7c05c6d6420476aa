"""The kernels in Triton on an NVIDIA card, next to PyTorch's own and the bandwidth of the card. Run
by `make gpu PART=gemv` and `PART=attention`.

    python benchmarks/kernels_cuda.py gemv|attention [--results FILE] [--seconds 400]

Shapes are those of Llama 3 8B. Times are medians of a CUDA graph of the same calls, so that
starting them is not measured; bandwidths are those of the bytes that a call has to read. Each line
is printed, and appended to --results as JSON, when it is measured; after --seconds the rest is left
out. Every product and every attention is compared with PyTorch's in float32 first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from torch.nn import functional

from hearth.kernels.cuda.attention import Seen, attend_decode
from hearth.kernels.cuda.matrix import TritonMatrix
from random_weights import random_weight

ROUNDS: Final = 9
DTYPE: Final = torch.bfloat16
"""Of activations, queries, keys and values."""
MATRICES: Final = {"qkv": (6144, 4096), "down": (4096, 14336), "output": (128256, 4096)}
"""[outputs, inputs]."""
KINDS: Final[dict[str, dict[str, Any]]] = {
    **{packing: {} for packing in ("Q4_K", "Q6_K", "Q4_0", "Q8_0", "Q5_K", "MXFP4")},
    "INT4": {"group": 128},
    "INT8": {"group": 0},
    "FP8": {"group": 0},
    "NF4": {"group": 64},
}
ROWS: Final = (1, 4, 16, 64, 512)
TEXTS: Final = ((1, 2048), (1, 32768), (16, 2048), (64, 1024))
"""Sessions, and tokens of each."""
HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 256


@dataclass(frozen=True, slots=True)
class Measured:
    """One line."""

    what: str
    by: str
    microseconds: float
    gb_per_s: float
    share: float
    """Of the bandwidth that copying reaches in the same run."""
    error: float | None = None
    """Squares of what results are off, as a share of those of float32's."""


class Card(Protocol):
    """What measures: a card, or in the tests something that takes no time."""

    device: torch.device

    def seconds(self, call: Callable[[], object]) -> float: ...


class GraphCard:
    """Measures calls in a CUDA graph."""

    device = torch.device("cuda")

    def seconds(self, call: Callable[[], object]) -> float:
        """Of one call, the median of `ROUNDS`."""
        calls = 10
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()  # Compiled, and its memory taken.
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        times = []
        for _ in range(ROUNDS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / calls)
        return statistics.median(times)


def bandwidth(card: Card, nbytes: int = 1 << 30) -> float:
    """Bytes a second of a copy, read and written."""
    source = torch.zeros(nbytes // 4, device=card.device)
    target = torch.empty_like(source)
    return 2 * nbytes / card.seconds(lambda: target.copy_(source))


def measure_gemv(card: Card, peak: float) -> Iterator[Measured]:
    """Products of few and many rows, next to PyTorch's in bfloat16."""
    for name, (outputs, inputs) in MATRICES.items():
        plain = torch.randn(outputs, inputs, device=card.device, dtype=DTYPE) / 64
        for rows in ROWS:
            x = torch.randn(rows, inputs, device=card.device, dtype=DTYPE)
            seconds = card.seconds(lambda x=x, plain=plain: functional.linear(x, plain))
            yield _line(f"{name}, {rows} rows", "bf16, F.linear", seconds, plain.nbytes, peak)
        for kind, options in KINDS.items():
            part = random_weight(kind, outputs, inputs, **options).to(card.device)
            matrix = TritonMatrix([part])
            some = part.rows(slice(0, 512)).unpacked(torch.float32)
            for rows in ROWS:
                x = torch.randn(rows, inputs, device=card.device, dtype=DTYPE)
                wanted = x.float() @ some.T
                off = (matrix.matmul(x)[:, :512].float() - wanted).square().sum()
                seconds = card.seconds(lambda x=x, matrix=matrix: matrix.matmul(x))
                nbytes = sum(one.nbytes for one in matrix.tensors)
                error = float(off / wanted.square().sum())
                yield _line(f"{name}, {rows} rows", f"{kind}, Triton", seconds, nbytes, peak, error)


def measure_attention(card: Card, peak: float) -> Iterator[Measured]:
    """One token of each session, next to PyTorch's attention over keys in one piece."""
    for sessions, tokens in TEXTS:
        pages = tokens // PAGE
        shape = (2, sessions * pages, PAGE, KV_HEADS, SIZE)
        pool = torch.randn(shape, device=card.device, dtype=DTYPE)
        tables = torch.randperm(sessions * pages, device=card.device).to(torch.int32)
        tables = tables.view(sessions, pages)
        ends = torch.full((sessions,), tokens, dtype=torch.int32, device=card.device)
        seen = Seen(tables, torch.zeros_like(ends), ends, tokens)
        query = torch.randn(sessions, HEADS, SIZE, device=card.device, dtype=DTYPE)
        keys, values = (
            one[tables.long()].flatten(1, 2).transpose(1, 2).contiguous() for one in pool
        )

        def theirs(
            query: torch.Tensor = query, keys: torch.Tensor = keys, values: torch.Tensor = values
        ) -> torch.Tensor:
            return functional.scaled_dot_product_attention(
                query[:, :, None], keys, values, scale=SIZE**-0.5, enable_gqa=True
            )[:, :, 0]

        def ours(
            query: torch.Tensor = query, pool: torch.Tensor = pool, seen: Seen = seen
        ) -> torch.Tensor:
            return attend_decode(query, pool[0], pool[1], seen, scale=SIZE**-0.5)

        wanted = theirs(query.float(), keys.float(), values.float())
        error = float((ours().float() - wanted).square().sum() / wanted.square().sum())
        what = f"{sessions} × {tokens:,} tokens"
        yield _line(what, "SDPA, contiguous", card.seconds(theirs), pool.nbytes, peak)
        yield _line(what, "Triton, pages", card.seconds(ours), pool.nbytes, peak, error)


PARTS: Final = {"gemv": measure_gemv, "attention": measure_attention}


def run(part: str, card: Card, results: Path | None, seconds: float) -> int:
    """Measure a part and write its lines as they come.

    Returns:
        How many there are.
    """
    end, count = time.monotonic() + seconds, 0
    peak = bandwidth(card)
    print(f"copying: {peak / 1e9:,.0f} GB/s")
    for line in PARTS[part](card, peak):
        error = "" if line.error is None else f"   NMSE {line.error:.1e}"
        print(
            f"{line.what:24} {line.by:20} {line.microseconds:10.1f} µs {line.gb_per_s:8.0f} GB/s"
            f" {line.share:6.1%}{error}",
            flush=True,
        )
        if results is not None:
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, **asdict(line)}) + "\n")
        count += 1
        if time.monotonic() > end:
            print(f"{seconds:.0f} s have passed: the rest is left out.")
            break
    return count


def _line(
    what: str, by: str, seconds: float, nbytes: int, peak: float, error: float | None = None
) -> Measured:
    rate = nbytes / seconds
    return Measured(what, by, seconds * 1e6, rate / 1e9, rate / peak, error)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seconds", type=float, default=400.0)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no NVIDIA card here: there is nothing to measure.")
    import triton

    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__},"
        f" CUDA {torch.version.cuda}"
    )
    run(options.part, GraphCard(), options.results, options.seconds)


if __name__ == "__main__":
    main()
