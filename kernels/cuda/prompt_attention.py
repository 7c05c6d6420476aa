"""Attention of many tokens of a text (sequence) over the paged KV cache, for prefill and for
verifying drafts.

A program has some consecutive tokens, times all heads that share keys, as the rows of one product;
sums are kept as in FlashAttention (arXiv 2205.14135). Tiles of keys are counted from the first
page, so that a token's result depends only on its own keys, not on how a prompt is split or on what
else is computed.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hearth.kernels.cuda.decode_attention import kept_numbers
from hearth.kernels.cuda.turns import take_turn


@triton.jit
def _with_keys(
    q,
    peak,
    total,
    found,
    row_place,
    first,
    last,
    lowest,
    known,
    window,
    keys,
    values,
    key_scales,
    value_scales,
    table,
    key_offset,
    value_offset,
    key_page_stride,
    key_token_stride,
    value_page_stride,
    value_token_stride,
    scale,
    softcap,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    IS_EDGE: tl.constexpr,
):
    """Update the largest score, the sum of exponentials to base 2 and the weighted values with the
    keys at positions `first` to `last`, in whole tiles. IS_EDGE: some rows do not see all of these
    keys. Positions before `lowest` and from `known` are not read.
    """
    for start in range(first, last, TILE):
        place = start + tl.arange(0, TILE)
        seen = (place >= lowest) & (place < known)
        page = tl.load(table + place // PAGE, seen, other=0).to(tl.int64)
        inner = place % PAGE
        offset = page * key_page_stride + inner * key_token_stride + key_offset
        key = kept_numbers(keys, key_scales, offset, seen, KEYS, SIZE, WIDTH, TILE).to(q.dtype)
        offset = page * value_page_stride + inner * value_token_stride + value_offset
        value = kept_numbers(values, value_scales, offset, seen, VALUES, SIZE, WIDTH, TILE)
        value = value.to(q.dtype)
        score = tl.dot(q, tl.trans(key), input_precision="tf32x3")
        if HAS_CAP:
            score = score * (scale / softcap)
            score = softcap * 1.4426950408889634 * (1.0 - 2.0 / (tl.exp(2.0 * score) + 1.0))
        else:
            score = score * (scale * 1.4426950408889634)
        if IS_EDGE:
            ahead = row_place[:, None] - place[None, :]
            sees = (ahead >= 0) & (ahead < window)
            score = tl.where(sees, score, -1e30)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        if IS_EDGE:
            weight = tl.where(sees, weight, 0.0)
        before = tl.exp2(peak - higher)
        total = total * before + tl.sum(weight, 1)
        found = tl.dot(
            weight.to(value.dtype), value, found * before[:, None], input_precision="tf32x3"
        )
        peak = higher
    return peak, total, found


@triton.jit
def prompt_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    texts,
    blocks,
    sinks,
    out,
    scale,
    softcap,
    window,
    query_stride,
    key_page_stride,
    key_token_stride,
    key_head_stride,
    value_page_stride,
    value_token_stride,
    value_head_stride,
    table_stride,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out[tokens, HEADS · SHARED, SIZE]: attention of texts whose new tokens are consecutive rows.
    Programs are (blocks, KV heads); a block is up to ROWS / SHARED tokens of a text.

    query, keys, values, their scales, KEYS and VALUES: as in `attention_kernel`. tables: [texts,
    pages of a text] int32. texts: [texts, 3] int32: first row of a text, number of rows, and
    position of the first one, counted from the first page in its table. blocks: [blocks, 2] int32:
    the text of a block, and the index of the block's first token among its new tokens. sinks:
    [HEADS · SHARED] float32. window: keys that a token sees, including its own.
    """
    take_turn(EARLY)
    block, head = tl.program_id(0), tl.program_id(1)
    text, token = tl.load(blocks + 2 * block), tl.load(blocks + 2 * block + 1)
    first_row, count = tl.load(texts + 3 * text), tl.load(texts + 3 * text + 1)
    begin = tl.load(texts + 3 * text + 2)
    row, at = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    of_token, of_head = token + row // SHARED, head * SHARED + row % SHARED
    is_row = (row < ROWS // SHARED * SHARED) & (of_token < count)
    is_number = is_row[:, None] & (at < SIZE)[None, :]
    line = (first_row + of_token).to(tl.int64)
    places = query + line * query_stride + of_head * SIZE
    q = tl.load(places[:, None] + at[None, :], mask=is_number, other=0)
    row_place = begin + of_token
    peak = tl.full((ROWS,), -1e30, dtype=tl.float32)
    total = tl.zeros((ROWS,), dtype=tl.float32)
    found = tl.zeros((ROWS, WIDTH), dtype=tl.float32)
    nearest = begin + token
    furthest = begin + tl.minimum(token + ROWS // SHARED, count) - 1
    # The range of keys that some rows see, and within it, in whole tiles, that all rows see.
    lowest = tl.maximum(nearest + 1 - window, 0)
    first = lowest // TILE * TILE
    all_first = (tl.maximum(furthest + 1 - window, 0) + TILE - 1) // TILE * TILE
    all_last = (nearest + 1) // TILE * TILE
    all_first = tl.minimum(all_first, furthest + 1)
    all_last = tl.maximum(all_last, all_first)
    table = tables + text.to(tl.int64) * table_stride
    key_offset = head.to(tl.int64) * key_head_stride
    value_offset = head.to(tl.int64) * value_head_stride
    for part in tl.static_range(3):
        lower = first if part == 0 else all_first if part == 1 else all_last
        upper = all_first if part == 0 else all_last if part == 1 else furthest + 1
        peak, total, found = _with_keys(
            q,
            peak,
            total,
            found,
            row_place,
            lower,
            upper,
            lowest,
            furthest + 1,
            window,
            keys,
            values,
            key_scales,
            value_scales,
            table,
            key_offset,
            value_offset,
            key_page_stride,
            key_token_stride,
            value_page_stride,
            value_token_stride,
            scale,
            softcap,
            SIZE,
            WIDTH,
            PAGE,
            TILE,
            HAS_CAP,
            KEYS,
            VALUES,
            part != 1,
        )
    if HAS_SINKS:
        sink = tl.load(sinks + of_head, mask=is_row, other=0).to(tl.float32) * 1.4426950408889634
        higher = tl.maximum(peak, sink)
        before = tl.exp2(peak - higher)
        found = found * before[:, None]
        total = total * before + tl.exp2(sink - higher)
    found = found / tl.where(is_row, total, 1.0)[:, None]
    targets = out + (line * HEADS * SHARED + of_head) * SIZE
    tl.store(targets[:, None] + at[None, :], found.to(out.dtype.element_ty), mask=is_number)
