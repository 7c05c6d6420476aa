/* Products of many rows by AMX: weights are unpacked to bfloat16 some tiles at a time, and activations are rounded to it.
 * Sums are float32, added in one order: a row's result has the same bits for any number of rows that comes here.
 */
#include "amx.h"

#if defined(AMX)
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Inputs and rows at a time, so that activations stay in the second cache. */
enum { DEPTH = 1024, ROWS_AT_ONCE = 512, ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };

int amx_is_here(void) {
  static int found = -1;
  if (found >= 0) return found;
  const unsigned parts = 1 << 22 | 1 << 24 | 1 << 25; /* Of leaf 7: AMX-BF16, AMX-TILE, AMX-INT8. */
  unsigned a, b, c, d, low, high;
  found = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1 << 27)) return found; /* OSXSAVE */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & parts) != parts) return found;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 3 << 17) != 3 << 17) return found;
  found = syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
  return found;
}

AMX void amx_arrange(const float *x, int64_t rows, int64_t inputs, int64_t begin, int64_t end, uint16_t *out) {
  const int64_t runs = (inputs + RUN - 1) / RUN;
  for (int64_t row = begin; row < end; row++)
    for (int64_t run = 0; run < runs; run++) {
      uint16_t *to = out + ((row / TILE * runs + run) * TILE + row % TILE) * RUN;
      for (int half = 0; half < RUN; half += 16) {
        const int64_t at = run * RUN + half, left = row < rows ? inputs - at : 0;
        const __mmask16 some = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1 << left) - 1);
        _mm256_storeu_si256((__m256i *)(to + half), to_bf16(_mm512_maskz_loadu_ps(some, x + row * inputs + at)));
      }
    }
}

/* `WIDE` outputs of `runs` runs from `start` on, as tiles of AMX. */
static void unpack(const AmxProduct *job, int64_t tile, int64_t start, int64_t runs, uint32_t *weights) {
  for (int64_t run = 0; run < runs; run++)
    for (int side = 0; side < 2; side++) {
      uint32_t *to = weights + (run * 2 + side) * TILE * TILE;
      if (tile + side < job->end) job->tiles->pairs[job->kind](job->packed, tile + side, job->inputs, start + run, to);
      else memset(to, 0, TILE * TILE * sizeof(uint32_t));
    }
}

AMX void amx_multiply(const AmxProduct *job, uint8_t *room) {
  const int64_t runs = (job->inputs + RUN - 1) / RUN, pairs = (job->end - job->begin + 1) / 2;
  uint32_t *weights = (uint32_t *)room;
  float *edges = (float *)(room + WIDE * DEPTH * 2); /* Blocks of sums that do not fit into y. */
  use_tiles();
  for (int64_t top = 0; top < job->rows; top += ROWS_AT_ONCE) {
    const int64_t bottom = top + ROWS_AT_ONCE < job->rows ? top + ROWS_AT_ONCE : job->rows;
    for (int64_t start = 0; start < runs; start += DEPTH / RUN) {
      const int64_t count = start + DEPTH / RUN < runs ? DEPTH / RUN : runs - start;
      for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t tile = job->begin + 2 * pair, left = job->outputs - tile * TILE;
        const int64_t within = tile + 2 > job->end ? TILE : WIDE, columns = left < within ? left : within;
        unpack(job, tile, start, count, weights);
        for (int64_t row = top; row < bottom; row += WIDE) {
          const uint16_t *x = job->x + (row / TILE * runs + start) * TILE * RUN;
          float *y = job->y + row * job->stride + 2 * pair * TILE, *edge = NULL;
          if (columns < WIDE) edge = edges + (pairs + (row - top) / WIDE) * WIDE * WIDE;
          else if (row + WIDE > job->rows) edge = edges + pair * WIDE * WIDE;
          add_tiles(x, runs * TILE * RUN, weights, 2 * TILE * TILE, count, start == 0, edge ? edge : y,
                    edge ? WIDE : job->stride);
          if (edge && start + count == runs)
            for (int64_t one = 0; one < WIDE && row + one < job->rows; one++)
              memcpy(y + one * job->stride, edge + one * WIDE, sizeof(float) * columns);
        }
      }
    }
  }
  _tile_release();
}

int64_t amx_room_bytes(const AmxProduct *job) {
  const int64_t pairs = (job->end - job->begin + 1) / 2;
  return WIDE * DEPTH * 2 + (pairs + ROWS_AT_ONCE / WIDE) * WIDE * WIDE * (int64_t)sizeof(float);
}

#else

int amx_is_here(void) { return 0; }
int64_t amx_room_bytes(const AmxProduct *job) { return job->rows; }
void amx_arrange(const float *x, int64_t rows, int64_t inputs, int64_t begin, int64_t end, uint16_t *out) {
  (void)x, (void)rows, (void)inputs, (void)begin, (void)end, (void)out;
}
void amx_multiply(const AmxProduct *job, uint8_t *room) { (void)job, (void)room; }

#endif
