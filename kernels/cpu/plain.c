/* Products of few rows with a matrix that is not packed: its rows lie one after the other, as files have them. */
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include "packed.h"

enum { OUTPUTS = 16, BLOCKS_ALONE = 16 };

typedef struct {
  const Tiles *tiles;
  const uint8_t *weight;
  int64_t outputs, inputs;
  const void *x; /* [rows, inputs] of float32, or of bfloat16 for `multiply_bf16` */
  int64_t rows;
  float *y; /* [rows, outputs] */
  int32_t type;
} Product;

/* Blocks of 16 outputs, which stay in the cache for all rows. */
static void multiply(int64_t begin, int64_t end, void *context) {
  const Product *job = context;
  const int64_t bytes = kv_row_bytes(job->type, job->inputs);
  for (int64_t at = begin * OUTPUTS; at < end * OUTPUTS && at < job->outputs; at += OUTPUTS) {
    const int64_t count = job->outputs - at < OUTPUTS ? job->outputs - at : OUTPUTS;
    job->tiles->score(job->type, job->x, job->rows, job->weight + at * bytes, count, job->inputs, job->y + at, job->outputs);
  }
}

#if defined(__x86_64__) || defined(_M_X64)
#define BF16 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < n; i++)

static inline __attribute__((always_inline)) BF16 void dot(const int rows, const int keys, const uint16_t *x,
                                                           const uint16_t *weight, int64_t size, float *out, int64_t stride) {
  __m512 sum[8][4];
  EACH(q, rows) EACH(k, keys) sum[q][k] = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += RUN) {
    __m512bh some[4];
    EACH(k, keys) some[k] = (__m512bh)_mm512_loadu_si512(weight + k * size + i);
    EACH(q, rows) {
      const __m512bh wanted = (__m512bh)_mm512_loadu_si512(x + q * size + i);
      EACH(k, keys) sum[q][k] = _mm512_dpbf16_ps(sum[q][k], wanted, some[k]);
    }
  }
  EACH(q, rows) EACH(k, keys) out[q * stride + k] = _mm512_reduce_add_ps(sum[q][k]);
}

BF16 static void multiply_bf16(int64_t begin, int64_t end, void *context) {
  const Product *job = context;
  const int64_t size = job->inputs, stride = job->outputs;
  for (int64_t at = begin * OUTPUTS; at < end * OUTPUTS && at < job->outputs; at += OUTPUTS) {
    const int64_t last = job->outputs - at < OUTPUTS ? job->outputs : at + OUTPUTS;
    const uint16_t *weight = (const uint16_t *)job->weight, *x = job->x;
    int64_t row = 0;
#define SOME(rows, keys) \
  for (; last - output >= keys; output += keys) \
    dot(rows, keys, x + row * size, weight + output * size, size, job->y + row * stride + output, stride);
#define ROWS(n, keys)                   \
  for (; job->rows - row >= n; row += n) { \
    int64_t output = at;                \
    SOME(n, keys) SOME(n, 1)            \
  }
    ROWS(4, 4) ROWS(2, 4) ROWS(1, 4)
#undef ROWS
#undef SOME
  }
}

static int32_t asked_bf16(void) {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1 << 5;
}
#else
static int32_t asked_bf16(void) { return 0; }
static void multiply_bf16(int64_t begin, int64_t end, void *context) { multiply(begin, end, context); }
#endif

/* Whether the processor multiplies pairs of bfloat16, and `instructions` let it. */
EXPORT int32_t hearth_multiplies_bf16(int32_t instructions) {
  static _Atomic int32_t found = -1; /* As in `hearth_instructions`. */
  if (found < 0) found = asked_bf16();
  return found && instructions >= AVX512 && instructions <= hearth_instructions();
}

/* y[rows, outputs] = x[rows, inputs] times the matrix transposed, of KV_F32, KV_F16 or ROW_BF16; inputs are a multiple of 16.
 * Sums are float32. A row's result has the same bits for any number of rows.
 *
 * `is_half`: x is bfloat16, of a matrix of ROW_BF16 whose inputs are a multiple of 32, where `hearth_multiplies_bf16`.
 */
EXPORT int32_t hearth_multiply_plain(int32_t type, const uint8_t *weight, int64_t outputs, int64_t inputs, const void *x,
                                     int64_t rows, int32_t is_half, float *y, int32_t instructions) {
  const Tiles with = tiles_for(instructions);
  if (!with.quantize || (is_half && !hearth_multiplies_bf16(instructions))) return NO_INSTRUCTIONS;
  if ((type != KV_F32 && type != KV_F16 && type != ROW_BF16) || (is_half && type != ROW_BF16)) return NO_KIND;
  if (inputs <= 0 || inputs % (is_half ? RUN : TILE) || outputs < 0 || rows < 0) return NO_SHAPE;
  Product job = {&with, weight, outputs, inputs, x, rows, y, type};
  in_parallel((outputs + OUTPUTS - 1) / OUTPUTS, BLOCKS_ALONE, is_half ? multiply_bf16 : multiply, &job);
  return OK;
}
