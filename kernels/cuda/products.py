"""Products with packed matrices, and unpacking them. Codes are unpacked in registers, two in one
operation, and multiplied by tensor cores; sums are float32.

A tile of weights is the left operand, which tensor cores read from registers, so that only codes go
through shared memory. Codes are multiplied as numbers that half precision represents exactly, and
the sum of a group by its scale, so that weights are not rounded, except those of Q4_K, Q5_K and
NF4.

If inputs are split among programs, the program that finishes last adds up the partial sums in a
fixed order, and the split depends only on the matrix. So a row has the same bits every time,
whatever the other rows.
"""

# Arguments are pointers and numbers of Triton's own types, which annotations cannot express.

from __future__ import annotations

import triton
import triton.language as tl

from hearth.kernels.cuda.turns import take_turn


@triton.jit
def _whole(q):
    """Integers of less than 23 bits as float32, without a conversion instruction, which takes four
    times as long as others."""
    return (q | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0


@triton.jit
def _power_of_two(exponent):
    """Half of 2 ** (exponent - 127), as the bits of a float32; the two lowest are subnormal."""
    small = tl.where(exponent == 0, 0x00200000, 0x00400000)
    bits = tl.where(exponent < 2, small, (exponent - 1) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _of_group(
    plane, block, first: tl.constexpr, rows, seen, N, GROUP: tl.constexpr, NUMBER: tl.constexpr
):
    """[rows] float32: the number in `plane` for the group of input `first` of a block; 0 where
    `seen` is false.

    plane: for groups of 128 inputs or more [groups, N] of any dtype; for shorter ones [blocks ·
    words, N] int32, which contain the numbers, of type NUMBER, of all groups of a block.
    """
    if GROUP >= 128:
        found = tl.load(plane + (block * 128 // GROUP) * N + rows, mask=seen, other=0)
        found = found.to(tl.float32)
    else:
        is_byte: tl.constexpr = NUMBER == "int8" or NUMBER == "uint8"
        each: tl.constexpr = 1 if NUMBER == "fp32" else 4 if is_byte else 2
        words: tl.constexpr = (128 // GROUP + each - 1) // each
        at: tl.constexpr = first // GROUP
        word = tl.load(plane + (block * words + at // each) * N + rows, mask=seen, other=0)
        word = word >> (at % each * (32 // each))
        if NUMBER == "fp32":
            found = word.to(tl.float32, bitcast=True)
        elif NUMBER == "fp16":
            found = word.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        elif NUMBER == "bf16":
            found = (word << 16).to(tl.float32, bitcast=True)
        elif NUMBER == "int8":
            found = _whole((word & 0xFF) ^ 0x80) - 128.0
        else:
            found = _whole(word & 0xFF)
    return found


@triton.jit
def _zero(
    zeros,
    block,
    first: tl.constexpr,
    rows,
    seen,
    N,
    GROUP: tl.constexpr,
    ADDED: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """[rows, 1] NUMBER: the zero point of a group plus ADDED."""
    zero = _of_group(zeros, block, first, rows, seen, N, GROUP, "uint8")
    return (zero + ADDED).to(NUMBER)[:, None]


@triton.jit
def _places(plane, rows, blocks, OF: tl.constexpr):
    """[rows, 1]: address of the first word of each row; blocks have OF words (`planes.Planes`)."""
    if OF == 32:
        found = plane + rows * (blocks * OF)
    else:
        found = plane + ((rows >> 3) * (blocks * 8 * OF) + (rows & 7) * OF)
    return found[:, None]


@triton.jit
def _words(
    plane, rows, seen, blocks, block, first: tl.constexpr, COUNT: tl.constexpr, OF: tl.constexpr
):
    """[rows, COUNT] int32: words of a block from `first`; blocks have OF words in the plane."""
    apart: tl.constexpr = OF if OF == 32 else 8 * OF
    word = block * apart + first + tl.arange(0, COUNT)
    places = _places(plane, rows, blocks, OF) + word[None, :]
    return tl.load(places, mask=seen[:, None], other=0)


@triton.jit
def _codes(
    codes,
    high,
    book,
    rows,
    seen,
    blocks,
    block,
    at: tl.constexpr,
    zero,
    NUMBER: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    BITS: tl.constexpr,
    SUB: tl.constexpr,
    BN: tl.constexpr,
):
    """[BN, SUB] NUMBER: the values of the codes of run `at` of a block, divided by FACTOR; any
    finite number where `seen` is false.

    Args:
        zero: [BN, 1] or a number: for "int", the zero point plus the number that was added to the
            codes to make them floats (`matrix.constants`).
        NUMBER: HALF, or float32, in which case HALF is float16.
        SUB: at most 32, or 64 for codes of eight bits.
    """
    own: tl.constexpr = 32 if BITS == 8 else 16
    runs: tl.constexpr = own * 2 // SUB
    slot: tl.constexpr = at // runs
    low = _words(codes, rows, seen, blocks, block, at % runs * (SUB // 2), SUB // 2, own)
    pairs = (low >> (BITS if BITS == 8 else 4) * slot) & (0x00FF00FF if BITS == 8 else 0x000F000F)
    if BITS == 6:
        more = _words(high, rows, seen, blocks, block, 0, 8, 8)
        if SUB == 16:
            more = more >> (2 * slot + 8 * (at % 2))
        else:
            shift = 2 * slot + 8 * tl.arange(0, 2)
            more = tl.reshape(more[:, None, :] >> shift[None, :, None], (BN, 16))
        pairs = pairs | (more & 0x00030003) << 4
    elif BITS == 5:
        more = _words(high, rows, seen, blocks, block, 0, 4, 4)
        shift = slot + 4 * tl.arange(0, 4)
        more = tl.reshape(more[:, None, :] >> shift[None, :, None], (BN, 16))
        pairs = pairs | (more & 0x00010001) << 4
    is_wide: tl.constexpr = tl.bfloat16 == HALF
    if VALUE == "nf4":
        found = tl.load(book + tl.reshape(tl.join(pairs & 0xFFFF, pairs >> 16), (BN, SUB)))
    elif VALUE == "int" and BITS == 8 and is_wide:
        # The mantissa of bfloat16 has less than eight bits.
        found = tl.reshape(tl.join(pairs & 0xFFFF, pairs >> 16), (BN, SUB)) ^ 0x4B000080
        found = found.to(tl.float32, bitcast=True) - zero
    else:
        if VALUE == "int":
            if BITS == 8:
                pairs = pairs ^ 0x64806480
            else:
                added: tl.constexpr = 0x43004300 if is_wide else 0x64006400
                pairs = pairs | added
        elif VALUE == "e2m1":
            pairs = (pairs & 0x00080008) << 12 | (pairs & 0x00070007) << (6 if is_wide else 9)
        else:
            pairs = (pairs & 0x00800080) << 8 | (pairs & 0x007F007F) << (4 if is_wide else 7)
        lower = (pairs & 0xFFFF).to(tl.int16).to(HALF, bitcast=True)
        upper = (pairs >> 16).to(tl.int16).to(HALF, bitcast=True)
        found = tl.reshape(tl.join(lower, upper), (BN, SUB))
        if VALUE == "int":
            found = found - zero
        elif is_wide:
            # Corrects for the larger exponent bias of bfloat16, compared with float16.
            found = found * tl.full((), 5.192296858534828e33, HALF)
    return found.to(NUMBER)


@triton.jit
def _fused(found, scale, middle, HALF: tl.constexpr, ON_CARD: tl.constexpr):
    """found · scale + middle, all of one shape, rounded once on a GPU."""
    if ON_CARD and tl.bfloat16 == HALF:
        found = tl.inline_asm_elementwise(
            "fma.rn.bf16x2 $0, $1, $2, $3;",
            "=r,r,r,r",
            [found, scale, middle],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=2,
        )
    elif ON_CARD:
        found = tl.inline_asm_elementwise(
            "fma.rn.f16x2 $0, $1, $2, $3;",
            "=r,r,r,r",
            [found, scale, middle],
            dtype=tl.float16,
            is_pure=True,
            pack=2,
        )
    else:
        found = found * scale + middle
    return found


@triton.jit
def _side_by_side(one, other):
    """[rows, 2 · inputs]: `one` and `other`, concatenated."""
    both = tl.permute(tl.join(one, other), (0, 2, 1))
    return tl.reshape(both, (one.shape[0], 2 * one.shape[1]))


@triton.jit
def _run(
    codes,
    high,
    scales,
    zeros,
    supers,
    book,
    rows,
    seen,
    blocks,
    block,
    N,
    at: tl.constexpr,
    zero,
    NUMBER: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    ON_CARD: tl.constexpr,
    RUN: tl.constexpr,
    BN: tl.constexpr,
):
    """As `_codes`; for "k" with scales and minima applied, rounded to NUMBER."""
    found = _codes(
        codes, high, book, rows, seen, blocks, block, at, zero, NUMBER, HALF, VALUE, BITS, RUN, BN
    )
    if SCALE == "k":
        places = supers + (block // 2) * 2 * N + rows
        scale = _of_group(scales, block, 32 * at, rows, seen, N, 32, "uint8")
        scale *= tl.load(places, mask=seen, other=0).to(tl.float32)
        least = _of_group(zeros, block, 32 * at, rows, seen, N, 32, "uint8")
        least *= tl.load(places + N, mask=seen, other=0).to(tl.float32)
        # Relative to the middle code, which makes the constant term small.
        middle = tl.broadcast_to((scale * ZERO - least).to(NUMBER)[:, None], (BN, RUN))
        wide = tl.broadcast_to(scale.to(NUMBER)[:, None], (BN, RUN))
        found = _fused(found, wide, middle, HALF, ON_CARD and NUMBER == HALF)
    return found


@triton.jit
def _weights(
    codes,
    high,
    scales,
    zeros,
    supers,
    book,
    rows,
    seen,
    blocks,
    block,
    N,
    at: tl.constexpr,
    zero,
    NUMBER: tl.constexpr,
    HALF: tl.constexpr,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    ON_CARD: tl.constexpr,
    SUB: tl.constexpr,
    BN: tl.constexpr,
):
    """As `_run`, for a SUB of up to 128."""
    most: tl.constexpr = 64 if BITS == 8 else 32
    run: tl.constexpr = SUB if most > SUB else most
    each: tl.constexpr = SUB // run
    found = _run(
        codes, high, scales, zeros, supers, book, rows, seen, blocks, block, N, each * at, zero,
        NUMBER, HALF, VALUE, SCALE, BITS, ZERO, ON_CARD, run, BN,
    )  # fmt: skip
    if each > 1:
        other = _run(
            codes, high, scales, zeros, supers, book, rows, seen, blocks, block, N, each * at + 1,
            zero, NUMBER, HALF, VALUE, SCALE, BITS, ZERO, ON_CARD, run, BN,
        )  # fmt: skip
        found = _side_by_side(found, other)
    if each > 2:
        third = _run(
            codes, high, scales, zeros, supers, book, rows, seen, blocks, block, N, 2, zero,
            NUMBER, HALF, VALUE, SCALE, BITS, ZERO, ON_CARD, run, BN,
        )  # fmt: skip
        fourth = _run(
            codes, high, scales, zeros, supers, book, rows, seen, blocks, block, N, 3, zero,
            NUMBER, HALF, VALUE, SCALE, BITS, ZERO, ON_CARD, run, BN,
        )  # fmt: skip
        found = _side_by_side(found, _side_by_side(third, fourth))
    return found


@triton.jit
def _fetch(plane, first, N, blocks, begin, end, OF: tl.constexpr, BN: tl.constexpr):
    """Prefetch the first blocks of BN rows into the L2 cache: at least 64 bytes per row."""
    # A cache line is 32 words.
    lines: tl.constexpr = OF // 4 if OF < 32 else 1
    count: tl.constexpr = 4 if OF < 32 else 2
    rows: tl.constexpr = 8 if OF < 32 else 1
    group = first // rows + tl.arange(0, BN // rows)
    line = tl.arange(0, count * lines)
    places = plane + group.to(tl.int64)[:, None] * (blocks * rows * OF)
    places += (begin * lines + line)[None, :] * 32
    is_there = (group * rows < N)[:, None] & (begin + line // lines < end)[None, :]
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [places, is_there.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["M", "split"])
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
    split,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    NUMBER: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    ADDED: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUP: tl.constexpr,
    FACTOR: tl.constexpr,
    SUB: tl.constexpr,
    IS_EVEN: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    EXPERTS: tl.constexpr,
    EXPERT_LANES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    STAGES: tl.constexpr,
    ON_CARD: tl.constexpr,
    EARLY: tl.constexpr,
):
    """out[M, N] = x[M, K] · weightsᵀ.

    Programs are (tiles of N, tiles of M, split). With IS_SPLIT, `partial` is [split, M, N]
    float32, and `counters` [tiles of N] int32, zero before and after. With EXPERTS > 0, the planes
    are those of EXPERTS matrices, rows offsets[e] to offsets[e + 1] are multiplied by matrix e, and
    the number of tiles of M is the most there can be: M / BM plus one for each matrix. EARLY: the
    kernel may start before the preceding kernel has ended.
    """
    tile_n, tile_m, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    blocks = (K + 127) // 128
    length = (blocks + split - 1) // split
    begin, end = part * length, tl.minimum(part * length + length, blocks)
    if EARLY and EXPERTS == 0:
        _fetch(codes, tile_n * BN, N, blocks, begin, end, 32 if BITS == 8 else 16, BN)
    take_turn(EARLY)
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
        filled = N if BITS == 8 else (N + 7) // 8 * 8
        codes += number * filled * blocks * (32 if BITS == 8 else 16)
        if BITS == 5 or BITS == 6:
            high += number * filled * (blocks * 4 * (BITS - 4))
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
    dtype: tl.constexpr = x.dtype.element_ty
    half: tl.constexpr = tl.bfloat16 if dtype == tl.bfloat16 else tl.float16
    point: tl.constexpr = tl.float32 if BITS == 8 and half == tl.bfloat16 else half
    zero = tl.full((), ZERO + ADDED, point)
    if HAS_ZEROS and SCALE == "row":
        zero = _zero(zeros, 0, 0, column, is_column, N, 128, ADDED, point)
    of_row = tl.where(K > 0, 1.0, 0.0)
    if SCALE == "row":
        of_row = tl.load(scales + column, mask=is_column, other=0).to(tl.float32)[:, None] * FACTOR
    total = tl.zeros((BN, BM), dtype=tl.float32)
    for block in tl.range(begin, end, num_stages=STAGES):
        k = block * 128
        found = tl.zeros((BN, BM), dtype=tl.float32)
        for at in tl.static_range(128 // SUB):
            inputs = k + at * SUB + tl.arange(0, SUB)
            mask = is_row[None, :] if IS_EVEN else is_row[None, :] & (inputs < K)[:, None]
            some = tl.load(x + row[None, :] * x_stride + inputs[:, None], mask=mask, other=0)
            own_zero = zero
            if HAS_ZEROS and SCALE == "group":
                own_zero = _zero(zeros, block, at * SUB, column, is_column, N, GROUP, ADDED, point)
            weight = _weights(
                codes, high, scales, zeros, supers, book, wide, is_column, blocks, block, N, at,
                own_zero, dtype, half, VALUE, SCALE, BITS, ZERO, ON_CARD, SUB, BN,
            )  # fmt: skip
            # tf32x3: three tensor core products, with the precision of float32.
            if SCALE == "row" or SCALE == "k":
                # Added here, because a sum carried from product to product waits for each step.
                total += tl.dot(weight, some, input_precision="tf32x3") * of_row
            else:
                found = tl.dot(weight, some, found, input_precision="tf32x3")
                if (at + 1) * SUB % (GROUP if GROUP < 128 else 128) == 0:
                    scale = _of_group(scales, block, at * SUB, column, is_column, N, GROUP, NUMBER)
                    if SCALE == "e8m0":
                        scale = _power_of_two(scale.to(tl.int32))
                    elif SCALE == "k6":
                        places = supers + (k // 256) * N + column
                        scale *= tl.load(places, mask=is_column, other=0).to(tl.float32)
                    total += found * FACTOR * scale[:, None]
                    found = tl.zeros((BN, BM), dtype=tl.float32)
    is_here = is_row[None, :] & is_column[:, None]
    if IS_SPLIT:
        places = partial + row[None, :] * N + column[:, None]
        tl.store(places + part * M * N, total, mask=is_here)
        tl.debug_barrier()
        done = tl.atomic_add(counters + tile_n, 1, sem="acq_rel", scope="gpu")
        if done < split - 1:
            return
        total = tl.zeros((BN, BM), dtype=tl.float32)
        for one in range(split):
            total += tl.load(places + one * M * N, mask=is_here, other=0, cache_modifier=".cg")
        tl.store(counters + tile_n, 0)
    places = out + row.to(tl.int64)[None, :] * out_stride + column[:, None]
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
    first,
    count,
    N,
    K,
    VALUE: tl.constexpr,
    SCALE: tl.constexpr,
    NUMBER: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    ADDED: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    GROUP: tl.constexpr,
    FACTOR: tl.constexpr,
    SUB: tl.constexpr,
    IS_EVEN: tl.constexpr,
    HAS_IDS: tl.constexpr,
    BN: tl.constexpr,
):
    """out[count, K]: unpacked rows of a matrix, the rows `ids` or those from `first`. Programs are
    (tiles of count, blocks of 128 inputs).
    """
    line = tl.program_id(0) * BN + tl.arange(0, BN)
    block = tl.program_id(1)
    seen = line < count
    row = (first + line).to(tl.int64)
    if HAS_IDS:
        row = tl.load(ids + line, mask=seen, other=0)
    blocks = (K + 127) // 128
    zero = tl.full((), ZERO + ADDED, tl.float16)
    if HAS_ZEROS and SCALE == "row":
        zero = _zero(zeros, 0, 0, row, seen, N, 128, ADDED, tl.float16)
    for at in tl.static_range(128 // SUB):
        if HAS_ZEROS and SCALE == "group":
            zero = _zero(zeros, block, at * SUB, row, seen, N, GROUP, ADDED, tl.float16)
        # In float32, so that nothing is rounded.
        value = _weights(
            codes, high, scales, zeros, supers, book, row, seen, blocks, block, N, at, zero,
            tl.float32, tl.float16, VALUE, SCALE, BITS, ZERO, False, SUB, BN,
        )  # fmt: skip
        if SCALE == "row":
            value *= FACTOR * tl.load(scales + row, mask=seen, other=0).to(tl.float32)[:, None]
        elif SCALE != "k":
            scale = _of_group(scales, block, at * SUB, row, seen, N, GROUP, NUMBER)
            if SCALE == "e8m0":
                scale = _power_of_two(scale.to(tl.int32))
            elif SCALE == "k6":
                factor = tl.load(supers + (block // 2) * N + row, mask=seen, other=0)
                scale *= factor.to(tl.float32)
            value *= FACTOR * scale[:, None]
        inputs = block * 128 + at * SUB + tl.arange(0, SUB)
        places = out + line.to(tl.int64)[:, None] * K + inputs[None, :]
        mask = seen[:, None] if IS_EVEN else seen[:, None] & (inputs < K)[None, :]
        tl.store(places, value.to(out.dtype.element_ty), mask=mask)
