/* AMX, on the system that lets a process use it: Linux on x86-64. */
#ifndef HEARTH_AMX_H
#define HEARTH_AMX_H

#include "tiles_api.h"

enum { WIDE = 2 * TILE };
enum { AHEAD = 4 }; /* tiles that are asked for before they are read */

#if defined(__x86_64__) && defined(__linux__)
#include "lanes_avx512.h"

#define AMX \
  __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,avx512bf16,f16c,fma")))

/* How this thread's tiles are configured, and back: llama.cpp configures those of its threads once and relies on that. */
AMX static inline void keep_tiles(uint8_t before[LINE]) { __asm__ volatile("sttilecfg %0" : "=m"(*(uint8_t(*)[LINE])before)); }
AMX static inline void give_back_tiles(const uint8_t before[LINE]) {
  __asm__ volatile("ldtilecfg %0" : : "m"(*(const uint8_t(*)[LINE])before));
}

/* Eight tiles of 16 rows of 64 bytes. */
AMX static inline void use_tiles(void) {
  struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
  for (int tile = 0; tile < 8; tile++) config.bytes[tile] = LINE, config.rows[tile] = TILE;
  /* Not the intrinsic: GCC before 12.4 takes its operand for 8 bytes, and drops what is written to the others. */
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

/* Rounded to even. Every processor with AMX's bfloat16 has this instruction. */
AMX static inline __m256i to_bf16(__m512 numbers) {
  const __m256bh halves = _mm512_cvtneps_pbh(numbers);
  __m256i bits;
  __builtin_memcpy(&bits, &halves, sizeof bits);
  return bits;
}

/* 32 floats as bfloat16: those of `lower`, then those of `upper`. */
#define STORE_BF16(place, upper, lower)                             \
  do {                                                              \
    const __m512bh halves = _mm512_cvtne2ps_pbh(upper, lower);      \
    __builtin_memcpy(place, &halves, sizeof halves);                \
  } while (0)

/* Each of the first 16 numbers of 32 next to its fellow of the last 16. */
AMX static inline void store_side_by_side(uint32_t *place, __m512i halves) {
  static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  _mm512_storeu_si512(place, _mm512_permutexvar_epi16(_mm512_loadu_si512(order), halves));
}

/* 16 numbers of each as bfloat16, side by side. */
AMX static inline void store_pair(uint32_t *place, __m512 first, __m512 second) {
  __m512i both;
  STORE_BF16(&both, second, first);
  store_side_by_side(place, both);
}

/* 32 rows by 32 columns over `depth` tiles of each, added to `sums` or, where that is NULL, to zero. The lower 16 rows are `lower`
 * numbers behind the upper ones, and the right 16 columns `right` behind the left ones; tiles of columns are `step` behind the
 * ones before them. `stride` is that of `sums`.
 */
AMX static inline void add_tiles(const uint16_t *rows, int64_t lower, const uint32_t *columns, int64_t right, int64_t step,
                                 int64_t depth, const float *sums, int64_t stride, float *out, int64_t out_stride) {
  if (!sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, stride * sizeof(float));
    _tile_loadd(1, sums + TILE, stride * sizeof(float));
    _tile_loadd(2, sums + TILE * stride, stride * sizeof(float));
    _tile_loadd(3, sums + TILE * stride + TILE, stride * sizeof(float));
  }
  for (int64_t at = 0; at < depth; at++, columns += step) {
    _tile_stream_loadd(4, rows + at * TILE * RUN, LINE);
    _tile_stream_loadd(5, rows + lower + at * TILE * RUN, LINE);
    _tile_loadd(6, columns, LINE);
    _tile_loadd(7, columns + right, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, out_stride * sizeof(float));
  _tile_stored(1, out + TILE, out_stride * sizeof(float));
  _tile_stored(2, out + TILE * out_stride, out_stride * sizeof(float));
  _tile_stored(3, out + TILE * out_stride + TILE, out_stride * sizeof(float));
}

/* The same of the upper 16 rows, whose columns are read from memory. */
AMX static inline void add_upper_tiles(const uint16_t *rows, const uint32_t *columns, int64_t right, int64_t step, int64_t depth,
                                       const float *sums, int64_t stride, float *out, int64_t out_stride) {
  if (!sums) {
    _tile_zero(0);
    _tile_zero(1);
  } else {
    _tile_loadd(0, sums, stride * sizeof(float));
    _tile_loadd(1, sums + TILE, stride * sizeof(float));
  }
  for (int64_t at = 0; at < depth; at++, columns += step) {
    for (int64_t line = 0; line < TILE; line++) {
      __builtin_prefetch(columns + AHEAD * step + line * TILE);
      __builtin_prefetch(columns + right + AHEAD * step + line * TILE);
    }
    _tile_loadd(4, rows + at * TILE * RUN, LINE);
    _tile_loadd(6, columns, LINE);
    _tile_loadd(7, columns + right, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, out, out_stride * sizeof(float));
  _tile_stored(1, out + TILE, out_stride * sizeof(float));
}

#endif
#endif
