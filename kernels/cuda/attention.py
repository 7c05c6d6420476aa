"""Attention of single tokens over pages on NVIDIA cards, by `decode_attention.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from hearth.kernels.cuda.elementwise import sides_of
from hearth.kernels.cuda.packings import CHUNK

_TILE: Final = 32
_MOST_BYTES: Final = 512
"""Of a key in the query's dtype with which a program reads 32 at a time; of longer ones 16."""


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
        chunk: keys of a program. Results of different chunks differ by rounding.

    Returns:
        [tokens, heads, size] of the query's dtype.
    """
    from hearth.kernels.cuda.decode_attention import chunk_kernel, join_kernel

    tokens, heads, size = query.shape
    page, kv_heads = keys.shape[1:3]
    query = query if query.stride()[1:] == (size, 1) else query.contiguous()
    chunks = -(-seen.most // chunk)
    partial = query.new_empty((tokens, heads, chunks, size + 2), dtype=torch.float32).flatten()
    sums, peaks = (
        partial[: tokens * heads * chunks * size],
        partial[tokens * heads * chunks * size :],
    )
    out = query.new_empty((tokens, heads, size))
    fixed = decode_constants(heads, kv_heads, size, page, query.dtype)
    rows, scales, kinds = sides_of(keys, values, size)
    shared: dict[str, Any] = {"SIZE": size, "WIDTH": fixed["WIDTH"]}
    chunk_kernel[tokens, kv_heads, chunks](
        query,
        *rows,
        *scales,
        seen.tables,
        seen.begins,
        seen.ends,
        sums,
        peaks,
        scale,
        softcap,
        query.stride(0),
        *keys.stride()[:3],
        *values.stride()[:3],
        seen.tables.stride(0),
        chunk,
        chunks,
        **fixed,
        **kinds,
        HAS_CAP=softcap != 0.0,
        num_warps=4,
        num_stages=2,
    )
    join_kernel[tokens, heads](
        sums,
        peaks,
        seen.begins,
        seen.ends,
        peaks if sinks is None else sinks,
        out,
        chunk,
        chunks,
        HEADS=heads,
        HAS_SINKS=sinks is not None,
        **shared,
        num_warps=1,
    )
    return out


def reads_packed(size: int, dtype: torch.dtype) -> bool:
    """Whether there are registers for attention in `dtype` over keys and values of `size` numbers
    in E4M3 or Q8_0: not in float32 over 256 numbers.
    """
    return size * dtype.itemsize <= _MOST_BYTES


def decode_constants(
    heads: int, kv_heads: int, size: int, page: int, dtype: torch.dtype
) -> dict[str, Any]:
    """What `chunk_kernel` is compiled for, of a model and its pages."""
    shared = heads // kv_heads
    width = max(16, 1 << (size - 1).bit_length())
    return {
        "HEADS": kv_heads,
        "SHARED": shared,
        "LANES": max(16, 1 << (shared - 1).bit_length()),
        "SIZE": size,
        "WIDTH": width,
        "PAGE": page,
        "TILE": _TILE if width * dtype.itemsize <= _MOST_BYTES else _TILE // 2,
    }
