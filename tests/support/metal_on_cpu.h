/* What kernels.metal needs to run on a processor: each thread of a group is a fiber, and those that
 * wait for others give way until these have come as far. A group in which some never come (which
 * would hang, or be undefined, on a GPU) ends the process with a message.
 */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef unsigned char uchar;
typedef unsigned int uint;
typedef _Float16 half;
typedef struct {
    uint x, y, z;
} uint3;

#define kernel
#define device
#define thread
#define constant const
#define threadgroup static
#define exp expf
#define sqrt sqrtf
#define tanh tanhf
#define fmax fmaxf
#define clamp(x, low, high) fminf(fmaxf(x, low), high)
#define threadgroup_barrier(flags) wait_for(0, fiber_count)
#define simd_sum(x) sum_of_simdgroup(x)

#define MOST 1024
#define STACK (64 << 10)

static ucontext_t scheduler, fibers[MOST];
static int fiber_count, fiber, moved, done[MOST];
static int arrived[1 + MOST / 32], epochs[1 + MOST / 32];
static float given[MOST], sums_of[1 + MOST / 32];

static void wait_for(int which, int count) {
    int epoch = epochs[which];
    moved = 1;
    if (++arrived[which] == count) {
        arrived[which] = 0;
        epochs[which]++;
        return;
    }
    while (epochs[which] == epoch) swapcontext(&fibers[fiber], &scheduler);
    moved = 1;
}

static float sum_of_simdgroup(float x) {
    int which = 1 + fiber / 32;
    given[fiber] = x;
    if (arrived[which] == 31) {
        float sum = 0;
        for (int lane = 0; lane < 32; lane++) sum += given[fiber / 32 * 32 + lane];
        sums_of[which] = sum;
    }
    wait_for(which, 32);
    return sums_of[which];
}

static void (*body)(void **, uint3);
static void **arguments;
static uint3 places[MOST];

static void run_fiber(void) {
    int own = fiber;
    body(arguments, places[own]);
    done[own] = moved = 1;
    for (;;) swapcontext(&fibers[own], &scheduler);
}

/* As Metal's dispatchThreads: the last groups may be smaller. */
static void dispatch(void (*function)(void **, uint3), void **given_arguments, const long *threads,
                     const long *group) {
    body = function;
    arguments = given_arguments;
    char *stacks = malloc((size_t)MOST * STACK);
    for (long z = 0; z < threads[2]; z += group[2])
        for (long y = 0; y < threads[1]; y += group[1])
            for (long x = 0; x < threads[0]; x += group[0]) {
                fiber_count = 0;
                for (long c = z; c < z + group[2] && c < threads[2]; c++)
                    for (long b = y; b < y + group[1] && b < threads[1]; b++)
                        for (long a = x; a < x + group[0] && a < threads[0]; a++) {
                            ucontext_t *one = &fibers[fiber_count];
                            getcontext(one);
                            one->uc_stack.ss_sp = stacks + (size_t)fiber_count * STACK;
                            one->uc_stack.ss_size = STACK;
                            one->uc_link = &scheduler;
                            makecontext(one, run_fiber, 0);
                            done[fiber_count] = 0;
                            places[fiber_count++] = (uint3){(uint)a, (uint)b, (uint)c};
                        }
                memset(arrived, 0, sizeof arrived);
                for (moved = 1; moved;) {
                    moved = 0;
                    for (fiber = 0; fiber < fiber_count; fiber++)
                        if (!done[fiber]) swapcontext(&scheduler, &fibers[fiber]);
                }
                for (int one = 0; one < fiber_count; one++)
                    if (!done[one]) {
                        fprintf(stderr, "thread %d waits for threads that never come\n", one);
                        abort();
                    }
            }
    free(stacks);
}
