"""The operations around products and attention, each in one pass over memory: norms, rotary
positions, storing keys and values, the gate of a feed-forward, and the largest logits. All
arithmetic is float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hearth.kernels.cuda.codes import rounded, to_e4m3
from hearth.kernels.cuda.turns import take_turn


@triton.jit
def _keep_rounded(codes, scale, found, at, mask):
    """Store `found` float32, the inputs `at` of a row, as E4M3 with one scale, as
    `codes.rounding_kernel` does: codes in the order of `planes`. The scale is NaN if a number is
    not finite.
    """
    peak = tl.max(tl.abs(found), 0)
    tl.store(scale, peak / 448.0 + tl.sum(found - found, 0))
    some = found * tl.where(peak > 0, 448.0 / peak, 0.0)
    some = tl.where(some == some, some, 0.0)
    place = at & -128 | at >> 6 & 1 | (at & 1) << 1 | (at >> 1 & 31) << 2
    tl.store(codes + place, to_e4m3(some), mask=mask)


@triton.jit
def norm_kernel(
    hidden,
    added,
    weight,
    out,
    scales,
    eps,
    WIDTH: tl.constexpr,
    LANES: tl.constexpr,
    HAS_ADDED: tl.constexpr,
    ROUNDS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out = RMS norm of hidden, to which `added` is added first, in place. Programs are rows.

    hidden, added, out: [rows, WIDTH], contiguous; weight: [WIDTH] float32. With ROUNDS, `out` is
    bytes of E4M3 with `scales` [rows] float32.
    """
    at = tl.arange(0, LANES)
    mask = at < WIDTH
    factors = tl.load(weight + at, mask=mask, other=0)  # No preceding kernel writes them.
    take_turn(EARLY)
    place = tl.program_id(0).to(tl.int64) * WIDTH + at
    some = tl.load(hidden + place, mask=mask, other=0)
    if HAS_ADDED:
        more = tl.load(added + place, mask=mask, other=0)
        some = (some.to(tl.float32) + more.to(tl.float32)).to(some.dtype)
        tl.store(hidden + place, some, mask=mask)
    wide = some.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
    found = wide * factor * factors
    if ROUNDS:
        row = tl.program_id(0)
        _keep_rounded(out + row.to(tl.int64) * WIDTH, scales + row, found, at, mask)
    else:
        tl.store(out + place, found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _finish_head(
    places,
    weight,
    cosine,
    sine,
    eps,
    token,
    is_token,
    SIZE: tl.constexpr,
    TURNED: tl.constexpr,
    LANES: tl.constexpr,
    REST_LANES: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    """Norm and rotary positions of one head of the tokens `token` [n], at the addresses `places`
    [n], in place. A thread has both numbers of a pair, so no thread reads what another writes.
    """
    half: tl.constexpr = TURNED // 2
    pair, rest = tl.arange(0, LANES)[None, :], TURNED + tl.arange(0, REST_LANES)[None, :]
    is_pair, is_rest = is_token[:, None] & (pair < half), is_token[:, None] & (rest < SIZE)
    place = places[:, None]
    first = tl.load(place + pair, mask=is_pair, other=0).to(tl.float32)
    second = tl.load(place + half + pair, mask=is_pair, other=0).to(tl.float32)
    other = tl.load(place + rest, mask=is_rest, other=0).to(tl.float32)
    if HAS_NORMS:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(other * other, 1)
        factor = 1.0 / tl.sqrt(squares / SIZE + eps)[:, None]
        first = first * factor * tl.load(weight + pair, mask=pair < half, other=0)
        second = second * factor * tl.load(weight + half + pair, mask=pair < half, other=0)
        other = other * factor * tl.load(weight + rest, mask=rest < SIZE, other=0)
    about = token.to(tl.int64)[:, None] * TURNED + half + pair
    c = tl.load(cosine + about, mask=is_pair, other=0)
    s = tl.load(sine + about, mask=is_pair, other=0)
    number = places.dtype.element_ty
    tl.store(place + pair, (first * c - second * s).to(number), mask=is_pair)
    tl.store(place + half + pair, (second * c + first * s).to(number), mask=is_pair)
    tl.store(place + rest, other.to(number), mask=is_rest)


@triton.jit
def heads_kernel(
    heads,
    query_weight,
    key_weight,
    cosine,
    sine,
    eps,
    tokens,
    stride,
    QUERIES: tl.constexpr,
    SIZE: tl.constexpr,
    TURNED: tl.constexpr,
    LANES: tl.constexpr,
    REST_LANES: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    TOKENS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Norm and rotary positions of one head of TOKENS tokens, in place. Programs are (tokens,
    heads).

    heads: [tokens, heads, SIZE], tokens `stride` apart, the first QUERIES heads queries, the others
    keys; weights: [SIZE] float32; cosine, sine: [tokens, TURNED] float32, of which the second
    halves are used. The first TURNED numbers of a head are rotated.
    """
    take_turn(EARLY)
    token, head = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    weight = query_weight if head < QUERIES else key_weight
    is_token = token < tokens
    _finish_head(
        heads + token.to(tl.int64) * stride + head * SIZE,
        weight,
        cosine,
        sine,
        eps,
        token,
        is_token,
        SIZE,
        TURNED,
        LANES,
        REST_LANES,
        HAS_NORMS,
    )


@triton.jit
def _keep(
    rows,
    scales,
    places,
    new,
    is_token,
    most,
    KIND: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Store `new` [TOKENS, LANES] float32 in the rows that begin at `places` [TOKENS]."""
    at = tl.arange(0, LANES)[None, :]
    mask = is_token[:, None] & (at < SIZE)
    place = places[:, None]
    finite = tl.where(new == new, tl.minimum(tl.maximum(new, -most), most), 0.0)
    if KIND == "q8_0":
        runs = tl.reshape(finite, (TOKENS, LANES // 32, 32))
        scale = tl.max(tl.abs(runs), 2) / 127
        factor = tl.where(scale > 0, 1 / scale, 0.0)
        codes = tl.reshape(rounded(runs * factor[:, :, None]), (TOKENS, LANES))
        tl.store(rows + place + at, codes.to(tl.int8), mask=mask)
        run = tl.arange(0, LANES // 32)[None, :]
        is_run = is_token[:, None] & (run < SIZE // 32)
        tl.store(scales + place // 2 + run, scale.to(tl.float16), mask=is_run)
    elif KIND == "fp8":
        tl.store(rows + place + at, to_e4m3(finite), mask=mask)
    else:
        tl.store(rows + place + at, finite.to(rows.dtype.element_ty), mask=mask)


@triton.jit
def _keep_head(
    places,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    most,
    token,
    is_token,
    head,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Store one head of the tokens `token` [TOKENS], at the addresses `places`, in the pool. Heads
    are HEADS heads of keys, then as many of values.
    """
    at = tl.arange(0, LANES)[None, :]
    mask = is_token[:, None] & (at < SIZE)
    new = tl.load(places[:, None] + at, mask=mask, other=0).to(tl.float32)
    slot, own = tl.load(slots + token, mask=is_token, other=0), (head % HEADS).to(tl.int64)
    if head < HEADS:
        target = slot * key_slot_stride + own * key_head_stride
        _keep(keys, key_scales, target, new, is_token, most, KEYS, SIZE, LANES, TOKENS)
    else:
        target = slot * value_slot_stride + own * value_head_stride
        _keep(values, value_scales, target, new, is_token, most, VALUES, SIZE, LANES, TOKENS)


@triton.jit
def store_kernel(
    key_value,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    tokens,
    stride,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    most,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TOKENS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Store keys and values of new tokens as finite numbers. Programs are (TOKENS tokens, 2 ·
    HEADS).

    key_value: [tokens, 2, HEADS, SIZE], tokens `stride` apart; slots: [tokens] int64; keys, values:
    those of the pool, with rows and scales as in `decode_attention.attention_kernel`. Infinities
    become `most`, or the largest number of E4M3; NaN becomes 0.
    """
    take_turn(EARLY)
    token, head = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    _keep_head(
        key_value + token.to(tl.int64) * stride + head * SIZE,
        slots,
        keys,
        values,
        key_scales,
        value_scales,
        key_slot_stride,
        key_head_stride,
        value_slot_stride,
        value_head_stride,
        most,
        token,
        token < tokens,
        head,
        HEADS,
        SIZE,
        LANES,
        KEYS,
        VALUES,
        TOKENS,
    )


@triton.jit
def finish_and_store_kernel(
    heads,
    query_weight,
    key_weight,
    cosine,
    sine,
    eps,
    slots,
    keys,
    values,
    key_scales,
    value_scales,
    tokens,
    stride,
    key_slot_stride,
    key_head_stride,
    value_slot_stride,
    value_head_stride,
    most,
    QUERIES: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    TURNED: tl.constexpr,
    LANES: tl.constexpr,
    REST_LANES: tl.constexpr,
    HEAD_LANES: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TOKENS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """`heads_kernel` and `store_kernel` in one. Programs are (TOKENS tokens, QUERIES + 2 · HEADS).

    heads: [tokens, QUERIES + 2 · HEADS, SIZE], tokens `stride` apart: queries, keys, values.
    """
    take_turn(EARLY)
    token, head = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.program_id(1)
    is_token = token < tokens
    places = heads + token.to(tl.int64) * stride + head * SIZE
    if head < QUERIES + HEADS:
        weight = query_weight if head < QUERIES else key_weight
        _finish_head(
            places,
            weight,
            cosine,
            sine,
            eps,
            token,
            is_token,
            SIZE,
            TURNED,
            LANES,
            REST_LANES,
            HAS_NORMS,
        )
        tl.debug_barrier()  # Threads read what others wrote.
    if head >= QUERIES:
        _keep_head(
            places,
            slots,
            keys,
            values,
            key_scales,
            value_scales,
            key_slot_stride,
            key_head_stride,
            value_slot_stride,
            value_head_stride,
            most,
            token,
            is_token,
            head - QUERIES,
            HEADS,
            SIZE,
            HEAD_LANES,
            KEYS,
            VALUES,
            TOKENS,
        )


@triton.jit
def gate_kernel(both, out, width, stride, LANES: tl.constexpr, EARLY: tl.constexpr):
    """out = silu(gate) · up, of both: [rows, 2 · width], rows `stride` apart, gate before up.
    Programs are (rows, tiles of width).
    """
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * LANES + tl.arange(0, LANES)
    mask = at < width
    gate = tl.load(both + row * stride + at, mask=mask, other=0).to(tl.float32)
    up = tl.load(both + row * stride + width + at, mask=mask, other=0).to(tl.float32)
    found = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, found.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rounded_gate_kernel(
    both, out, scales, stride, WIDTH: tl.constexpr, LANES: tl.constexpr, EARLY: tl.constexpr
):
    """As `gate_kernel`, with `out` [rows, WIDTH] as bytes of E4M3 and `scales` [rows] float32.
    Programs are rows.
    """
    take_turn(EARLY)
    row = tl.program_id(0)
    at = tl.arange(0, LANES)
    mask = at < WIDTH
    places = both + row.to(tl.int64) * stride + at
    gate = tl.load(places, mask=mask, other=0).to(tl.float32)
    up = tl.load(places + WIDTH, mask=mask, other=0).to(tl.float32)
    found = gate / (1.0 + tl.exp(-gate)) * up
    _keep_rounded(out + row.to(tl.int64) * WIDTH, scales + row, found, at, mask)


@triton.jit
def peaks_kernel(
    logits, peaks, totals, bests, width, stride, parts, LANES: tl.constexpr, EARLY: tl.constexpr
):
    """For each LANES logits of a row: the largest, the sum of exp(logit - largest), and the index
    of the largest, the first of equal ones. Programs are (rows, parts).

    logits: [rows, width] float32, rows `stride` apart; peaks, totals: [rows, parts] float32; bests:
    [rows, parts] int32.
    """
    take_turn(EARLY)
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * LANES + tl.arange(0, LANES)
    some = tl.load(logits + row * stride + at, mask=at < width, other=-float("inf"))
    peak = tl.max(some, 0)
    base = tl.where(peak == -float("inf"), 0.0, peak)
    place = row * parts + part
    tl.store(peaks + place, peak)
    tl.store(totals + place, tl.sum(tl.exp(some - base), 0))
    tl.store(bests + place, tl.min(tl.where(some == peak, at, width - 1), 0))


@triton.jit
def row_peaks_kernel(
    peaks, totals, bests, out, parts, width, LANES: tl.constexpr, EARLY: tl.constexpr
):
    """out[rows, 3] float32: the results of `peaks_kernel` for the parts of each row, combined.
    Programs are rows.
    """
    take_turn(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, LANES)
    is_one = part < parts
    place = row * parts + part
    peak = tl.load(peaks + place, mask=is_one, other=-float("inf"))
    highest = tl.max(peak, 0)
    total = tl.load(totals + place, mask=is_one, other=0)
    best = tl.load(bests + place, mask=is_one, other=0)
    weight = tl.where(peak == -float("inf"), 0.0, tl.exp(peak - highest))
    tl.store(out + row * 3, highest)
    total = tl.sum(total * weight, 0)
    tl.store(out + row * 3 + 1, tl.where(highest == -float("inf"), float("nan"), total))
    best = tl.min(tl.where(is_one & (peak == highest), best, width - 1), 0)
    tl.store(out + row * 3 + 2, best.to(tl.float32))
