/* What each instruction set offers: products with tiles. */
#ifndef HEARTH_TILES_API_H
#define HEARTH_TILES_API_H

#include "layouts.h"

/* Runs of 32 numbers as int8, and what is known of each: at its place. */
typedef struct {
  int8_t *numbers;
  float *scales;     /* what a number is multiplied by */
  float *sums;       /* of all 32 numbers, whole */
  float *offsets[3]; /* scale times sum: of all 32, of the first and of the last 16 */
  float *starts;     /* [zeros][2][places], see `Zero` */
  int64_t places;
} Runs;
enum { BYTES_OF_RUN = RUN + 5 * sizeof(float), BYTES_OF_STARTS = 2 * sizeof(float) };

/* Sums of products begin with the bits of this float, 1.5 * 2^23: the bits of a sum are those of a float that is as much
 * more than it.
 */
#define SHIFT 12582912.0f

/* What is taken from all codes of a matrix. It is taken from sums at their start, times the sum of the activations of the run, or
 * of each half.
 */
typedef struct {
  Kind kind;
  int has_zeros; /* codes of each block have a zero of their own: nothing is taken at the start */
} Zero;

/* Activations of some rows. A few large numbers in a row would take the accuracy from the other numbers of their runs: these
 * runs are the sum of two, the second of which is what rounding left of the first.
 */
typedef struct {
  int64_t inputs, together; /* rows whose runs are neighbours, filled up with zeros: NEIGHBOURS, or 1, 2 or 4 */
  Zero zeros[2 * KINDS]; /* of all matrices */
  int64_t zero_count;
  Runs first, second;
  uint64_t *seconds; /* bits [rows][words_of(inputs)][64]: whether a run has a second one */
} Quantized;
enum { NEIGHBOURS = 8 };
enum { SECOND = 254 }; /* Of a second run 127 is half of what 1 of the first is. */
enum { FAR = 6 };      /* times the mean square of the scales of a row: see docs/results/2026-11-26-activations.md */

/* Words of a row's bits, a bit a run. */
INLINE int64_t words_of(int64_t inputs) { return (inputs / RUN + 63) / 64; }

/* A row's next run is `together` places on. */
INLINE int64_t place_of(const Quantized *x, int64_t row, int64_t run) {
  return (row / x->together * (x->inputs / RUN) + run) * x->together + row % x->together;
}

/* y[m * stride + n] of the rows m from `row`, a multiple of NEIGHBOURS, to `end`, at most BLOCK_ROWS, and the outputs n of the tiles
 * `tile` to `last` of a matrix with `outputs`; y begins at the first of them. Rows that fill up the last neighbours are read.
 */
enum { BLOCK_ROWS = 64 };
typedef void (*DotTiles)(const uint8_t *packed, int64_t tile, int64_t last, int64_t outputs, const Quantized *x, int64_t row,
                         int64_t end, float *y, int64_t stride);

/* Of tile `tile`: all 16, or what is left of them. */
INLINE int outputs_of(int64_t outputs, int64_t tile) {
  const int64_t left = outputs - tile * TILE;
  return left < TILE ? (int)left : TILE;
}

/* Attention of a layer over pages: keys are [kv_heads, blocks, page] rows of head_dim numbers, and so are values, each of a
 * `KvType`. A row of Q8_0 is `head_dim` codes, then a float16 for each RUN of them, by which they are multiplied.
 */
typedef enum { KV_F16, KV_F32, KV_Q8_0, ROW_BF16 } KvType; /* The last is of matrices alone. */

INLINE int64_t kv_row_bytes(int32_t type, int64_t size) {
  return type == KV_F32 ? 4 * size : type == KV_Q8_0 ? size + size / RUN * 2 : 2 * size;
}

enum { SPAN = 256, STRIDE = SPAN + TILE };
enum { GELU_TANH = 1, SWIGLU_CLAMPED }; /* 0: SiLU */

typedef struct {
  int64_t heads, kv_heads, head_dim, page;
  int64_t window;     /* a token sees itself and the `window` - 1 before it; 0: all */
  const float *sinks; /* [heads], or NULL */
  float scale, softcap;
  int32_t key_type, value_type;
} Heads;

/* At most SPAN keys that a token sees, of one head: positions `begin` to `end`. */
typedef struct {
  const uint8_t *keys, *values;
  const int32_t *table; /* blocks of the sequence */
  int64_t begin, end;
  int64_t known;       /* positions from here on are in the cells of `path`, those before in their own */
  const int64_t *path;
} Span;

/* The first address of a cache line at `room` or behind it. */
INLINE void *line_of(void *room) { return (void *)(((uintptr_t)room + LINE - 1) / LINE * LINE); }

typedef struct {
  DotTiles dot[KINDS]; /* of kinds whose codes are integers */
  /* The same with float32 activations [rows, inputs]. */
  void (*wide[KINDS])(const uint8_t *packed, int64_t tile, int count, int64_t inputs, const float *x,
                      int64_t rows, float *y, int64_t stride);
  int has_amx;
  void (*quantize)(Quantized *x, const float *rows, int64_t begin, int64_t end);
  /* See rows.h. */
  void (*norm)(const float *x, const float *weight, float eps, int64_t size, float *out);
  void (*gate)(int32_t activation, float *gate, const float *up, int64_t size);
  void (*add)(float *x, const float *y, int64_t size);
  void (*add_share)(float *x, const float *y, float share, int64_t size);
  float (*weigh)(float *x, float peak, int64_t size);
  void (*score)(int32_t type, const float *x, int64_t rows, const uint8_t *weight, int64_t count, int64_t size, float *out,
                int64_t stride);
  void (*keep)(int32_t type, const float *from, uint8_t *to, int64_t size);
  void (*attend)(const Heads *about, const Span *span, const float *query, int64_t shared, float *out, float *peaks,
                 float *totals);
  void (*join)(const float *parts, int64_t stride, const float *peaks, const float *totals, int64_t step, int64_t count,
               const float *sink, int64_t size, float *out);
} Tiles;

/* New tokens of one sequence, whose keys and values are in the pool. */
typedef struct {
  const Heads *about;
  const uint8_t *keys, *values; /* of the first head */
  int64_t head_rows;            /* from a head to the next one */
  const int32_t *table;         /* blocks of the sequence */
  int64_t start, count;         /* positions of the tokens: from `start` on */
  const float *query;           /* [count, heads, head_dim], of `stride` numbers a token */
  int64_t stride;
  float *out;                   /* [count, heads, head_dim], of `out_stride` numbers a token */
  int64_t out_stride;
} Run;

/* Attention of many tokens by AMX, for `in_parallel` to divide. Returns a fault, see packed.h. */
int32_t amx_attend(const Run *run);

/* A product by AMX: y[m * stride + n] of the tiles `begin` to `end` of a matrix, where y begins at the first of them. */
typedef struct {
  Kind kind;
  const uint8_t *packed;
  int64_t begin, end, outputs, inputs;
  const uint16_t *x; /* [rows / 16][inputs / 32][16][32] of bfloat16, filled up with zeros to a multiple of 32 rows */
  int64_t rows;
  float *y;
  int64_t stride;
} AmxProduct;

/* `room`: amx_room_bytes, of which a multiple of 64 is the address. */
void amx_multiply(const AmxProduct *job, uint8_t *room);
int64_t amx_room_bytes(const AmxProduct *job);
/* Whether the processor has AMX's products of bfloat16, and the system lets this process use them. */
int amx_is_here(void);
/* Rows `begin` to `end` of x[rows, inputs] in the order of `AmxProduct`; those beyond `rows` are zero. */
void amx_arrange(const float *x, int64_t rows, int64_t inputs, int64_t begin, int64_t end, uint16_t *out);

extern const Tiles tiles_plain;
#if defined(__x86_64__) || defined(_M_X64)
extern const Tiles tiles_avx2, tiles_avx512;
#endif

#endif
