"""Attention over pages (KV blocks) on NVIDIA GPUs: of single tokens by `decode_attention.py`, and
of many tokens of a text (sequence) by `prompt_attention.py`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hearth.kernels.cuda.elementwise import sides_of
from hearth.kernels.cuda.launch import early, multiprocessors
from hearth.kernels.cuda.packings import CHUNK, MOST_PARTS

_TILE: Final = 64
_MOST_BYTES: Final = 512
"""Most bytes of a key unpacked to the query's dtype; longer ones would exceed the registers."""
_TILE_BYTES: Final = 16 << 10
"""Bytes of keys that a program reads at a time."""


_END_NUMBERS: Final = 8192
"""Numbers of partial sums that a program reads at a time to combine them."""
DEEP: Final = {"num_stages": 7, "AHEAD": True}
"""Options for programs that all run at once, two per multiprocessor: they read far ahead."""
SHALLOW: Final = {"num_stages": 2, "AHEAD": False}
"""Options for more programs, of which a multiprocessor runs as many as registers allow."""
ROOMY: Final = ((9, 0), (10, 0), (10, 3))
"""Compute capabilities of GPUs with shared memory for two `DEEP` programs."""
_EVERYTHING: Final = 1 << 30
"""A window that excludes nothing."""
_LEAST_ROWS: Final = 16
_DOUBLED: Final = 12
"""How often the length of chunks can double: enough for 33 million keys."""
_COUNTERS: Final = 1 << 16
"""Number of shared counters, one per token and KV head; larger steps allocate their own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The keys that each token of a step sees, on the GPU."""

    tables: Tensor
    """[tokens, most pages of a text] int32."""
    begins: Tensor
    """[tokens] int32: position of the first key that each token sees, from its first page."""
    ends: Tensor
    """[tokens] int32: position after the last key that each token sees."""
    most: int
    """Upper limit of the keys that one token sees; a larger limit changes no result."""


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
        keys: [pages, tokens of a page, kv_heads, row], the last dimension contiguous: a view of any
            layout. Rows are `size` numbers of the query's dtype or of float8_e4m3fn, or rows of
            Q8_0 (`elementwise.sides_of`).
        values: like `keys`; the type of rows may differ.
        softcap: scores are softcap · tanh(score / softcap); 0: they are not capped.
        sinks: [heads] float32: scores that count in the softmax but have no value.
        chunk: keys per program, for texts of up to MOST_PARTS chunks; it is doubled for longer
            texts, repeatedly if needed. Results of different chunks differ by rounding.

    Returns:
        [tokens, heads, size] of the query's dtype.
    """
    from hearth.kernels.cuda.decode_attention import attention_kernel

    tokens, heads, size = query.shape
    page, kv_heads = keys.shape[1:3]
    query = query if query.stride()[1:] == (size, 1) else query.contiguous()
    chunks = min(-(-seen.most // chunk), MOST_PARTS)
    out = query.new_empty((tokens, heads, size))
    # With one chunk nothing is combined, and these are not read.
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
        **decode_launch(query, tokens * kv_heads * chunks),
        num_warps=4,
        **early(query.device),
    )
    return out


@dataclass(frozen=True, slots=True)
class Texts:
    """The new tokens of several texts and the pages that they see, on the GPU."""

    tables: Tensor
    """[texts, most pages of a text] int32."""
    places: Tensor
    """[texts, 3] int32: first row of each text in the query, number of rows, and position of the
    first one, counted from the first page in its table."""
    blocks: Tensor
    """[blocks, 2] int32: see `blocks_of`."""
    rows: int
    """Rows of a program: see `block_rows`."""


def attend_prompts(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    texts: Texts,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of texts with several new tokens each, whose keys and values are in the pages: a
    token sees itself and the tokens before it. Arguments are those of `attend_decode`, and:

    Args:
        query: [tokens, heads, size]; the tokens of a text are consecutive.
        window: number of tokens that a token sees, including itself; None: all.

    Returns:
        [tokens, heads, size] of the query's dtype; rows that belong to no text are not written.
    """
    from hearth.kernels.cuda.prompt_attention import prompt_kernel

    tokens, heads, size = query.shape
    page, kv_heads = keys.shape[1:3]
    query = query if query.stride()[1:] == (size, 1) else query.contiguous()
    out = query.new_empty((tokens, heads, size))
    rows, scales, kinds = sides_of(keys, values, size)
    is_packed = set(kinds.values()) != {"plain"}
    shape = heads, kv_heads, size, page, texts.rows
    prompt_kernel[len(texts.blocks), kv_heads](
        query,
        *rows,
        *scales,
        texts.tables,
        texts.places,
        texts.blocks,
        out if sinks is None else sinks,
        out,
        scale,
        softcap,
        _EVERYTHING if window is None else window,
        query.stride(0),
        *keys.stride()[:3],
        *values.stride()[:3],
        texts.tables.stride(0),
        **prompt_constants(*shape, query.dtype, is_packed=is_packed),
        **kinds,
        HAS_CAP=softcap != 0.0,
        HAS_SINKS=sinks is not None,
        **prompt_launch(texts.rows, size, query.dtype, is_packed=is_packed),
        **early(query.device),
    )
    return out


def decode_launch(query: Tensor, programs: int) -> dict[str, Any]:
    """Options for `attention_kernel` with that many programs; they change no result."""
    is_deep = query.itemsize <= 2 and is_roomy(query.device)
    return DEEP if is_deep and programs <= 2 * multiprocessors(query.device) else SHALLOW


def is_roomy(device: torch.device) -> bool:
    """Whether the GPU is one of `ROOMY`."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in ROOMY


def block_rows(
    heads: int,
    kv_heads: int,
    size: int,
    most: int,
    dtype: torch.dtype,
    *,
    is_packed: bool = False,
    is_roomy: bool = False,
) -> int:
    """Rows of a program: some tokens times the heads that share keys, for texts with up to `most`
    new tokens. Programs of different sizes may round differently.

    Args:
        is_packed: keys or values are codes.
        is_roomy: the GPU is one of `ROOMY`.
    """
    shared, limit = heads // kv_heads, 128 if is_roomy else 64  # More would exceed the registers.
    if dtype == torch.float32:
        limit = _LEAST_ROWS
    elif is_packed:
        limit = 32
    elif _is_wide(size, dtype):
        limit = 64
    least = max(1 << (shared - 1).bit_length(), _LEAST_ROWS)  # Rows of one token.
    return max(min(1 << (most * shared - 1).bit_length(), limit), least)


def prompt_launch(rows: int, size: int, dtype: torch.dtype, *, is_packed: bool) -> dict[str, Any]:
    """Options for `prompt_kernel` with programs of `rows` rows."""
    has_room = not is_packed and not _is_wide(size, dtype)
    is_large = rows > 32 or size * dtype.itemsize > _MOST_BYTES
    return {"num_warps": 8 if is_large else 4, "num_stages": 5 if has_room else 3}


def _is_wide(size: int, dtype: torch.dtype) -> bool:
    return size * dtype.itemsize > _MOST_BYTES // 2


def blocks_of(
    counts: NDArray[np.int32], begins: NDArray[np.int32], tokens: int
) -> NDArray[np.int32]:
    """[blocks, 2]: the text of each block, and the index of its first token among the new tokens of
    the text. Blocks that see the most keys come first.

    Args:
        counts: number of new tokens of each text.
        begins: position of the first new token of each text.
        tokens: most tokens of a block.
    """
    blocks = [(text, at) for text, count in enumerate(counts) for at in range(0, count, tokens)]
    blocks.sort(key=lambda block: -(begins[block[0]] + block[1]))
    return np.array(blocks, np.int32)


def prompt_constants(
    heads: int,
    kv_heads: int,
    size: int,
    page: int,
    rows: int,
    dtype: torch.dtype,
    *,
    is_packed: bool,
) -> dict[str, Any]:
    """Compile-time constants of `prompt_kernel`."""
    width = max(16, 1 << (size - 1).bit_length())
    # Unpacking codes takes registers.
    tile_bytes = _TILE_BYTES // 2 if is_packed else _TILE_BYTES
    return {
        "HEADS": kv_heads,
        "SHARED": heads // kv_heads,
        "SIZE": size,
        "WIDTH": width,
        "PAGE": page,
        "ROWS": rows,
        "TILE": min(max(tile_bytes // (width * dtype.itemsize), 16), _TILE),
    }


@functools.cache
def _counters(device: torch.device) -> Tensor:
    """Zeros, which kernels reset to zero. CUDA graphs keep their address."""
    return torch.zeros(_COUNTERS, dtype=torch.int32, device=device)


def reads_packed(size: int, dtype: torch.dtype) -> bool:
    """Whether registers suffice for attention in `dtype` over keys and values of `size` numbers in
    E4M3 or Q8_0; they do not for more than 128 numbers in float32.
    """
    return size * dtype.itemsize <= _MOST_BYTES


def decode_constants(
    heads: int, kv_heads: int, size: int, page: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Compile-time constants of `attention_kernel` for a model and its pages."""
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
