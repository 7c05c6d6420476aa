/* What each instruction set offers: products with one tile. */
#ifndef HEARTH_TILES_API_H
#define HEARTH_TILES_API_H

#include "layouts.h"

/* Activations of some rows as int8, 32 of a run, and what is known of it: each at the place of the run. Sums are
 * whole numbers.
 */
typedef struct {
  int64_t inputs, together; /* rows whose runs are neighbours: 16, or all if there are less */
  int8_t *numbers;
  float *scales;    /* what a number is multiplied by */
  float *sums;      /* of all 32 */
  float *halves[2]; /* of the first and the last 16 */
  float *offsets;   /* scale times sum */
} Quantized;

/* A row's next run is `together` places on. */
INLINE int64_t place_of(const Quantized *x, int64_t row, int64_t run) {
  return (row / x->together * (x->inputs / RUN) + run) * x->together + row % x->together;
}

/* y[m * stride + n] of `count` outputs n of a tile and the rows m from `row` to `end`. */
typedef void (*DotTile)(const uint8_t *packed, int64_t tile, int count, const Quantized *x, int64_t row,
                        int64_t end, float *y, int64_t stride);

typedef struct {
  DotTile dot[KINDS]; /* of kinds whose codes are integers */
  /* The same with float32 activations [rows, inputs]. */
  void (*wide[KINDS])(const uint8_t *packed, int64_t tile, int count, int64_t inputs, const float *x,
                      int64_t rows, float *y, int64_t stride);
  /* A run of a tile as plain numbers, out[input * stride + output], float32 or bfloat16. */
  void (*plain[KINDS])(const uint8_t *packed, int64_t tile, int64_t inputs, int64_t run, void *out, int64_t stride,
                       int is_bf16);
  void (*quantize)(Quantized *x, const float *rows, int64_t begin, int64_t end);
} Tiles;

extern const Tiles tiles_plain;
#if defined(__x86_64__) || defined(_M_X64)
extern const Tiles tiles_avx2, tiles_avx512;
#endif

#endif
