"""Codes of eight bits on NVIDIA GPUs: E4M3 converted by bit operations, so that GPUs of any
generation can read and write it, and activations rounded to E4M3 or int8 with a scale for each row
or group.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def from_e4m3(q):
    """float32 of the E4M3 bytes `q` int32: the bits are moved to their places in float16, whose
    exponent bias is larger by 8. NaN (0x7F) becomes 480.
    """
    half = ((q & 0x80) << 8 | (q & 0x7F) << 7).to(tl.int16).to(tl.float16, bitcast=True)
    return half.to(tl.float32) * 256.0


@triton.jit
def rounded(x):
    """float32 `x` below 2²² in size, rounded to the nearest integer, halves to even."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def to_e4m3(x):
    """uint8: the nearest E4M3 number of float32 `x`, and the largest one for larger numbers."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(tl.abs(x), 448.0)
    of_size = size.to(tl.int32, bitcast=True)
    # Drops 20 bits of the mantissa and changes the exponent's base from 2^-126 to 2^-6.
    normal = ((of_size + 0x7FFFF + ((of_size >> 20) & 1)) >> 20) - (120 << 3)
    small = rounded(size * 512.0).to(tl.int32)
    code = tl.where(size < 0.015625, small, normal)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def rounding_kernel(
    x,
    codes,
    scales,
    M,
    K,
    x_stride,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    IS_FP8: tl.constexpr,
):
    """Round x [M, K] to codes [M, K padded to whole blocks], bytes of E4M3 or int8 in the order of
    the codes of weights (`planes`), with scales [groups, M] float32. Rows of x are `x_stride`
    apart. Programs are (rows, groups of GROUP inputs; GROUP 0: all inputs).

    If a number of a group is not finite, its scale is NaN, and so are products with it.
    """
    row, group = tl.program_id(0), tl.program_id(1)
    filled = (K + 127) // 128 * 128
    begin = group * GROUP
    end = filled
    if GROUP > 0:
        end = tl.minimum(begin + GROUP, filled)
    largest: tl.constexpr = 448.0 if IS_FP8 else 127.0
    x += row.to(tl.int64) * x_stride
    codes += row.to(tl.int64) * filled
    most = tl.zeros((LANES,), dtype=tl.float32)
    not_finite = tl.zeros((LANES,), dtype=tl.float32)
    for start in range(begin, end, LANES):
        at = start + tl.arange(0, LANES)
        some = tl.load(x + at, mask=at < K, other=0).to(tl.float32)
        most = tl.maximum(most, tl.abs(some))
        not_finite += some - some
    peak = tl.max(most, 0)
    factor = tl.where(peak > 0, largest / peak, 0.0)
    tl.store(scales + group * M + row, peak / largest + tl.sum(not_finite, 0))
    for start in range(begin, end, LANES):
        place = start + tl.arange(0, LANES)
        at = place & -128 | (place & 1) << 6 | (place & 127) >> 2 << 1 | place >> 1 & 1
        some = tl.load(x + at, mask=at < K, other=0).to(tl.float32) * factor
        some = tl.where(some == some, tl.minimum(tl.maximum(some, -largest), largest), 0.0)
        if IS_FP8:
            tl.store(codes + place, to_e4m3(some), mask=place < end)
        else:
            tl.store(codes + place, rounded(some).to(tl.int8), mask=place < end)


@triton.jit
def int8_kernel(
    x,
    x_scales,
    codes,
    scales,
    out,
    M,
    N,
    K,
    out_stride,
    GROUP: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """out[M, N] = x[M, K] · weightsᵀ, both int8. Programs are (tiles of N, tiles of M).

    x: int8 with x_scales [M] float32; codes: [N, K] int8; scales: [groups, N], for groups of GROUP
    inputs, a multiple of BK, or one group if GROUP is 0. Sums within a group are integers.
    """
    row = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    column = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    is_row, is_column = row < M, column < N
    whole = tl.zeros((BM, BN), dtype=tl.int32)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        at = k + tl.arange(0, BK)
        is_here = (at < K)[None, :]
        some = tl.load(x + row[:, None] * K + at[None, :], mask=is_row[:, None] & is_here, other=0)
        places = codes + column[:, None] * K + at[None, :]
        weight = tl.load(places, mask=is_column[:, None] & is_here, other=0)
        if GROUP > 0:
            part = tl.dot(some, tl.trans(weight), out_dtype=tl.int32)
            factor = tl.load(scales + (k // GROUP) * N + column, mask=is_column, other=0)
            total += part.to(tl.float32) * factor.to(tl.float32)[None, :]
        else:
            whole = tl.dot(some, tl.trans(weight), whole, out_dtype=tl.int32)
    if GROUP == 0:
        factor = tl.load(scales + column, mask=is_column, other=0).to(tl.float32)
        total = whole.to(tl.float32) * factor[None, :]
    total = total * tl.load(x_scales + row, mask=is_row, other=0)[:, None]
    places = out + row[:, None] * out_stride + column[None, :]
    tl.store(places, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])
