"""Attention of single tokens over the paged KV cache. Keys are split into chunks among programs, so
that a long text (sequence) keeps the whole GPU busy; partial results are combined in order. A
token's result depends only on its own keys, and has the same bits every time.

The heads that share keys are the rows of one product, so that keys are read once for all of them
(arXiv 2305.13245; the split: Flash-Decoding, the sums: arXiv 2112.05682).
"""

from __future__ import annotations

import triton
import triton.language as tl

from hearth.kernels.cuda.codes import from_e4m3
from hearth.kernels.cuda.turns import take_turn


@triton.jit
def kept_numbers(
    rows,
    scales,
    offset,
    seen,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """[TILE, WIDTH]: the rows of the KV cache that begin at `offset`, as float32 if they are codes;
    0 where `seen` is false and beyond SIZE. Rows that are not seen are not read, because their
    content is undefined.
    """
    at = tl.arange(0, WIDTH)
    mask = seen[:, None] & (at < SIZE)[None, :]
    found = tl.load(rows + offset[:, None] + at[None, :], mask=mask, other=0)
    if KIND == "q8_0":
        run = tl.arange(0, WIDTH // 32)
        places = scales + offset[:, None] // 2 + run[None, :]
        scale = tl.load(places, mask=seen[:, None] & (run < SIZE // 32)[None, :], other=0)
        wide = tl.broadcast_to(scale.to(tl.float32)[:, :, None], (TILE, WIDTH // 32, 32))
        found = found.to(tl.float32) * tl.reshape(wide, (TILE, WIDTH))
    elif KIND == "fp8":
        found = from_e4m3(found.to(tl.int32))
    return found


@triton.jit
def _parts_of(
    sums,
    peaks,
    row,
    is_head,
    chunks,
    needed,
    tile,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Load PARTS partial results of heads: values [heads, parts, WIDTH], largest scores and sums of
    exponentials [heads, parts], and a mask of those that exist.
    """
    parts, at = tile * PARTS + tl.arange(0, PARTS), tl.arange(0, WIDTH)
    mask = is_head[:, None] & (parts < needed)[None, :]
    place = row[:, None] * chunks + parts[None, :]
    some = tl.load(
        sums + place[:, :, None] * SIZE + at[None, None, :],
        mask=mask[:, :, None] & (at < SIZE)[None, None, :],
        other=0,
        cache_modifier=".cg",
    )
    high = tl.load(peaks + place * 2, mask=mask, other=-1e30, cache_modifier=".cg")
    total = tl.load(peaks + place * 2 + 1, mask=mask, other=0, cache_modifier=".cg")
    return some, high, total, mask


@triton.jit
def _put_together(
    sums,
    peaks,
    sinks,
    out,
    first,
    first_head,
    chunks,
    needed,
    SHARED: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    PARTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Combine the `needed` partial results of SHARED heads, the rows from `first`, and store the
    result. Each thread adds up all parts of its own numbers, without waiting for others. AHEAD:
    parts are loaded while the ones before are added up, which takes registers.
    """
    one, at = tl.arange(0, TOGETHER), tl.arange(0, WIDTH)
    row, is_head = first + one, one < SHARED
    highest = tl.full((TOGETHER,), -1e30, dtype=tl.float32)
    whole = tl.zeros((TOGETHER,), dtype=tl.float32)
    result = tl.zeros((TOGETHER, WIDTH), dtype=tl.float32)
    some, high, total, mask = _parts_of(
        sums, peaks, row, is_head, chunks, needed, 0, SIZE, WIDTH, PARTS
    )
    for tile in tl.static_range(MOST_PARTS // PARTS):
        if tile > 0 and not AHEAD:
            some, high, total, mask = _parts_of(
                sums, peaks, row, is_head, chunks, needed, tile, SIZE, WIDTH, PARTS
            )
        if AHEAD and tile + 1 < MOST_PARTS // PARTS:
            next_some, next_high, next_total, next_mask = _parts_of(
                sums, peaks, row, is_head, chunks, needed, tile + 1, SIZE, WIDTH, PARTS
            )
        higher = tl.maximum(highest, tl.max(high, 1))
        before = tl.exp(highest - higher)
        share = tl.where(mask, tl.exp(high - higher[:, None]), 0.0)
        whole = whole * before + tl.sum(total * share, 1)
        result = result * before[:, None] + tl.sum(some * share[:, :, None], 1)
        highest = higher
        if AHEAD and tile + 1 < MOST_PARTS // PARTS:
            some, high, total, mask = next_some, next_high, next_total, next_mask
    if HAS_SINKS:
        sink = tl.load(sinks + first_head + one, mask=is_head, other=0).to(tl.float32)
        higher = tl.maximum(highest, sink)
        before = tl.exp(highest - higher)
        result = result * before[:, None]
        whole = whole * before + tl.exp(sink - higher)
    result = result / tl.where(is_head, whole, 1.0)[:, None]
    targets = out + row[:, None] * SIZE + at[None, :]
    tl.store(targets, result.to(out.dtype.element_ty), mask=is_head[:, None] & (at < SIZE)[None, :])


@triton.jit
def attention_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    tables,
    begins,
    ends,
    sinks,
    sums,
    peaks,
    counters,
    out,
    scale,
    softcap,
    query_stride,
    key_page_stride,
    key_token_stride,
    key_head_stride,
    value_page_stride,
    value_token_stride,
    value_head_stride,
    table_stride,
    chunk,
    chunks,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    LANES: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    PARTS: tl.constexpr,
    TOGETHER: tl.constexpr,
    AHEAD: tl.constexpr,
    DOUBLED: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out[tokens, HEADS · SHARED, SIZE]: each token's attention over its own keys. Programs are
    (tokens, KV heads, chunks); the last program of a head to finish combines the partial results.

    query: [tokens, HEADS · SHARED, SIZE]. keys, values: pages with the given strides. KEYS and
    VALUES are the type of their rows: "plain": numbers of the query's dtype; "fp8": bytes of E4M3;
    "q8_0": int8 codes followed by a float16 scale for each 32, where key_scales and value_scales
    point to the scales of the first row (`elementwise.sides_of`). tables: [tokens, pages of a text]
    int32. begins, ends: [tokens] int32, the position of the first key that a token sees and the one
    after the last, counted from its first page. sinks: [HEADS · SHARED] float32, scores without a
    value. A chunk has `chunk` keys; for a text that would have more than MOST_PARTS chunks, `chunk`
    is doubled, up to DOUBLED times. If there is more than one chunk: sums: [tokens, HEADS · SHARED,
    chunks, SIZE] and peaks: [tokens, HEADS · SHARED, chunks, 2] (largest score, sum of
    exponentials), both float32 and not written for chunks without keys; counters: [tokens, HEADS]
    int32, zero before and after.
    """
    take_turn(EARLY)
    token, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin, end = tl.load(begins + token), tl.load(ends + token)
    for _ in tl.static_range(DOUBLED):  # Longer chunks for long texts.
        chunk = tl.where(end - begin > chunk * MOST_PARTS, 2 * chunk, chunk)
    first = begin + part * chunk
    if first >= end:
        return
    last = tl.minimum(first + chunk, end)
    lane, at = tl.arange(0, LANES), tl.arange(0, WIDTH)
    line = token.to(tl.int64) * HEADS * SHARED + head * SHARED + lane
    is_lane = (lane < SHARED)[:, None] & (at < SIZE)[None, :]
    places = query + token.to(tl.int64) * query_stride + (head * SHARED + lane)[:, None] * SIZE
    q = tl.load(places + at[None, :], mask=is_lane, other=0)
    peak = tl.full((LANES,), -1e30, dtype=tl.float32)
    total = tl.zeros((LANES,), dtype=tl.float32)
    found = tl.zeros((LANES, WIDTH), dtype=tl.float32)
    for start in range(first, last, TILE):
        place = start + tl.arange(0, TILE)
        seen = place < last
        page = tl.load(tables + token.to(tl.int64) * table_stride + place // PAGE, seen, other=0)
        page, inner = page.to(tl.int64), place % PAGE
        offset = page * key_page_stride + inner * key_token_stride
        offset += head.to(tl.int64) * key_head_stride
        key = kept_numbers(keys, key_scales, offset, seen, KEYS, SIZE, WIDTH, TILE).to(q.dtype)
        offset = page * value_page_stride + inner * value_token_stride
        offset += head.to(tl.int64) * value_head_stride
        value = kept_numbers(values, value_scales, offset, seen, VALUES, SIZE, WIDTH, TILE).to(
            q.dtype
        )
        score = tl.dot(q, tl.trans(key), input_precision="tf32x3") * scale
        if HAS_CAP:
            score = softcap * (1.0 - 2.0 / (tl.exp(2.0 * score / softcap) + 1.0))
        score = tl.where(seen[None, :], score, -1e30)
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.where(seen[None, :], tl.exp(score - higher[:, None]), 0.0)
        before = tl.exp(peak - higher)
        total = total * before + tl.sum(weight, 1)
        found = tl.dot(
            weight.to(value.dtype), value, found * before[:, None], input_precision="tf32x3"
        )
        peak = higher
    needed = (end - begin + chunk - 1) // chunk
    if needed > 1:
        place = line * chunks + part
        tl.store(sums + place[:, None] * SIZE + at[None, :], found, mask=is_lane)
        tl.store(peaks + place * 2, peak, mask=lane < SHARED)
        tl.store(peaks + place * 2 + 1, total, mask=lane < SHARED)
        tl.debug_barrier()
        counter = counters + token * HEADS + head
        done = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        if done < needed - 1:
            return
        tl.store(counter, 0)
        _put_together(
            sums,
            peaks,
            sinks,
            out,
            token.to(tl.int64) * HEADS * SHARED + head * SHARED,
            head * SHARED,
            chunks,
            needed,
            SHARED,
            SIZE,
            WIDTH,
            HAS_SINKS,
            MOST_PARTS,
            PARTS,
            TOGETHER,
            AHEAD,
        )
    else:
        if HAS_SINKS:
            sink = tl.load(sinks + head * SHARED + lane, mask=lane < SHARED, other=0).to(tl.float32)
            higher = tl.maximum(peak, sink)
            before = tl.exp(peak - higher)
            found = found * before[:, None]
            total = total * before + tl.exp(sink - higher)
        found = found / tl.where(lane < SHARED, total, 1.0)[:, None]
        targets = out + line[:, None] * SIZE + at[None, :]
        tl.store(targets, found.to(out.dtype.element_ty), mask=is_lane)
