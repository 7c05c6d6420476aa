// What `kernels/cuda/few_rows.cu` takes of a card, on a processor: each lane is a coroutine, and what
// lanes do together waits until all of them have come to it.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

#define ON_PROCESSOR
#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

typedef unsigned int word;
typedef unsigned short half_bits;
struct uint4 {
    word x, y, z, w;
};
struct Place {
    unsigned x;
};
static Place threadIdx, blockIdx;

static uint4 make_uint4(word x, word y, word z, word w) { return {x, y, z, w}; }
static float __uint_as_float(word bits) {
    float found;
    memcpy(&found, &bits, 4);
    return found;
}
static word bits_of(float number) {
    word found;
    memcpy(&found, &number, 4);
    return found;
}

static word __byte_perm(word a, word b, word selector) {
    const uint64_t both = (uint64_t)b << 32 | a;
    word found = 0;
    for (int at = 0; at < 4; at++)
        found |= (word)(both >> (selector >> 4 * at & 7) * 8 & 0xFF) << 8 * at;
    return found;
}

// Coroutines: one for each lane of a program.
static ucontext_t scheduler;
static std::vector<ucontext_t> lanes;
static std::vector<char> has_ended;
static int current, arrived, generation;

static void give_way() {
    const int own = current;
    swapcontext(&lanes[own], &scheduler);
    current = own;
    threadIdx.x = own;
}

static void __syncthreads() {
    const int now = generation;
    if (++arrived == (int)lanes.size()) {
        arrived = 0;
        generation++;
    }
    while (generation == now)
        give_way();
}

#if WIDE
static float wide(half_bits bits) { return __uint_as_float((word)bits << 16); }
static half_bits narrow(float number) {
    const word bits = bits_of(number);
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
#else
static float wide(half_bits bits) {
    _Float16 found;
    memcpy(&found, &bits, 2);
    return found;
}
static half_bits narrow(float number) {
    const _Float16 found = (_Float16)number;
    half_bits bits;
    memcpy(&bits, &found, 2);
    return bits;
}
#endif

static float from_half(half_bits bits) {
    _Float16 found;
    memcpy(&found, &bits, 2);
    return found;
}
static word pair_of(float low, float high) { return narrow(low) | (word)narrow(high) << 16; }
static word fused(word a, word b, word c) {
    // In float64 both are exact, so that there is one rounding to float32, of more bits than it has,
    // and one to half precision.
    word found = 0;
    for (int at = 0; at < 32; at += 16)
        found |= (word)narrow((float)((double)wide(a >> at) * wide(b >> at) + wide(c >> at))) << at;
    return found;
}
static word fused_f16(word a, word b, word c) {
    word found = 0;
    for (int at = 0; at < 32; at += 16) {
        const double sum = (double)from_half(a >> at) * from_half(b >> at) + from_half(c >> at);
        const _Float16 one = (_Float16)(float)sum;
        half_bits bits;
        memcpy(&bits, &one, 2);
        found |= (word)bits << at;
    }
    return found;
}
static word masked(word a, word b, word c) { return (a & b) | c; }
static uint4 read16(const word *place) {
    if ((uintptr_t)place % 16)
        fprintf(stderr, "not aligned\n"), abort();
    uint4 found;
    memcpy(&found, place, 16);
    return found;
}
static float read_now(const float *place) { return *place; }
static half_bits read_now(const half_bits *place) { return *place; }
static void start_the_next() {}
static void wait_for_the_one_ahead() {}

// mma.m16n8k16: lane 4g + t has of the left side rows g and g + 8, inputs 2t, 2t + 1 and the same
// eight further; of the right side column g; of the sum columns 2t and 2t + 1 of both rows.
struct Operands {
    word a[4], b[2];
};
static Operands operands[32 * WARPS];

static void multiply(float *sum, word a0, word a1, word a2, word a3, word b0, word b1) {
    operands[current] = {{a0, a1, a2, a3}, {b0, b1}};
    give_way();
    const Operands *warp = operands + current / 32 * 32;
    const int g = current % 32 / 4, t = current % 4;
    for (int part = 0; part < 4; part++) {
        double found = sum[part];
        for (int four = 0; four < 4; four++)
            for (int half = 0; half < 2; half++)
                for (int at = 0; at < 32; at += 16) {
                    const word left = warp[4 * g + four].a[2 * half + (part >> 1)];
                    const word right = warp[4 * (2 * t + (part & 1)) + four].b[half];
                    found += (double)wide(left >> at) * wide(right >> at);
                }
        sum[part] = (float)found;
    }
    give_way();
}

static float values[32 * WARPS];

static float sum_of_lanes(float value, int count) {
    const int own = current;
    for (int by = count / 2; by; by /= 2) {
        values[own] = value;
        give_way();
        value += values[own ^ by];
        give_way();
    }
    return value;
}

extern "C" void few_rows(const half_bits *x, const word *codes, const word *high, const void *scales,
                         const void *zeros, const half_bits *supers, const float *book, const float *squares,
                         const float *gamma, void *out, half_bits *next, float *next_squares,
                         int M, int N, int K, int x_stride, int out_stride, int parts);

static struct {
    const void *pointers[12];
    int numbers[6];
} call;

static void lane() {
    const void **p = call.pointers;
    const int *n = call.numbers;
    few_rows((const half_bits *)p[0], (const word *)p[1], (const word *)p[2], p[3], p[4], (const half_bits *)p[5],
             (const float *)p[6], (const float *)p[7], (const float *)p[8], (void *)p[9], (half_bits *)p[10],
             (float *)p[11], n[0], n[1], n[2], n[3], n[4], n[5]);
    has_ended[current] = 1;
}

static const size_t STACK = 256 << 10;

// All programs, one after the other.
extern "C" void launch(int programs, int threads, const void **pointers, const int *numbers) {
    memcpy(call.pointers, pointers, sizeof call.pointers);
    memcpy(call.numbers, numbers, sizeof call.numbers);
    const std::unique_ptr<char[]> stacks(new char[threads * STACK]);
    for (int program = 0; program < programs; program++) {
        blockIdx.x = program;
        lanes.assign(threads, {});
        has_ended.assign(threads, 0);
        arrived = generation = 0;
        for (int at = 0; at < threads; at++) {
            getcontext(&lanes[at]);
            lanes[at].uc_stack.ss_sp = &stacks[at * STACK];
            lanes[at].uc_stack.ss_size = STACK;
            lanes[at].uc_link = &scheduler;
            makecontext(&lanes[at], lane, 0);
        }
        for (bool is_going = true; is_going;) {
            is_going = false;
            for (int at = 0; at < threads; at++)
                if (!has_ended[at]) {
                    is_going = true;
                    current = at;
                    threadIdx.x = at;
                    swapcontext(&scheduler, &lanes[at]);
                }
        }
    }
}
