"""Attention of single tokens over pages on NVIDIA cards, by `decode_attention.py`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from hearth.kernels.cuda.elementwise import sides_of
from hearth.kernels.cuda.launch import early
from hearth.kernels.cuda.packings import CHUNK, MOST_PARTS

_TILE: Final = 64
_MOST_BYTES: Final = 512
"""Of a key in the query's dtype that codes are unpacked to: for longer ones there are no registers.
"""
_TILE_BYTES: Final = 16 << 10
"""Of the keys that a program reads at a time."""


_END_NUMBERS: Final = 8192
"""Of the sums of parts that a program reads at a time to put them together."""
_WARPS: Final = 4
_STAGES: Final = 2
_DOUBLED: Final = 12
"""Times that chunks are twice as long: enough for 33 million keys."""
_COUNTERS: Final = 1 << 16
"""Tokens times heads of keys that have a counter without taking memory for it."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What tokens see of pages, on the card."""

    tables: Tensor
    """[tokens, most pages of a text] int32."""
    begins: Tensor
    """[tokens] int32: the place of the first key that each sees, from its first page on."""
    ends: Tensor
    """[tokens] int32: the place behind the last."""
    most: int
    """Keys that one of them sees, at most: it may be more than there are, and changes no result."""


def attend_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    seen: Seen,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Each token's attention over its own text.

    Args:
        query: [tokens, heads, size], contiguous heads, float16, bfloat16 or float32.
        keys: [pages, tokens of a page, kv_heads, row], the last contiguous: a view of any layout.
            Rows are `size` numbers of the query's dtype or of float8_e4m3fn, or those of Q8_0
            (`elementwise.sides_of`).
        values: likewise, perhaps with other rows.
        softcap: scores are softcap · tanh(score / softcap); 0: they are not capped.
        sinks: [heads] float32: scores that take their share and have no value.
        chunk: keys of a program, of texts with up to MOST_PARTS of them; longer ones have twice as
            many, and so on. Results of different chunks differ by rounding.

    Returns:
        [tokens, heads, size] of the query's dtype.
    """
    from hearth.kernels.cuda.decode_attention import attention_kernel

    tokens, heads, size = query.shape
    page, kv_heads = keys.shape[1:3]
    query = query if query.stride()[1:] == (size, 1) else query.contiguous()
    chunks = min(-(-seen.most // chunk), MOST_PARTS)
    out = query.new_empty((tokens, heads, size))
    # With one chunk nothing is put together, and these are not read.
    sums = peaks = counters = out
    if chunks > 1:
        shape = (tokens, heads, chunks)
        sums, peaks = (query.new_empty((*shape, n), dtype=torch.float32) for n in (size, 2))
        counters = _counters(query.device)
        if counters.numel() < tokens * kv_heads:
            counters = query.new_zeros((tokens, kv_heads), dtype=torch.int32)
    rows, scales, kinds = sides_of(keys, values, size)
    attention_kernel[tokens, kv_heads, chunks](
        query,
        *rows,
        *scales,
        seen.tables,
        seen.begins,
        seen.ends,
        out if sinks is None else sinks,
        sums,
        peaks,
        counters,
        out,
        scale,
        softcap,
        query.stride(0),
        *keys.stride()[:3],
        *values.stride()[:3],
        seen.tables.stride(0),
        chunk,
        chunks,
        **decode_constants(heads, kv_heads, size, page, query.dtype),
        **kinds,
        HAS_CAP=softcap != 0.0,
        HAS_SINKS=sinks is not None,
        num_warps=_WARPS,
        num_stages=_STAGES,
        **early(query.device),
    )
    return out


@functools.cache
def _counters(device: torch.device) -> Tensor:
    """Zeros, as kernels leave them; graphs know their address."""
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


def reads_packed(size: int, dtype: torch.dtype) -> bool:
    """Whether there are registers for attention in `dtype` over keys and values of `size` numbers
    in E4M3 or Q8_0: not in float32 over 256 numbers.
    """
    return size * dtype.itemsize <= _MOST_BYTES


def decode_constants(
    heads: int, kv_heads: int, size: int, page: int, dtype: torch.dtype
) -> dict[str, Any]:
    """What `attention_kernel` is compiled for, of a model and its pages."""
    shared = heads // kv_heads
    width = max(16, 1 << (size - 1).bit_length())
    together = 1 << (shared - 1).bit_length()
    return {
        "HEADS": kv_heads,
        "SHARED": shared,
        "LANES": max(16, 1 << (shared - 1).bit_length()),
        "SIZE": size,
        "WIDTH": width,
        "PAGE": page,
        "TILE": min(max(_TILE_BYTES // (width * dtype.itemsize), 16), _TILE),
        "MOST_PARTS": MOST_PARTS,
        "PARTS": min(max(_END_NUMBERS // (together * width), 1), MOST_PARTS),
        "TOGETHER": together,
        "DOUBLED": _DOUBLED,
    }
