"""Products with packed matrices. A program unpacks tiles of weights in registers and multiplies
them by the tensor cores of the card; sums are float32.

Up to 16 rows the time is that of reading the weights, so the inputs are split among programs until
the card has enough of them. Partial sums are added in one order by whichever program comes last,
and how inputs are split depends on the matrix alone: a row has the same bits whatever other rows
there are, every time.
"""

# Arguments are pointers and numbers of Triton's own types, which annotations cannot say.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _whole(q):
    """Numbers of less than 23 bits as float32, without a conversion, which takes four times as long
    as other instructions."""
    return (q | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _bits_of(plane, rows, seen, k, K, BITS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """[BN, BK] int32 of a plane of words that hold BITS of each input."""
    each: tl.constexpr = 32 // BITS
    word = k // each + tl.arange(0, BK // each)
    width = K // each
    places = plane + rows[:, None] * width + word[None, :]
    words = tl.load(places, mask=seen[:, None] & (word < width)[None, :], other=0)
    shifts = tl.arange(0, each) * BITS
    mask: tl.constexpr = (1 << BITS) - 1
    return tl.reshape((words[:, :, None] >> shifts[None, None, :]) & mask, (BN, BK))


@triton.jit
def _of_groups(plane, rows, seen, k, N, groups, GROUP: tl.constexpr, BK: tl.constexpr):
    """[BN, groups of the tile] of a plane [groups, N]; one column where a group is longer."""
    if GROUP >= BK:
        found = tl.load(plane + (k // GROUP) * N + rows, mask=seen, other=0)[:, None]
    else:
        group = k // GROUP + tl.arange(0, BK // GROUP)
        mask = seen[:, None] & (group < groups)[None, :]
        found = tl.load(plane + group[None, :] * N + rows[:, None], mask=mask, other=0)
    return found


@triton.jit
def _spread(of_groups, GROUP: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """[BN, BK] of what `_of_groups` gives."""
    if GROUP >= BK:
        found = tl.broadcast_to(of_groups, (BN, BK))
    else:
        wide = tl.broadcast_to(of_groups[:, :, None], (BN, BK // GROUP, GROUP))
        found = tl.reshape(wide, (BN, BK))
    return found


@triton.jit
def _power_of_two(exponent):
    """Half of 2 ** (exponent - 127), by the bits of a float32; the two lowest are subnormal."""
    small = tl.where(exponent == 0, 0x00200000, 0x00400000)
    bits = tl.where(exponent < 2, small, (exponent - 1) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def weights(
    codes,
    high,
    scales,
    zeros,
    supers,
    book,
    rows,
    seen,
    k,
    N,
    K,
    groups,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """[BN, BK] float32: the weights of `rows` from input `k` on; 0 where `seen` is false, finite
    beyond the last input. The scale of "row" is left to the caller.
    """
    if BITS == 8:
        at = k + tl.arange(0, BK)
        mask = seen[:, None] & (at < K)[None, :]
        q = tl.load(codes + rows[:, None] * K + at[None, :], mask=mask, other=0).to(tl.int32)
    else:
        q = _bits_of(codes, rows, seen, k, K, 4, BN, BK)
        if BITS > 4:
            q = q | (_bits_of(high, rows, seen, k, K, BITS - 4, BN, BK) << 4)
    if VALUE == "fp8":
        half = ((q & 0x80) << 8 | (q & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True)
        value = half.to(tl.float32) * 256.0
    elif VALUE == "e2m1":
        # Doubled, as GGUF has them.
        half = ((q & 8) << 12 | (q & 7) << 9).to(tl.int16).to(tl.float16, bitcast=True)
        value = half.to(tl.float32) * 32768.0
    elif VALUE == "nf4":
        value = tl.load(book + q)
    elif SCALE == "k":
        value = _whole(q)
    elif HAS_ZEROS and GROUP > 0:
        zero = _of_groups(zeros, rows, seen, k, N, groups, GROUP, BK).to(tl.int32)
        value = _whole(q) - _spread(_whole(zero), GROUP, BN, BK)
    elif HAS_ZEROS:
        value = _whole(q) - _whole(tl.load(zeros + rows, mask=seen, other=0).to(tl.int32))[:, None]
    else:
        value = _whole(q) - ZERO
    if SCALE == "group":
        scale = _of_groups(scales, rows, seen, k, N, groups, GROUP, BK).to(tl.float32)
        value = value * _spread(scale, GROUP, BN, BK)
    elif SCALE == "e8m0":
        exponent = _of_groups(scales, rows, seen, k, N, groups, GROUP, BK).to(tl.int32)
        value = value * _spread(_power_of_two(exponent), GROUP, BN, BK)
    elif SCALE == "k6":
        factor = tl.load(supers + (k // 256) * N + rows, mask=seen, other=0).to(tl.float32)
        scale = _of_groups(scales, rows, seen, k, N, groups, GROUP, BK).to(tl.float32)
        value = value * _spread(scale * factor[:, None], GROUP, BN, BK)
    elif SCALE == "k":
        at = supers + (k // 256) * 2 * N + rows
        factor = tl.load(at, mask=seen, other=0).to(tl.float32)
        scale = _whole(_of_groups(scales, rows, seen, k, N, groups, GROUP, BK).to(tl.int32))
        value = value * _spread(scale * factor[:, None], GROUP, BN, BK)
        factor = tl.load(at + N, mask=seen, other=0).to(tl.float32)
        least = _whole(_of_groups(zeros, rows, seen, k, N, groups, GROUP, BK).to(tl.int32))
        value = value - _spread(least * factor[:, None], GROUP, BN, BK)
    return value


@triton.jit
def product_kernel(
    x,
    codes,
    high,
    scales,
    zeros,
    supers,
    book,
    out,
    partial,
    counters,
    offsets,
    M,
    N,
    K,
    x_stride,
    out_stride,
    groups,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUP: tl.constexpr,
    SPLIT: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERT_LANES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out[M, N] = x[M, K] · weightsᵀ.

    Programs are (tiles of N, tiles of M, SPLIT). With SPLIT > 1: `partial` is [SPLIT, M, N]
    float32, and `counters` [tiles of N] int32 of zeros, as they are left. With EXPERTS > 0 the
    planes are those of as many matrices, rows from offsets[e] to offsets[e + 1] are for matrix e,
    and tiles of M as many as there can be at most: M / BM, and one more for each matrix.
    """
    tile_n, tile_m, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if EXPERTS > 0:
        each = tl.arange(0, EXPERT_LANES)
        is_one = each < EXPERTS
        begins = tl.load(offsets + each, mask=is_one, other=0)
        ends = tl.load(offsets + each + 1, mask=is_one, other=0)
        tiles = (ends - begins + BM - 1) // BM
        last_tiles = tl.cumsum(tiles, 0)
        expert = tl.sum((last_tiles <= tile_m).to(tl.int32), 0)
        if expert >= EXPERTS:
            return
        before = tl.sum(tl.where(each == expert, last_tiles - tiles, 0), 0)
        first_row = tl.load(offsets + expert) + (tile_m - before) * BM
        end_row = tl.load(offsets + expert + 1)
        number = expert.to(tl.int64)
        if BITS == 8:
            codes += number * N * K
        else:
            codes += number * N * (K // 8)
        if BITS == 5 or BITS == 6:
            high += number * N * (K // (32 // (BITS - 4)))
        scales += number * groups * N
        if HAS_ZEROS:
            zeros += number * groups * N
        if SCALE == "k":
            supers += number * (K // 256) * 2 * N
        elif SCALE == "k6":
            supers += number * (K // 256) * N
    else:
        first_row = tile_m.to(tl.int64) * BM
        end_row = M
    row = first_row + tl.arange(0, BM)
    column = tile_n * BN + tl.arange(0, BN)
    is_row, is_column = row < end_row, column < N
    wide = column.to(tl.int64)
    steps = (K + BK - 1) // BK
    length = (steps + SPLIT - 1) // SPLIT
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for step in range(part * length, tl.minimum(part * length + length, steps)):
        k = step * BK
        at = k + tl.arange(0, BK)
        places = x + row[:, None] * x_stride + at[None, :]
        some = tl.load(places, mask=is_row[:, None] & (at < K)[None, :], other=0)
        weight = weights(
            codes, high, scales, zeros, supers, book, wide, is_column, k, N, K, groups,
            VALUE, SCALE, BITS, ZERO, HAS_ZEROS, GROUP, BN, BK,
        )  # fmt: skip
        # tf32x3: three products of tensor cores, which give what float32 gives.
        total = tl.dot(some, tl.trans(weight.to(some.dtype)), total, input_precision="tf32x3")
    is_here = is_row[:, None] & is_column[None, :]
    if SPLIT > 1:
        places = partial + row[:, None] * N + column[None, :]
        tl.store(places + part * M * N, total, mask=is_here)
        tl.debug_barrier()
        done = tl.atomic_add(counters + tile_n, 1, sem="acq_rel", scope="gpu")
        if done < SPLIT - 1:
            return
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for one in range(SPLIT):
            total += tl.load(places + one * M * N, mask=is_here, other=0, cache_modifier=".cg")
        tl.store(counters + tile_n, 0)
    if SCALE == "row":
        total = total * tl.load(scales + wide, mask=is_column, other=0).to(tl.float32)[None, :]
    places = out + row.to(tl.int64)[:, None] * out_stride + column[None, :]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_here)


@triton.jit
def rows_kernel(
    ids,
    codes,
    high,
    scales,
    zeros,
    supers,
    book,
    out,
    count,
    N,
    K,
    groups,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUP: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out[count, K]: the rows `ids` of a matrix. Programs are (tiles of count, tiles of K)."""
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    seen = line < count
    row = tl.load(ids + line, mask=seen, other=0)
    k = tl.program_id(1) * BK
    weight = weights(
        codes, high, scales, zeros, supers, book, row, seen, k, N, K, groups,
        VALUE, SCALE, BITS, ZERO, HAS_ZEROS, GROUP, BN, BK,
    )  # fmt: skip
    if SCALE == "row":
        weight = weight * tl.load(scales + row, mask=seen, other=0).to(tl.float32)[:, None]
    at = k + tl.arange(0, BK)
    places = out + line.to(tl.int64)[:, None] * K + at[None, :]
    tl.store(places, weight.to(out.dtype.element_ty), mask=seen[:, None] & (at < K)[None, :])
