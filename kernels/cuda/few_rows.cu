// Products of at most sixteen rows with packed matrices: out[M, N] = x[M, K] · weightsᵀ, and what
// comes before and after them in a layer.
//
// A program computes 16 · TILES outputs. Its warps take turns with the blocks of 128 inputs, each by
// itself: a lane reads sixteen bytes of a row at a time, which are what it needs of the left side of
// its products (mma.m16n8k16), unpacks them in registers, two codes in one operation, and multiplies.
// Nothing is shared before the end, where the sums of the warps are added in their order. So a row of
// `x` has the same bits whatever other rows there are, every time.
//
// The first blocks are read before the kernel waits for the one ahead of it (griddepcontrol).
//
// Compiled for each kind of weights, of which `planes.py` describes the memory, with these constants:
//   WIDE     `x` is bfloat16; 0: float16
//   BITS     of a code: 4, 5, 6 or 8; 16: weights are numbers of the dtype of `x`, row by row
//   VALUE    INT, FP8, E2M1 or NF4: what codes stand for
//   TO_F32   `out` is float32; 0: of the dtype of `x`
//   SCALE    ROW, GROUPS, K_SCALES, K6 or E8M0
//   NUMBER   F32, F16, BF16, I8 or U8: of scales
//   GROUP    inputs that share a scale; 0: all
//   ZERO     the code that stands for zero; HAS_ZEROS: there is one for each group
//   EVEN     inputs fill all blocks; WHOLE: outputs fill all tiles
//   COLUMNS  eights of rows of `x`: 1 or 2
//   TILES, WARPS, AHEAD (blocks that are read ahead), PROGRAMS (of a multiprocessor, for which there
//            are registers)
//   NORMED   rows of `x` are still to be divided by the root of the mean of squares + EPS: `squares`
//            [M, parts] float32 has sums of the squares of what was multiplied by a norm's weights
//   END      STORE: results are `out`.
//            ADD: `out` is the residual stream, and they are added to it. With HAS_NEXT the new
//            stream times `gamma` [N] float32, which is what the next product reads, is `next`
//            [M, N], and `next_squares` [M, N / 16, rounded up] float32 the sums of squares of sixteen
//            numbers of the stream each.
//            GATE: rows of weights are gates, then as many ups, and `out` [M, N / 2] is
//            silu(gate) · up. Half of a tile's rows are gates, the others their ups.
//   EARLY    what NORMED and ADD read is read before the products: all outputs have a thread, and all
//            rows a warp, of which a lane reads PARTS of the sums of squares

typedef unsigned int word;
typedef unsigned short half_bits;

#define INT 0
#define FP8 1
#define E2M1 2
#define NF4 3
#define ROW 0
#define GROUPS 1
#define K_SCALES 2
#define K6 3
#define E8M0 4
#define F32 0
#define F16 1
#define BF16 2
#define I8 3
#define U8 4
#define STORE 0
#define ADD 1
#define GATE 2

#define BYTES (BITS == 8)
#define PLAIN (BITS == 16)
// Words of a row and a block that hold scales, of groups shorter than a block.
#define NUMBER_BITS (NUMBER == F32 ? 32 : NUMBER == F16 || NUMBER == BF16 ? 16 : 8)
#define OF_GROUP (GROUP ? GROUP : 1 << 30)
#define IS_SHORT (OF_GROUP < 128)
#define SCALE_WORDS (IS_SHORT ? (128 / OF_GROUP * NUMBER_BITS + 31) / 32 : 1)
#define ZERO_WORDS (IS_SHORT ? (128 / OF_GROUP * 8 + 31) / 32 : 1)
#define HAS_LEAST (SCALE == K_SCALES)
#define HAS_SUPERS (SCALE == K_SCALES || SCALE == K6)
// Scales are multiplied to weights, of groups that a lane's inputs of a run are one of, or to sums.
#define IN_WEIGHTS (SCALE == K_SCALES || GROUP == 16)
// What codes are divided by, so that their bits are those of numbers (`matrix.constants`).
#define FACTOR (VALUE == FP8 ? 256.0f : VALUE == E2M1 ? 32768.0f : 1.0f)

#ifndef ON_PROCESSOR  // Where tests compile this file with functions of their own for instructions.
static __device__ __forceinline__ float from_half(half_bits bits) {
    float found;
    asm("cvt.f32.f16 %0, %1;" : "=f"(found) : "h"(bits));
    return found;
}

// Two of the dtype of `x`.
static __device__ __forceinline__ word pair_of(float low, float high) {
    word found;
#if WIDE
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));
#endif
    return found;
}

static __device__ __forceinline__ word fused(word a, word b, word c) {
    word found;
#if WIDE
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
#else
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
#endif
    return found;
}

// The same of float16, whatever `x` is.
static __device__ __forceinline__ word fused_f16(word a, word b, word c) {
    word found;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
    return found;
}

// (a & b) | c in one operation, which takes one constant.
static __device__ __forceinline__ word masked(word a, word b, word c) {
    word found;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(found) : "r"(a), "r"(b), "r"(c));
    return found;
}

static __device__ __forceinline__ void multiply(float *sum, word a0, word a1, word a2, word a3, word b0,
                                                word b1) {
#if WIDE
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Streamed past the first cache: no other program reads them.
static __device__ __forceinline__ uint4 read16(const word *place) {
    uint4 found;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "l"(place));
    return found;
}

// Of lanes that follow each other, `count` of them, all get the sum.
static __device__ __forceinline__ float sum_of_lanes(float value, int count) {
    for (int by = count / 2; by; by /= 2)
        value += __shfl_xor_sync(0xFFFFFFFF, value, by);
    return value;
}

// Where it is written: the compiler would read it when it is needed.
static __device__ __forceinline__ float read_now(const float *place) {
    float found;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(found) : "l"(place));
    return found;
}

static __device__ __forceinline__ half_bits read_now(const half_bits *place) {
    half_bits found;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(found) : "l"(place));
    return found;
}

static __device__ __forceinline__ void start_the_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

static __device__ __forceinline__ void wait_for_the_one_ahead() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

static __device__ __forceinline__ float from_bits(word bits) { return __uint_as_float(bits); }

static __device__ __forceinline__ float widened(half_bits bits) {
    return WIDE ? from_bits((word)bits << 16) : from_half(bits);
}

// To the left by `bits`, or to the right.
static __device__ __forceinline__ word moved(word a, int bits) { return bits < 0 ? a >> -bits : a << bits; }

// What a lane has of a block and one row.
struct Some {
    uint4 codes[BITS < 8 ? 1 : BITS / 4];
#if BITS == 5 || BITS == 6
    uint4 high;
#endif
#if SCALE != ROW
    word scales[SCALE_WORDS];
#endif
#if HAS_ZEROS || HAS_LEAST
    word zeros[ZERO_WORDS];
#endif
#if HAS_SUPERS
    half_bits factor;
#endif
#if HAS_LEAST
    half_bits least_factor;
#endif
};

struct Matrix {
    const word *codes, *high;
    const void *scales, *zeros;
    const half_bits *supers;
    int N, K, blocks;
};

static __device__ __forceinline__ word read_number(const void *plane, int at, int number) {
    if (number == F32)
        return ((const word *)plane)[at];
    if (number == F16 || number == BF16)
        return ((const half_bits *)plane)[at];
    return ((const unsigned char *)plane)[at];
}

// Where a lane's words of a row begin. Planes have fewer than 2^31 of them.
static __device__ __forceinline__ int first_code(const Matrix &matrix, int row, int t) {
    if (BYTES)
        return row * matrix.blocks * 32 + 4 * t;
    return (row >> 3) * matrix.blocks * 128 + (row & 7) * 16 + 4 * t;
}

static __device__ __forceinline__ void read(Some &some, const Matrix &matrix, int row, int first, int block, int t) {
#if PLAIN
#pragma unroll
    for (int run = 0; run < 4; run++) {
        const int input = block * 128 + 32 * run + 8 * t;
        some.codes[run] = make_uint4(0, 0, 0, 0);
        if (EVEN || input < matrix.K)
            some.codes[run] = read16(matrix.codes + ((long)row * matrix.K + input) / 2);
    }
#elif BYTES
    some.codes[0] = read16(matrix.codes + first + block * 32);
    some.codes[1] = read16(matrix.codes + first + block * 32 + 16);
#else
    some.codes[0] = read16(matrix.codes + first + block * 128);
#endif
#if BITS == 6
    some.high = read16(matrix.high + ((row >> 3) * matrix.blocks + block) * 64 + (row & 7) * 8 + 4 * (t & 1));
#elif BITS == 5
    some.high = read16(matrix.high + ((row >> 3) * matrix.blocks + block) * 32 + (row & 7) * 4);
#endif
#if SCALE != ROW
#pragma unroll
    for (int at = 0; at < SCALE_WORDS; at++)
        some.scales[at] = IS_SHORT
                              ? ((const word *)matrix.scales)[(block * SCALE_WORDS + at) * matrix.N + row]
                              : read_number(matrix.scales, block * 128 / OF_GROUP * matrix.N + row, NUMBER);
#endif
#if HAS_LEAST || (HAS_ZEROS && SCALE != ROW)
#pragma unroll
    for (int at = 0; at < ZERO_WORDS; at++)
        some.zeros[at] = IS_SHORT
                             ? ((const word *)matrix.zeros)[(block * ZERO_WORDS + at) * matrix.N + row]
                             : read_number(matrix.zeros, block * 128 / OF_GROUP * matrix.N + row, U8);
#elif HAS_ZEROS
    some.zeros[0] = read_number(matrix.zeros, row, U8);
#endif
#if HAS_SUPERS
    const int super = (block >> 1) * (HAS_LEAST ? 2 : 1) * matrix.N + row;
    some.factor = matrix.supers[super];
#endif
#if HAS_LEAST
    some.least_factor = matrix.supers[super + matrix.N];
#endif
}

// The scale, or zero point, of input `first` of a block.
static __device__ __forceinline__ float number_at(const word *words, int first, int number) {
    const int bits = number == F32 ? 32 : number == F16 || number == BF16 ? 16 : 8;
    const int at = IS_SHORT ? first / OF_GROUP : 0;
    const word one = words[at * bits / 32] >> (at * bits % 32);
    if (number == F32)
        return from_bits(one);
    if (number == F16)
        return from_half((half_bits)one);
    if (number == BF16)
        return from_bits(one << 16);
    if (number == I8)
        return from_bits(((one & 0xFF) ^ 0x80) | 0x4B000000) - 8388736.0f;
    return from_bits((one & 0xFF) | 0x4B000000) - 8388608.0f;
}

static __device__ __forceinline__ float power_of_two(word exponent) {
    return from_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
}

#if SCALE != ROW && !HAS_SUPERS
static __device__ __forceinline__ float scale_at(const Some &some, int first) {
#if SCALE == E8M0
    return power_of_two(some.scales[first / OF_GROUP * 8 / 32] >> (first / OF_GROUP * 8 % 32) & 0xFF);
#else
    return number_at(some.scales, first, NUMBER);
#endif
}
#endif

#if VALUE == NF4
__shared__ word book_of_pairs[256];
#endif

#if HAS_SUPERS
// What a lane needs of a row's scales and minima: of each run one, two in a word, as float16.
struct Factors {
    word scales[2];
#if HAS_LEAST
    word middles[2];
#endif
};

static __device__ __forceinline__ Factors factors_of(const Some &some, int t) {
    Factors found;
    const word factor = some.factor | (word)some.factor << 16;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        // Bytes become the lower halves of 1,024 and more.
#if HAS_LEAST
        const word least_factor = some.least_factor | (word)some.least_factor << 16;
        const word which = pair ? 0x4342 : 0x4140;
        const word codes = fused_f16(__byte_perm(some.scales[0], 0x64646464, which), 0x3C003C00, 0xE400E400);
        const word least = fused_f16(__byte_perm(some.zeros[0], 0x64646464, which), 0x3C003C00, 0xE400E400);
        found.scales[pair] = fused_f16(codes, factor, 0x80008000);
        // Around the middle code, where the minimum is small.
        found.middles[pair] = fused_f16(found.scales[pair], ZERO == 8 ? 0x48004800 : 0x4C004C00,
                                        fused_f16(least, least_factor, 0x80008000) ^ 0x80008000);
#else
        const word which = t & 2 ? 0x4341 : 0x4240;
        const word bytes = __byte_perm(some.scales[pair] ^ 0x80808080, 0x64646464, which);
        found.scales[pair] = fused_f16(fused_f16(bytes, 0x3C003C00, 0xE480E480), factor, 0x80008000);
#endif
    }
    return found;
}

// One of them twice, in the dtype of `x`.
static __device__ __forceinline__ word twice(const word *pairs, int run) {
    const word both = pairs[run >> 1];
    if (!WIDE)
        return __byte_perm(both, 0, run & 1 ? 0x3232 : 0x1010);
    const float one = from_half((half_bits)(run & 1 ? both >> 16 : both));
    return pair_of(one, one);
}
#endif

// Codes of word `at` and run `run` of a block, as a pair of numbers around `zero`.
static __device__ __forceinline__ word unpacked(const Some &some, int run, int at, int t, word zero, float zero_wide) {
    const uint4 &four = some.codes[PLAIN ? run : BYTES ? run & 1 : 0];
    const word codes = at == 0 ? four.x : at == 1 ? four.y : at == 2 ? four.z : four.w;
    const int first = BYTES ? 8 * (run >> 1) : 4 * run;
    const word shifted = PLAIN ? codes : codes >> first;
#if PLAIN
    return codes;
#elif VALUE == FP8
    // Sign and the other bits of both, each where it is in a number of half precision.
    const word bits = masked(moved(codes, (WIDE ? 4 : 7) - first), WIDE ? 0x07F007F0 : 0x3F803F80,
                             moved(codes, 8 - first) & 0x80008000);
    return WIDE ? fused(bits, 0x77807780, 0x80008000) : bits;
#elif VALUE == E2M1
    const word bits = masked(moved(codes, (WIDE ? 6 : 9) - first), WIDE ? 0x01C001C0 : 0x0E000E00,
                             moved(codes, 12 - first) & 0x80008000);
    return WIDE ? fused(bits, 0x77807780, 0x80008000) : bits;
#elif VALUE == NF4
    return book_of_pairs[(shifted & 15) | (shifted >> 12 & 0xF0)];
#elif BYTES && WIDE
    const word turned = codes ^ 0x80808080;
    const word low = __byte_perm(turned, 0x4B000000, 0x7540 + (run >> 1));
    const word high = __byte_perm(turned, 0x4B000000, 0x7542 + (run >> 1));
    return pair_of(from_bits(low) - zero_wide, from_bits(high) - zero_wide);
#else
#if BYTES
    word pairs = (shifted & 0x00FF00FF) ^ 0x64806480;
#else
    word pairs = masked(shifted, 0x000F000F, WIDE ? 0x43004300 : 0x64006400);
#endif
#if BITS == 6
    const uint4 &more = some.high;
    const word above = at == 0 ? more.x : at == 1 ? more.y : at == 2 ? more.z : more.w;
    pairs = masked((t & 2 ? above >> 8 : above) >> (2 * run) << 4, 0x00300030, pairs);
#elif BITS == 5
    const uint4 &more = some.high;
    const word above = at == 0 ? more.x : at == 1 ? more.y : at == 2 ? more.z : more.w;
    pairs = masked(above >> (4 * t) >> run << 4, 0x00100010, pairs);
#endif
    return fused(pairs, WIDE ? 0x3F803F80 : 0x3C003C00, zero);
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, PROGRAMS)
few_rows(const half_bits *x, const word *codes, const word *high, const void *scales, const void *zeros,
         const half_bits *supers, const float *book, const float *squares, const float *gamma, void *out,
         half_bits *next, float *next_squares, int M, int N, int K, int x_stride, int out_stride, int parts) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    // Results of a row of `x`, the first of them, and how far weights of a tile's second half are from the first.
    const int in_row = (END == GATE ? 8 : 16) * TILES, first_row = blockIdx.x * in_row, apart = END == GATE ? N / 2 : 8;
    const Matrix matrix = {codes, high, scales, zeros, supers, N, K, (K + 127) / 128};
    start_the_next();
    int rows[TILES][2], firsts[TILES][2];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = first_row + in_row / TILES * tile + apart * half + g;
            rows[tile][half] = WHOLE || row < N ? row : N - 1;
            firsts[tile][half] = first_code(matrix, rows[tile][half], t);
        }
    Some ahead[AHEAD][TILES][2];
#pragma unroll
    for (int at = 0; at < AHEAD; at++) {
        const int block = warp + at * WARPS;
        if (block < matrix.blocks)
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    read(ahead[at][tile][half], matrix, rows[tile][half], firsts[tile][half], block, t);
    }
#if VALUE == NF4
    for (int at = threadIdx.x; at < 256; at += 32 * WARPS)
        book_of_pairs[at] = pair_of(book[at & 15], book[at >> 4]);
    __syncthreads();
#endif
    // What the end needs is on its way meanwhile, where there are registers for it.
    const int outputs = END == GATE ? N / 2 : N;
    const bool is_mine = EARLY && threadIdx.x / in_row < M && first_row + threadIdx.x % in_row < outputs;
    const long my_place = (long)(threadIdx.x / in_row) * out_stride + first_row + threadIdx.x % in_row;
#if END == ADD && EARLY
    float my_gamma = 0;
    half_bits my_stream = 0;
#if HAS_NEXT
    if (is_mine)
        my_gamma = read_now(gamma + first_row + threadIdx.x % in_row);
#endif
#endif
    wait_for_the_one_ahead();
#if END == ADD && EARLY
    if (is_mine)
        my_stream = read_now((const half_bits *)out + my_place);
#endif
#if NORMED && EARLY
    float my_squares[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        my_squares[part] = warp < M && 32 * part + lane < parts ? read_now(squares + warp * parts + 32 * part + lane) : 0;
#endif
    // In the place of rows that are not there the last one is read again; its sums are not kept.
    const half_bits *of_row[COLUMNS];
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
        of_row[column] = x + (long)(8 * column + g < M ? 8 * column + g : M - 1) * x_stride + 8 * t;
    float total[TILES][COLUMNS][4] = {};
    for (int begin = warp; begin < matrix.blocks; begin += AHEAD * WARPS) {
#pragma unroll
        for (int at = 0; at < AHEAD; at++) {
            const int block = begin + at * WARPS;
            if (block >= matrix.blocks)
                break;
            float found[TILES][COLUMNS][4] = {};
#if HAS_SUPERS
            Factors factors[TILES][2];
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    factors[tile][half] = factors_of(ahead[at][tile][half], t);
#endif
#pragma unroll
            for (int run = 0; run < 4; run++) {
                uint4 some_x[COLUMNS];
                const int input = block * 128 + 32 * run;
#pragma unroll
                for (int column = 0; column < COLUMNS; column++) {
                    some_x[column] = make_uint4(0, 0, 0, 0);
                    if (EVEN || input + 8 * t < K)
                        some_x[column] = *(const uint4 *)(of_row[column] + input);
                }
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    word pairs[2][4];
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const Some &some = ahead[at][tile][half];
                        float zero = ZERO;
#if HAS_ZEROS && VALUE == INT
                        // A place of 16 inputs depends on the lane: both are read, and one is taken.
                        zero = number_at(some.zeros, 32 * run, U8);
                        if (GROUP == 16 && t >> 1)
                            zero = number_at(some.zeros, 32 * run + 16, U8);
#endif
                        const float added = BYTES && WIDE ? 8388608.0f : WIDE ? 128.0f : 1024.0f;
                        const word minus = pair_of(-added - zero, -added - zero);
#pragma unroll
                        for (int word_at = 0; word_at < 4; word_at++)
                            pairs[half][word_at] = unpacked(some, run, word_at, t, minus, added + zero);
#if HAS_SUPERS
                        const word by = twice(factors[tile][half].scales, run);
#if HAS_LEAST
                        const word middle = twice(factors[tile][half].middles, run);
#else
                        const word middle = 0x80008000;
#endif
#pragma unroll
                        for (int word_at = 0; word_at < 4; word_at++)
                            pairs[half][word_at] = fused(pairs[half][word_at], by, middle);
#elif GROUP == 16
                        const float low = scale_at(some, 32 * run), up = scale_at(some, 32 * run + 16);
                        const float scale = (t >> 1 ? up : low) * FACTOR;
                        const word by = pair_of(scale, scale);
#pragma unroll
                        for (int word_at = 0; word_at < 4; word_at++)
                            pairs[half][word_at] = fused(pairs[half][word_at], by, 0x80008000);
#endif
                    }
#pragma unroll
                    for (int column = 0; column < COLUMNS; column++) {
                        float *sum = SCALE == ROW || IN_WEIGHTS ? total[tile][column] : found[tile][column];
                        multiply(sum, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], some_x[column].x,
                                 some_x[column].y);
                        multiply(sum, pairs[0][2], pairs[1][2], pairs[0][3], pairs[1][3], some_x[column].z,
                                 some_x[column].w);
                    }
#if SCALE != ROW && !IN_WEIGHTS
                    if ((run + 1) * 32 % (GROUP < 128 ? GROUP : 128) == 0) {
                        const float low = scale_at(ahead[at][tile][0], 32 * run) * FACTOR;
                        const float up = scale_at(ahead[at][tile][1], 32 * run) * FACTOR;
#pragma unroll
                        for (int column = 0; column < COLUMNS; column++)
#pragma unroll
                            for (int part = 0; part < 4; part++) {
                                total[tile][column][part] += found[tile][column][part] * (part < 2 ? low : up);
                                found[tile][column][part] = 0;
                            }
                    }
#endif
                }
            }
            const int following = block + AHEAD * WARPS;
            if (following < matrix.blocks)
#pragma unroll
                for (int tile = 0; tile < TILES; tile++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        read(ahead[at][tile][half], matrix, rows[tile][half], firsts[tile][half], following, t);
        }
    }
#if NORMED
    __shared__ float inverse_roots[8 * COLUMNS];
    for (int row = warp; row < M; row += WARPS) {
        float sum = 0;
#if EARLY
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            sum += my_squares[part];
#else
        for (int at = lane; at < parts; at += 32)
            sum += squares[row * parts + at];
#endif
        sum = sum_of_lanes(sum, 32);
        if (lane == 0)
            inverse_roots[row] = 1.0f / sqrtf(sum / K + EPS);
    }
#endif
    __shared__ float sums[WARPS][8 * COLUMNS][16 * TILES + 1];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int column = 0; column < COLUMNS; column++)
#pragma unroll
            for (int part = 0; part < 4; part++)
                sums[warp][8 * column + 2 * t + (part & 1)][16 * tile + 8 * (part >> 1) + g] =
                    total[tile][column][part];
    __syncthreads();
#pragma unroll 1
    for (int begin = 0; begin < M * in_row; begin += 32 * WARPS) {
        const int at = begin + threadIdx.x, column = at / in_row, row = at % in_row;
        const bool is_one = column < M && first_row + row < outputs;
        float found[END == GATE ? 2 : 1] = {};
        if (is_one)
#pragma unroll
            for (int part = 0; part < (END == GATE ? 2 : 1); part++) {
                const int of_tiles = END == GATE ? row + row / 8 * 8 + 8 * part : row;
#pragma unroll
                for (int one = 0; one < WARPS; one++)
                    found[part] += sums[one][column][of_tiles];
#if SCALE == ROW && !PLAIN
                const word bits = read_number(scales, first_row + row + apart * part, NUMBER);
                found[part] *= FACTOR * number_at(&bits, 0, NUMBER);
#endif
#if NORMED
                found[part] *= inverse_roots[column];
#endif
            }
        const long place = (long)column * out_stride + first_row + row;
#if END == ADD
        float square = 0;
        if (is_one) {
            half_bits &stream = ((half_bits *)out)[place];
#if EARLY
            const half_bits before = my_stream;
            const float factor = my_gamma;
#else
            const half_bits before = stream;
            const float factor = HAS_NEXT ? gamma[first_row + row] : 0;
#endif
            const float sum = widened((half_bits)pair_of(widened(before) + found[0], 0));
            stream = (half_bits)pair_of(sum, 0);
#if HAS_NEXT
            next[column * N + first_row + row] = (half_bits)pair_of(sum * factor, 0);
            square = sum * sum;
#endif
        }
#if HAS_NEXT
        square = sum_of_lanes(square, 16);
        if (is_one && row % 16 == 0)
            next_squares[column * ((N + 15) / 16) + (first_row + row) / 16] = square;
#endif
#else
        const float result = END == GATE ? found[0] / (1.0f + expf(-found[0])) * found[END == GATE] : found[0];
        if (is_one)
#if TO_F32
            ((float *)out)[place] = result;
#else
            ((half_bits *)out)[place] = (half_bits)pair_of(result, 0);
#endif
#endif
    }
}
