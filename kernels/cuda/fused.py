"""What surrounds products and attention, in one pass over memory each: norms and positions of
heads, keeping keys and values, and the gate of a feed-forward. All arithmetic is float32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def heads_kernel(
    heads,
    query_weight,
    key_weight,
    cosine,
    sine,
    eps,
    stride,
    QUERIES: tl.constexpr,
    SIZE: tl.constexpr,
    TURNED: tl.constexpr,
    LANES: tl.constexpr,
    REST_LANES: tl.constexpr,
    HAS_NORMS: tl.constexpr,
):
    """Norm and rotary positions of one head, in place. Programs are (tokens, heads).

    heads: [tokens, heads, SIZE], tokens `stride` apart, the first QUERIES of them queries, the
    others keys; weights: [SIZE] float32; cosine, sine: [tokens, TURNED] float32, of which the
    second halves count. A thread has both numbers of a pair, so none reads what another writes.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    half: tl.constexpr = TURNED // 2
    pair, rest = tl.arange(0, LANES), TURNED + tl.arange(0, REST_LANES)
    is_pair, is_rest = pair < half, rest < SIZE
    place = heads + token.to(tl.int64) * stride + head * SIZE
    first = tl.load(place + pair, mask=is_pair, other=0).to(tl.float32)
    second = tl.load(place + half + pair, mask=is_pair, other=0).to(tl.float32)
    other = tl.load(place + rest, mask=is_rest, other=0).to(tl.float32)
    if HAS_NORMS:
        squares = tl.sum(first * first, 0) + tl.sum(second * second, 0) + tl.sum(other * other, 0)
        factor = 1.0 / tl.sqrt(squares / SIZE + eps)
        weight = query_weight if head < QUERIES else key_weight
        first = first * factor * tl.load(weight + pair, mask=is_pair, other=0)
        second = second * factor * tl.load(weight + half + pair, mask=is_pair, other=0)
        other = other * factor * tl.load(weight + rest, mask=is_rest, other=0)
    about = token.to(tl.int64) * TURNED + half + pair
    c = tl.load(cosine + about, mask=is_pair, other=0)
    s = tl.load(sine + about, mask=is_pair, other=0)
    number = heads.dtype.element_ty
    tl.store(place + pair, (first * c - second * s).to(number), mask=is_pair)
    tl.store(place + half + pair, (second * c + first * s).to(number), mask=is_pair)
    tl.store(place + rest, other.to(number), mask=is_rest)


@triton.jit
def store_kernel(
    key_value,
    slots,
    keys,
    values,
    stride,
    slot_stride,
    head_stride,
    most,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    LANES: tl.constexpr,
):
    """Keep keys and values of new tokens, finite. Programs are (tokens, 2 · HEADS).

    key_value: [tokens, 2, HEADS, SIZE], tokens `stride` apart; slots: [tokens] int64; keys, values:
    of the pool; infinities become `most`, NaN 0.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, LANES)
    mask = at < SIZE
    new = tl.load(key_value + token.to(tl.int64) * stride + head * SIZE + at, mask=mask, other=0)
    wide = new.to(tl.float32)
    finite = tl.where(wide == wide, tl.minimum(tl.maximum(wide, -most), most), 0.0)
    place = (head % HEADS).to(tl.int64) * head_stride + tl.load(slots + token) * slot_stride + at
    of_keys = tl.where(head < HEADS, SIZE, 0)
    tl.store(keys + place, finite.to(keys.dtype.element_ty), mask=at < of_keys)
    tl.store(values + place, finite.to(values.dtype.element_ty), mask=at < SIZE - of_keys)


@triton.jit
def gate_kernel(both, out, width, stride, LANES: tl.constexpr):
    """out = silu(gate) · up, of both: [rows, 2 · width], rows `stride` apart, gate before up.
    Programs are (rows, tiles of width).
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * LANES + tl.arange(0, LANES)
    mask = at < width
    gate = tl.load(both + row * stride + at, mask=mask, other=0).to(tl.float32)
    up = tl.load(both + row * stride + width + at, mask=mask, other=0).to(tl.float32)
    found = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + at, found.to(out.dtype.element_ty), mask=mask)
