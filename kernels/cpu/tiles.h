/* Products with a packed tile, written once for vectors of `W` 32-bit lanes. A file that includes this
 * defines the lanes and what is done with them (see tiles_avx512.c):
 *
 *   TARGET              attribute of every function
 *   W, VI, VF           lanes; vectors of 32-bit integers (4 W bytes) and of floats
 *   LOAD(p) SHR(v, n) SHL(v, n) AND(v, byte) OR(a, b) LOOKUP(v, table)    on bytes; shifts in 16 bits
 *   LOAD_PAIRS(p)                what FROM_E4M3 takes, of bytes from `p` and from p + 32 on
 *   DOT(sum, codes, x, wide)     adds the 4 products of each lane; `wide`: codes are signed + 128
 *   TAKEN(about)                 what DOT takes from a code before it multiplies
 *   LANE_BYTE(v, j)              byte j of each lane
 *   SET_I(i) ADD_I TO_F SET_F(f) ADD_F SUB_F MUL_F FMA(a, b, c) SUM_F(v) STORE_F
 *   LOAD_F16 LOAD_F32 LOAD_U8 LOAD_I8 LOAD_E8M0   W numbers as floats
 *   FROM_E4M3(v, j)              256th parts of the numbers that byte j of each output stands for, exact
 *   STORE_SUMS(p, a, b, c, d)    stores SUM_F of each of four
 *   PICK(v, j, table)            those of 16 floats whose numbers are the low halves of byte j of each lane
 *   LOAD_BF16(p)                 W numbers of bfloat16 as floats
 *   HIGH_16(v)                   the high 16 bits of each lane, where they are
 *   TILES                        the name of the table of functions
 *
 * A row's result has the same bits for any number of rows: sums of integers are exact, and floats are
 * added in one order.
 */
#include "tiles_api.h"

#include <stddef.h>

#include "codes.h"

/* Rows that are multiplied together: AVX-512 has registers for 16. */
enum { MOST_ROWS = W > 8 ? 16 : 8 };

/* `rows` rows of quantized activations with W outputs of a tile, from lane `lane` on. */
HERE void dot_rows(Kind kind, const int rows, Tile tile, int lane, const Quantized *x, int64_t row, float *out) {
  const int chains = rows < 4 ? 2 : 1;
  VF total[MOST_ROWS];
  EACH_ROW total[m] = SET_F(0.0f);
  const int64_t start = place_of(x, row, 0);
  EACH_RUN(0, x->inputs / RUN) EACH_PART {
    const int64_t place = start + block.run * x->together;
    if (!part) fetch_ahead(tile, index, block.run);
    VI sum[MOST_ROWS][2];
    EACH_ROW sum[m][0] = sum[m][1] = SET_I(0);
    EACH_UNIT {
      VI code = unpacked(tile, block.run, lane, unit);
      EACH_ROW sum[m][unit % chains] = DOT_FOUR(sum[m][unit % chains], code, &x->first, place + m, unit);
    }
    const Scales of = part_of(kind, tile.about, block, part);
    EACH_ROW {
      VI all = chains == 2 ? ADD_I(sum[m][0], sum[m][1]) : sum[m][0];
      total[m] = added(kind, tile.about, TAKEN(tile.about), total[m], TO_F(all), of, &x->first, place + m, part);
    }
  }
  EACH_ROW STORE_F(out + m * TILE, total[m]);
  add_seconds(kind, rows, tile, lane, x, row, out);
}

/* As `dot_rows`, with float32 activations [rows, inputs]: four sums an output, of inputs 4i + j. */
HERE void wide_rows(Kind kind, const int rows, Tile tile, int lane, int64_t inputs, const float *x, float *out) {
  VF sum[4][UNIT];
  EACH_ROW
    for (int j = 0; j < UNIT; j++) sum[m][j] = SET_F(0.0f);
  EACH_RUN(0, inputs / RUN) EACH_PART {
    const Scales of = part_of(kind, tile.about, block, part);
    if (!part) fetch_ahead(tile, index, block.run);
    EACH_UNIT {
      VI code = unpacked(tile, block.run, lane, unit);
      const float *numbers = x + block.run * RUN + unit * UNIT;
      UNROLL
      for (int j = 0; j < UNIT; j++) {
        VF weight = weight_of(kind, tile.about, code, j, of);
        EACH_ROW sum[m][j] = FMA(weight, SET_F(numbers[m * inputs + j]), sum[m][j]);
      }
    }
  }
  EACH_ROW
    STORE_F(out + m * TILE, ADD_F(ADD_F(sum[m][0], sum[m][1]), ADD_F(sum[m][2], sum[m][3])));
}

/* Input `input` of W outputs of a tile of half precision. */
HERE VF half_at(Kind kind, const uint8_t *tile, int lane, int64_t input) {
  if (kind == F16) return LOAD_F16(tile + 2 * half_of(kind, lane, input));
  const VI pairs = LOAD(tile + 2 * half_of(kind, lane, input / 2 * 2));
  return AS_F(input % 2 ? HIGH_16(pairs) : SHL_I(pairs, 16));
}

/* The same with a tile of half precision, and any number of inputs. */
HERE void half_rows(Kind kind, const int rows, const uint8_t *tile, int lane, int64_t inputs, const float *x, float *out) {
  VF sum[4][UNIT];
  EACH_ROW
    for (int j = 0; j < UNIT; j++) sum[m][j] = SET_F(0.0f);
  int64_t input = 0;
  for (; input + UNIT <= inputs; input += UNIT) {
    fetch(tile + 2 * TILE * input + CODES_AHEAD, 2 * TILE * UNIT);
    UNROLL
    for (int j = 0; j < UNIT; j++) {
      VF weight = half_at(kind, tile, lane, input + j);
      EACH_ROW sum[m][j] = FMA(weight, SET_F(x[m * inputs + input + j]), sum[m][j]);
    }
  }
  for (; input < inputs; input++) {
    VF weight = half_at(kind, tile, lane, input);
    EACH_ROW sum[m][0] = FMA(weight, SET_F(x[m * inputs + input]), sum[m][0]);
  }
  EACH_ROW STORE_F(out + m * TILE, ADD_F(ADD_F(sum[m][0], sum[m][1]), ADD_F(sum[m][2], sum[m][3])));
}

HERE void store_rows(const float *found, const int rows, int count, float *y, int64_t stride) {
  EACH_ROW __builtin_memcpy(y + m * stride, found + m * TILE, sizeof(float) * count);
}

HERE void dot_tile(Kind kind, const uint8_t *packed, int64_t tile, int count, const Quantized *x,
                   int64_t row, int64_t end, float *y, int64_t stride) {
  float found[MOST_ROWS * TILE];
  const Tile at = tile_at(kind, packed, x->inputs, tile);
#define ROWS(n)                                                                   \
  for (; end - row >= n; row += n, y += n * stride) {                             \
    for (int lane = 0; lane < TILE; lane += W) dot_rows(kind, n, at, lane, x, row, found + lane); \
    store_rows(found, n, count, y, stride);                                       \
  }
  if (W > 8) { ROWS(16) }
  if (W > 4) { ROWS(8) }
  ROWS(4) ROWS(2) ROWS(1)
#undef ROWS
}

HERE void wide_tile(Kind kind, const uint8_t *packed, int64_t tile, int count, int64_t inputs,
                    const float *x, int64_t rows, float *y, int64_t stride) {
  float found[4 * TILE];
  const Tile at = tile_at(kind, packed, inputs, tile);
#define ROWS(n)                                                                   \
  for (; rows >= n; rows -= n, x += n * inputs, y += n * stride) {                \
    for (int lane = 0; lane < TILE; lane += W) {                                  \
      if (is_plain(kind)) half_rows(kind, n, at.heads, lane, inputs, x, found + lane); \
      else wide_rows(kind, n, at, lane, inputs, x, found + lane);                 \
    }                                                                             \
    store_rows(found, n, count, y, stride);                                       \
  }
  ROWS(4) ROWS(2) ROWS(1)
#undef ROWS
}

/* Of the kinds, each compiled for itself. */
#define DOT_OF(kind)                                                                                                \
  TARGET static void dot_##kind(const uint8_t *packed, int64_t tile, int count, const Quantized *x, int64_t row,    \
                                int64_t end, float *y, int64_t stride) {                                            \
    dot_tile(kind, packed, tile, count, x, row, end, y, stride);                                                    \
  }
#define WIDE_OF(kind)                                                                                             \
  TARGET static void wide_##kind(const uint8_t *packed, int64_t tile, int count, int64_t inputs, const float *x,    \
                                 int64_t rows, float *y, int64_t stride) {                                          \
    wide_tile(kind, packed, tile, count, inputs, x, rows, y, stride);                                               \
  }
EACH_INTEGER_KIND(DOT_OF)
EACH_KIND(WIDE_OF)

/* A run as int8: its numbers times `factor`; of a second run less what `first` has of that, or NULL. */
HERE void keep_numbers(const float *from, VF factor, const Runs *first, float scale, Runs *to, int64_t place) {
  const VF shift = SET_F(12582912.0f); /* 1.5 * 2^23: rounds to an integer. */
  VF halves[2] = {SET_F(0.0f), SET_F(0.0f)};
  float shifted[RUN];
  UNROLL
  for (int i = 0; i < RUN; i += W) {
    VF number = MUL_F(LOAD_F32(from + i), factor);
    if (first) number = MUL_F(SUB_F(number, LOAD_I8(first->numbers + place * RUN + i)), SET_F(SECOND));
    number = ADD_F(number, shift);
    STORE_F(shifted + i, number);
    halves[i / 16] = ADD_F(halves[i / 16], SUB_F(number, shift));
  }
  uint32_t bits[RUN];
  int8_t numbers[RUN]; /* Copied at once: the compiler makes vectors of what nothing else can point to. */
  __builtin_memcpy(bits, shifted, sizeof bits);
  for (int i = 0; i < RUN; i++) numbers[i] = (int8_t)bits[i];
  __builtin_memcpy(to->numbers + place * RUN, numbers, RUN);
  const float half = SUM_F(halves[0]), other = SUM_F(halves[1]);
  to->scales[place] = scale;
  to->halves[0][place] = half;
  to->halves[1][place] = other;
  to->sums[place] = half + other;
  to->offsets[place] = scale * (half + other);
}

/* The largest magnitude of a run; NaN where it has one. */
HERE float peak_of_run(const float *from) {
  int32_t largest = 0;
  for (int i = 0; i < RUN; i++) {
    int32_t bits;
    __builtin_memcpy(&bits, from + i, 4);
    bits &= 0x7fffffff; /* Magnitudes compare as their bits do, NaN above all. */
    largest = bits > largest ? bits : largest;
  }
  float peak;
  __builtin_memcpy(&peak, &largest, 4);
  return peak;
}

HERE VF factor_of(float peak) { return SET_F(peak < 1e-30f ? 0.0f : 127.0f / peak); } /* Of less the reciprocal may be infinite. */

/* Rows as int8 with a scale for each 32 numbers, of which the largest magnitude is 127; a run with NaN or infinity gives NaN.
 * Errors grow with scales: a run has a second one where the square of its scale is far above those of the row.
 */
TARGET static void quantize_rows(Quantized *x, const float *rows, int64_t begin, int64_t end) {
  const int64_t runs = x->inputs / RUN;
  for (int64_t row = begin; row < end; row++) {
    const float *from = rows + row * x->inputs;
    const int64_t start = place_of(x, row, 0);
    float squares = 0.0f;
    for (int64_t run = 0; run < runs; run++) {
      const float peak = peak_of_run(from + run * RUN);
      const float scale = peak < 1e-30f ? 0.0f : peak <= 3.4028235e38f ? peak / 127.0f : __builtin_nanf("");
      keep_numbers(from + run * RUN, factor_of(peak), NULL, scale, &x->first, start + run * x->together);
      squares += scale * scale;
    }
    uint64_t *seconds = x->seconds + row * words_of(x->inputs);
    for (int64_t run = 0; run < runs; run++) {
      const int64_t place = start + run * x->together;
      const float scale = x->first.scales[place];
      if (run % 64 == 0) seconds[run / 64] = 0;
      if (!(scale * scale * (float)runs > FAR * squares)) continue;
      seconds[run / 64] |= 1ull << run % 64;
      keep_numbers(from + run * RUN, factor_of(peak_of_run(from + run * RUN)), &x->first, scale / SECOND, &x->second, place);
    }
  }
}

#include "rows.h"

#undef DOT
#define DOT(kind) [kind] = dot_##kind,
#define WIDE(kind) [kind] = wide_##kind,
const Tiles TILES = {
    {EACH_INTEGER_KIND(DOT)},
    {EACH_KIND(WIDE)},
    0,
    quantize_rows,
    norm_row,
    gate_row,
    add_row,
    add_share_of_row,
    weigh_row,
    score_rows,
    keep_row,
    attend_span,
    join_spans,
};
