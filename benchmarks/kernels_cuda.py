"""Products and attention on an NVIDIA card with Hearth's kernels, with PyTorch's own operators, and
with gemlite and Marlin if they are installed: parts gemv and attention of `native_cuda.py`.

Shapes are those of Llama 3 8B. Times are medians of a CUDA graph of repeated calls, so that launch
overhead is not measured; bandwidths count the bytes that a call has to read. Every product and each
attention is first compared with PyTorch's result in float32: Hearth's with the same weights,
dequantized, the others with the weights before they were quantized.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from hearth.kernels.cuda.attention import (
    Seen,
    Texts,
    attend_decode,
    attend_prompts,
    block_rows,
    blocks_of,
    is_roomy,
)
from hearth.kernels.cuda.matrix import TritonMatrix
from hearth.kernels.linear import cuda_linear

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from random_weights import random_weight

ROUNDS: Final = 9
DTYPE: Final = torch.bfloat16
"""Type of activations, queries, keys and values."""
MATRICES: Final = {"qkv": (6144, 4096), "down": (4096, 14336), "output": (128256, 4096)}
"""[outputs, inputs]."""
KINDS: Final[dict[str, dict[str, Any]]] = {
    **{packing: {} for packing in ("Q4_K", "Q6_K", "Q4_0", "Q8_0", "Q5_K", "MXFP4")},
    "INT4": {"group": 128},
    "INT8": {"group": 0},
    "FP8": {"group": 0},
    "NF4": {"group": 64},
}
GROUP: Final = 128
"""Inputs that share a scale, for the operators of PyTorch and of other libraries."""
ROWS: Final = (1, 4, 16, 64, 512)
FEW_ROWS: Final = (1, 4, 16)
CACHE_BYTES: Final = 120 << 20
"""More than the L2 cache of any card."""
TEXTS: Final = ((1, 2048), (1, 32768), (16, 2048), (64, 1024))
"""(sessions, tokens of each)."""
PROMPTS: Final = ((2048, 2048), (512, 512), (512, 8192), (2048, 32768))
"""(new tokens of a text, its total number of tokens)."""
COMPARED: Final = 64
"""Number of last tokens of a prompt whose attention is compared with float32's."""
HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 256


@dataclass(frozen=True, slots=True)
class Measured:
    """One line, for a call that is bound by memory reads."""

    what: str
    by: str
    microseconds: float
    gb_per_s: float
    share: float
    """Share of the bandwidth that copying reaches in the same run."""
    error: float | None = None
    """Sum of squared errors as a share of the sum of squares of the float32 results."""


@dataclass(frozen=True, slots=True)
class Computed:
    """One line, for a call that is bound by computation."""

    what: str
    by: str
    microseconds: float
    tflops: float
    error: float | None = None
    """As in `Measured`."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A measurement that was skipped."""

    what: str
    by: str
    why: str


Line = Measured | Computed | Skipped
Product = tuple[Callable[[Tensor], Tensor], int]
"""x [rows, inputs] -> [rows, outputs], and the bytes of the weights that it reads."""


class Card(Protocol):
    """Runs and times calls: a card, or in the tests a fake that takes no time."""

    device: torch.device

    def seconds(self, call: Callable[[], object]) -> float: ...

    def allocated_bytes(self) -> int: ...


class GraphCard:
    """Measures calls in a CUDA graph."""

    device = torch.device("cuda")

    def allocated_bytes(self) -> int:
        """Bytes of all tensors now."""
        return torch.cuda.memory_allocated()

    def seconds(self, call: Callable[[], object]) -> float:
        """Median time of one call over `ROUNDS` rounds."""
        calls = 10
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()  # Compiles the kernel and allocates its memory.
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
    """Bytes per second, read and written, of a copy by a kernel. In a graph, `copy_` would use the
    card's copy engines, which are slower.
    """
    source = torch.randn(nbytes // 4, device=card.device)
    target = torch.empty_like(source)
    return 2 * nbytes / card.seconds(lambda: torch.mul(source, 1.0, out=target))


def measure_gemv(card: Card, peak: float) -> Iterator[Line]:
    """Products of few and many rows, compared with PyTorch in bfloat16 and with other libraries."""
    for name, (outputs, inputs) in MATRICES.items():
        plain = torch.randn(outputs, inputs, device=card.device, dtype=DTYPE) / 64
        for by, multiply in (("bf16, F.linear", functional.linear), ("bf16", cuda_linear)):
            for rows in ROWS if multiply is functional.linear else FEW_ROWS:
                x = torch.randn(rows, inputs, device=card.device, dtype=DTYPE)
                each = cycle(copies(plain, plain.nbytes))
                seconds = card.seconds(lambda x=x, m=multiply, each=each: m(x, next(each)))
                yield line(f"{name}, {rows} rows", by, seconds, plain.nbytes, peak)
        for kind, options in KINDS.items():
            part = random_weight(kind, outputs, inputs, **options).to(card.device)
            matrix = TritonMatrix([part])
            nbytes = sum(one.nbytes for one in matrix.tensors)
            every = [matrix, *(TritonMatrix([part]) for _ in copies(None, nbytes)[1:])]
            some = part.rows(slice(0, 512)).unpacked(torch.float32)
            for rows in ROWS:
                x = torch.randn(rows, inputs, device=card.device, dtype=DTYPE)
                wanted = x.float() @ some.T
                off = (matrix.matmul(x)[:, :512].float() - wanted).square().sum()
                each = cycle(every)
                seconds = card.seconds(lambda x=x, each=each: next(each).matmul(x))
                error = float(off / wanted.square().sum())
                yield line(f"{name}, {rows} rows", kind, seconds, nbytes, peak, error)
        for by, make in OTHERS.items():
            yield from _of_others(card, peak, name, plain, by, make)


def copies(tensor: Tensor | None, nbytes: int) -> list[Tensor | None]:
    """`tensor` and enough tensors like it that none is still in the card's cache when it is
    multiplied again.
    """
    count = max(1, -(-CACHE_BYTES // nbytes))
    return [tensor, *(None if tensor is None else tensor.clone() for _ in range(count - 1))]


def _of_others(
    card: Card, peak: float, name: str, plain: Tensor, by: str, make: Callable[[Tensor], Product]
) -> Iterator[Line]:
    """Products by an operator that may be missing here, or may not support the matrix."""
    try:
        multiply, nbytes = make(plain)
    except Exception as error:  # noqa: BLE001 - Libraries that were never run here.
        yield Skipped(name, by, f"{type(error).__name__}: {error}")
        return
    for rows in ROWS:
        x = torch.randn(rows, plain.shape[1], device=card.device, dtype=DTYPE)
        try:
            wanted = x.float() @ plain[:512].float().T
            off = (multiply(x)[:, :512].float() - wanted).square().sum()
            seconds = card.seconds(lambda x=x: multiply(x))
        except Exception as error:  # noqa: BLE001 - as above
            yield Skipped(f"{name}, {rows} rows", by, f"{type(error).__name__}: {error}")
            continue
        error = float(off / wanted.square().sum())
        yield line(f"{name}, {rows} rows", by, seconds, nbytes, peak, error)


def torch_int4(plain: Tensor) -> Product:
    """Groups of 128; w = (code - 8) · scale + zero."""
    codes, scales, zeros = _four_bits(plain)
    about = torch.stack([scales, zeros], -1).transpose(0, 1).contiguous().to(DTYPE)
    if plain.device.type == "cpu":
        packed = torch._convert_weight_to_int4pack_for_cpu(codes.int(), 2)
        multiply = torch._weight_int4pack_mm_for_cpu
    else:
        pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        packed, multiply = torch._convert_weight_to_int4pack(pairs, 8), torch._weight_int4pack_mm
    return lambda x: multiply(x, packed, GROUP, about), packed.nbytes + about.nbytes


def torch_int8(plain: Tensor) -> Product:
    """One scale per row."""
    scales = plain.float().abs().amax(1) / 127
    codes = (plain.float() / scales[:, None]).round().to(torch.int8)
    scales = scales.to(DTYPE)
    return lambda x: torch._weight_int8pack_mm(x, codes, scales), codes.nbytes


def torch_fp8(plain: Tensor) -> Product:
    """E4M3 with one scale per row of weights and of activations, which are rounded too."""
    codes, scales = _fp8_rows(plain)

    def multiply(x: Tensor) -> Tensor:
        rows, of_rows = _fp8_rows(x)
        return torch._scaled_mm(rows, codes.T, of_rows, scales.T, out_dtype=torch.bfloat16)

    return multiply, codes.nbytes


def gemlite_int4(plain: Tensor) -> Product:
    """gemlite.core.GemLiteLinear, groups of 128, in float16."""
    from gemlite.core import DType, GemLiteLinear

    codes, scales, zeros = _four_bits(plain)
    # In gemlite, w = (code - zero) · scale.
    outputs, inputs = plain.shape
    made = GemLiteLinear(
        4,
        group_size=GROUP,
        in_features=inputs,
        out_features=outputs,
        input_dtype=DType.FP16,
        output_dtype=DType.FP16,
    )
    shift = (8 - zeros / scales).half()
    made.pack(codes.to(torch.uint8), scales.half(), shift, None)
    return lambda x: made(x.half()), codes.numel() // 2 + 2 * scales.nbytes // 2


def marlin_int4(plain: Tensor) -> Product:
    """marlin.Layer, groups of 128, in float16."""
    import marlin

    outputs, inputs = plain.shape
    groups = plain.float().view(outputs, -1, GROUP)
    scales = groups.abs().amax(-1).clamp(min=1e-8) / 7.5
    rounded = (groups / scales[..., None]).round().clamp(-8, 7) * scales[..., None]
    linear = torch.nn.Linear(inputs, outputs, bias=False, device=plain.device, dtype=torch.half)
    linear.weight.data = rounded.view(outputs, inputs).half()
    made = marlin.Layer(inputs, outputs, GROUP).to(plain.device)
    made.pack(linear, scales.T.contiguous().half())
    return lambda x: made(x.half()), plain.numel() // 2 + 2 * scales.numel()


OTHERS: Final[dict[str, Callable[[Tensor], Product]]] = {
    "INT4, torch": torch_int4,
    "INT8, torch": torch_int8,
    "FP8 W8A8, torch": torch_fp8,
    "INT4, gemlite": gemlite_int4,
    "INT4, Marlin": marlin_int4,
}


def _four_bits(plain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [outputs, inputs] of 0 to 15, and scales and zeros [outputs, groups] float32."""
    groups = plain.float().view(len(plain), -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = (high - low).clamp(min=1e-8) / 15
    zeros = low + 8 * scales
    codes = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, 15)
    return codes.view(plain.shape).int(), scales, zeros


def _fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """FP8 codes, and scales [rows, 1] float32."""
    scales = x.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
    return (x.float() / scales).to(torch.float8_e4m3fn), scales


def measure_attention(card: Card, peak: float) -> Iterator[Line]:
    """One token of each session, compared with PyTorch's attention over contiguous keys."""
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
        yield line(what, "SDPA, contiguous", card.seconds(theirs), pool.nbytes, peak)
        yield line(what, "Triton, pages", card.seconds(ours), pool.nbytes, peak, error)
    for count, tokens in PROMPTS:
        yield from _prompt(card, count, tokens)


def _prompt(card: Card, count: int, tokens: int) -> Iterator[Line]:
    """The last `count` of `tokens` tokens, compared with PyTorch's FlashAttention."""
    pages = -(-tokens // PAGE)
    pool = torch.randn((2, pages, PAGE, KV_HEADS, SIZE), device=card.device, dtype=DTYPE)
    table = torch.randperm(pages, device=card.device).to(torch.int32)
    rows = block_rows(HEADS, KV_HEADS, SIZE, count, DTYPE, is_roomy=is_roomy(card.device))
    begin = np.array([tokens - count], np.int32)
    blocks = blocks_of(np.array([count], np.int32), begin, rows // (HEADS // KV_HEADS))
    places = torch.tensor([[0, count, tokens - count]], dtype=torch.int32)
    on_card = (one.to(card.device) for one in (places, torch.from_numpy(blocks)))
    texts = Texts(table[None], *on_card, rows)
    query = torch.randn(count, HEADS, SIZE, device=card.device, dtype=DTYPE)
    # Each is [1, heads, tokens, size].
    keys, values = (
        one[table.long()].flatten(0, 1)[:tokens].transpose(0, 1).contiguous()[None] for one in pool
    )
    shared = HEADS // KV_HEADS
    wide = [one.repeat_interleave(shared, 1) for one in (keys, values)]

    def theirs() -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            return functional.scaled_dot_product_attention(
                query.transpose(0, 1)[None],
                *wide,
                attn_mask=None if count == tokens else causal_lower_right(count, tokens),
                is_causal=count == tokens,
                scale=SIZE**-0.5,
            )

    def ours() -> Tensor:
        return attend_prompts(query, pool[0], pool[1], texts, scale=SIZE**-0.5)

    last = min(COMPARED, count)
    sees = torch.ones(last, tokens, dtype=torch.bool, device=card.device).tril(tokens - last)
    wanted = functional.scaled_dot_product_attention(
        query[-last:].transpose(0, 1)[None].float(),
        *(one.float() for one in wide),
        attn_mask=sees,
        scale=SIZE**-0.5,
    )[0].transpose(0, 1)
    error = float((ours()[-last:].float() - wanted).square().sum() / wanted.square().sum())
    operations = 4 * HEADS * SIZE * (count * (tokens - count) + count * (count + 1) / 2)
    what = f"{count:,} of {tokens:,} tokens"
    for by, call, off in (
        ("FlashAttention, PyTorch", theirs, None),
        ("Triton, pages", ours, error),
    ):
        seconds = card.seconds(call)
        yield Computed(what, by, seconds * 1e6, operations / seconds / 1e12, off)


def line(
    what: str, by: str, seconds: float, nbytes: int, peak: float, error: float | None = None
) -> Measured:
    """The line of a call that reads `nbytes`; copying reaches `peak` bytes per second."""
    rate = nbytes / seconds
    return Measured(what, by, seconds * 1e6, rate / 1e9, rate / peak, error)
