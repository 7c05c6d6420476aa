/* Products with a packed tile, written once for vectors of `W` 32-bit lanes. A file that includes this
 * defines the lanes and what is done with them (see tiles_avx512.c):
 *
 *   TARGET              attribute of every function
 *   W, VI, VF           lanes; vectors of 32-bit integers (4 W bytes) and of floats
 *   LOAD(p) SHR(v, n) SHL(v, n) AND(v, byte) OR(a, b) LOOKUP(v, table)    on bytes; shifts in 16 bits
 *   LOAD_PAIRS(p)                what FROM_E4M3 takes, of bytes from `p` and from p + 32 on
 *   DOT(sum, codes, x, wide)     adds the 4 products of each lane; `wide`: codes are signed + 128
 *   TAKEN(about)                 what DOT takes from a code before it multiplies
 *   IS_FUSED                     whether FMA rounds once
 *   LANE_BYTE(v, j)              byte j of each lane
 *   AS_I(v) AS_F(v)              bits of floats
 *   SET_I(i) ADD_I TO_F SET_F(f) ADD_F SUB_F MUL_F FMA(a, b, c) SUM_F(v) STORE_F
 *   LOAD_F16 LOAD_F32 LOAD_U8 LOAD_I8 LOAD_E8M0   W numbers as floats
 *   FROM_E4M3(v, j)              256th parts of the numbers that byte j of each output stands for, exact
 *   STORE_SUMS(p, a, b, c, d)    stores SUM_F of each of four
 *   PICK(v, j, table)            those of 16 floats whose numbers are the low halves of byte j of each lane
 *   LOAD_BF16(p)                 W numbers of bfloat16 as floats
 *   HIGH_16(v)                   the high 16 bits of each lane, where they are
 *   KEEP_I8(p, v)                stores the lowest byte of each lane
 *   TILES                        the name of the table of functions
 *
 * A row's result has the same bits for any number of rows: sums of integers are exact, and floats are
 * added in one order.
 */
#include "tiles_api.h"

#include <stddef.h>

#include "codes.h"

enum { MOST_ROWS = NEIGHBOURS };

/* `rows` rows of quantized activations with W outputs of a tile, from lane `lane` on. */
HERE void dot_rows(Kind kind, const int rows, Tile tile, int lane, const Quantized *x, int64_t row, float *out) {
  const int chains = rows < 4 ? 2 : 1;
  VF total[MOST_ROWS];
  EACH_ROW total[m] = SET_F(0.0f);
  VF first[MOST_ROWS];
  const float *starts = starts_of(kind, tile.about, x, &x->first);
  const int64_t start = place_of(x, row, 0);
  EACH_RUN(0, x->inputs / RUN) EACH_PART {
    const int64_t place = start + block.run * x->together;
    if (!part) fetch_ahead(tile, index, block.run);
    VI sum[MOST_ROWS][2];
    EACH_ROW sum[m][0] = start_of(tile.about, starts, x->first.places, place + m, part), sum[m][1] = SET_I(0);
    EACH_UNIT {
      VI code = unpacked(tile, block.run, lane, unit);
      EACH_ROW sum[m][unit % chains] = DOT_FOUR(sum[m][unit % chains], code, &x->first, place + m, unit);
    }
    const Factors of = part_of(kind, tile.about, block, part);
    EACH_ROW {
      VI all = chains == 2 ? ADD_I(sum[m][0], sum[m][1]) : sum[m][0];
      total[m] = added(kind, tile.about, total[m], all, of, &x->first, place + m, part, first + m);
    }
  }
  EACH_ROW STORE_F(out + m * TILE, total[m]);
  add_seconds(kind, rows, tile, lane, x, row, out, TILE);
}

/* As `dot_rows`, with float32 activations [rows, inputs]: four sums an output, of inputs 4i + j. */
HERE void wide_rows(Kind kind, const int rows, Tile tile, int lane, int64_t inputs, const float *x, float *out) {
  VF sum[4][UNIT];
  EACH_ROW
    for (int j = 0; j < UNIT; j++) sum[m][j] = SET_F(0.0f);
  EACH_RUN(0, inputs / RUN) EACH_PART {
    const Factors of = part_of(kind, tile.about, block, part);
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

HERE void store_rows(const float *found, int64_t rows, int count, float *y, int64_t stride) {
  for (int64_t m = 0; m < rows; m++) __builtin_memcpy(y + m * stride, found + m * TILE, sizeof(float) * count);
}

HERE void dot_tile(Kind kind, const uint8_t *packed, int64_t tile, int count, const Quantized *x,
                   int64_t row, int64_t end, float *y, int64_t stride) {
  float found[MOST_ROWS * TILE];
  const Tile at = tile_at(kind, packed, x->inputs, tile, 1);
#define ROWS(n, least) /* together, or some less, filled up */                    \
  for (; end - row >= least; row += n, y += n * stride) {                         \
    for (int lane = 0; lane < TILE; lane += W) dot_rows(kind, n, at, lane, x, row, found + lane); \
    store_rows(found, end - row < n ? end - row : n, count, y, stride);           \
  }
  if (W == 8) { ROWS(8, 5) } /* With AVX-512 as many come here for a last tile without a second one, and go by fours. */
  ROWS(4, 3) ROWS(2, 2) ROWS(1, 1)
#undef ROWS
}

#if W > 8
/* Rows with two tiles at a time: an activation is loaded once for both, and registers hold all sums. What is unpacked of some runs
 * for the first MOST_ROWS rows is kept for up to BLOCK_ROWS. LEAST_PAIRED are faster filled up to MOST_ROWS than on their own.
 */
enum { PAIR = 2, LEAST_PAIRED = 5, BLOCK_RUNS = 8 };
/* The first rows unpack, and keep that if there are others. Both fetch tiles ahead, the first rows one and the second rows the other. */
typedef enum { ALL_ROWS, FIRST_ROWS, SECOND_ROWS, LATER_ROWS } Which;
#define EACH_TILE UNROLL for (int at = 0; at < PAIR; at++)

typedef struct {
  VI codes[BLOCK_RUNS * UNITS][PAIR];
  VF scales[BLOCK_RUNS * 2][PAIR], shifts[BLOCK_RUNS * 2][PAIR];
  VF added[BLOCK_RUNS * 2][PAIR]; /* minima, or zeros: no kind has both */
} Unpacked;

HERE Factors factors_in(Kind kind, Layout about, const Unpacked *from, int64_t group, int at) {
  Factors of = {from->scales[group][at], SET_F(0.0f), SET_F(0.0f), SET_F(0.0f)};
  if (is_shifted(kind, about)) of.shift = from->shifts[group][at];
  if (about.minimum) of.minimum = from->added[group][at];
  if (is_grouped(kind) && about.has_zeros) of.zero = from->added[group][at];
  return of;
}

HERE void keep_factors(Kind kind, Layout about, Factors of, Unpacked *to, int64_t group, int at) {
  to->scales[group][at] = of.scale;
  if (is_shifted(kind, about)) to->shifts[group][at] = of.shift;
  if (about.minimum) to->added[group][at] = of.minimum;
  if (is_grouped(kind) && about.has_zeros) to->added[group][at] = of.zero;
}

/* Adds to `total` what the runs `first` to `last` add to MOST_ROWS rows from `row` on. */
HERE void dot_block(Kind kind, const Which which, const Tile *tiles, const Quantized *x, const float *starts, int64_t row,
                    int64_t first, int64_t last, Unpacked *some, VF (*total)[PAIR]) {
  enum { rows = MOST_ROWS };
  const Layout about = tiles[0].about;
  const Tile tile = tiles[0];
  const int64_t start = place_of(x, row, 0);
  for (int64_t index = first / about.runs; index * about.runs < last; index++) {
    Scales blocks[PAIR];
    EACH_TILE blocks[at] = scales_of(kind, tiles[at], 0, index, first, last);
    VF halves[MOST_ROWS][PAIR];
    for (int64_t run = blocks[0].run; run < blocks[0].end; run++) EACH_PART {
      const int64_t place = start + run * x->together, kept = run - first;
      Factors of[PAIR];
      VI sum[MOST_ROWS][PAIR];
      if (!part) { /* Some with the first rows, and some with the others. */
        if (which < SECOND_ROWS) fetch_ahead(tiles[0], index, run);
        if (which == ALL_ROWS || which == SECOND_ROWS) fetch_ahead(tiles[1], index, run);
      }
      EACH_TILE {
        blocks[at].run = run;
        if (which >= SECOND_ROWS) of[at] = factors_in(kind, about, some, 2 * kept + part, at);
        else {
          of[at] = part_of(kind, about, blocks[at], part);
          if (which == FIRST_ROWS) keep_factors(kind, about, of[at], some, 2 * kept + part, at);
        }
      }
      EACH_ROW {
        EACH_TILE sum[m][at] = start_of(about, starts, x->first.places, place + m, part);
      }
      EACH_UNIT {
        VI codes[PAIR];
        EACH_TILE {
          VI *kept_codes = some->codes[kept * UNITS + unit] + at;
          codes[at] = which >= SECOND_ROWS ? *kept_codes : unpacked(tiles[at], run, 0, unit);
          if (which == FIRST_ROWS) *kept_codes = codes[at];
        }
        EACH_ROW {
          EACH_TILE sum[m][at] = DOT_FOUR(sum[m][at], codes[at], &x->first, place + m, unit);
        }
      }
      EACH_ROW {
        EACH_TILE total[m][at] = added(kind, about, total[m][at], sum[m][at], of[at], &x->first, place + m, part, halves[m] + at);
      }
    }
  }
}

/* Of two tiles, and of `rows` rows: a multiple of MOST_ROWS, of which `stored` are stored. `count`: outputs of the second tile. */
HERE void dot_pair(Kind kind, const uint8_t *packed, int64_t tile, int count, const Quantized *x, int64_t row, int64_t rows,
                   int64_t stored, float *y, int64_t stride) {
  VF total[BLOCK_ROWS][PAIR];
  Unpacked some;
  const Tile tiles[PAIR] = {tile_at(kind, packed, x->inputs, tile, PAIR), tile_at(kind, packed, x->inputs, tile + 1, PAIR)};
  const float *starts = starts_of(kind, tiles[0].about, x, &x->first);
  const int64_t runs = x->inputs / RUN;
  for (int64_t m = 0; m < rows; m++) EACH_TILE total[m][at] = SET_F(0.0f);
  if (rows == MOST_ROWS) dot_block(kind, ALL_ROWS, tiles, x, starts, row, 0, runs, &some, total);
  else {
    for (int64_t first = 0; first < runs; first += BLOCK_RUNS) {
      const int64_t last = first + BLOCK_RUNS < runs ? first + BLOCK_RUNS : runs;
      dot_block(kind, FIRST_ROWS, tiles, x, starts, row, first, last, &some, total);
      dot_block(kind, SECOND_ROWS, tiles, x, starts, row + MOST_ROWS, first, last, &some, total + MOST_ROWS);
      for (int64_t m = 2 * MOST_ROWS; m < rows; m += MOST_ROWS)
        dot_block(kind, LATER_ROWS, tiles, x, starts, row + m, first, last, &some, total + m);
    }
  }
  for (int64_t m = 0; m < rows; m += MOST_ROWS)
    EACH_TILE add_seconds(kind, MOST_ROWS, tiles[at], 0, x, row + m, (float *)(total[m] + at), PAIR * TILE);
  for (int64_t m = 0; m < stored; m++, y += stride) {
    STORE_F(y, total[m][0]);
    __builtin_memcpy(y + TILE, &total[m][1], sizeof(float) * count);
  }
}
#endif

/* See `DotTiles`. */
HERE void dot_tiles(Kind kind, const uint8_t *packed, int64_t tile, int64_t last, int64_t outputs, const Quantized *x, int64_t row,
                    int64_t end, float *y, int64_t stride) {
  while (tile < last) {
    int64_t done = 0, step = 1;
#if W > 8
    const int64_t paired = (end - row + MOST_ROWS - LEAST_PAIRED) / MOST_ROWS * MOST_ROWS;
    if (last - tile >= PAIR && paired) {
      done = paired < end - row ? paired : end - row, step = PAIR;
      dot_pair(kind, packed, tile, outputs_of(outputs, tile + 1), x, row, paired, done, y, stride);
    }
#endif
    for (; step; step--, tile++, y += TILE)
      dot_tile(kind, packed, tile, outputs_of(outputs, tile), x, row + done, end, y + done * stride, stride);
  }
}

HERE void wide_tile(Kind kind, const uint8_t *packed, int64_t tile, int count, int64_t inputs,
                    const float *x, int64_t rows, float *y, int64_t stride) {
  float found[4 * TILE];
  const Tile at = tile_at(kind, packed, inputs, tile, 1);
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
#define DOT_OF(kind)                                                                                                   \
  TARGET static void dot_##kind(const uint8_t *packed, int64_t tile, int64_t last, int64_t outputs, const Quantized *x, \
                                int64_t row, int64_t end, float *y, int64_t stride) {                                  \
    dot_tiles(kind, packed, tile, last, outputs, x, row, end, y, stride);                                              \
  }
#define WIDE_OF(kind)                                                                                             \
  TARGET static void wide_##kind(const uint8_t *packed, int64_t tile, int count, int64_t inputs, const float *x,    \
                                 int64_t rows, float *y, int64_t stride) {                                          \
    wide_tile(kind, packed, tile, count, inputs, x, rows, y, stride);                                               \
  }
EACH_INTEGER_KIND(DOT_OF)
EACH_KIND(WIDE_OF)

/* A run as int8: its numbers times `factor`; of a second run less what `first` has of that, or NULL. */
HERE void keep_numbers(const Quantized *x, const float *from, VF factor, const Runs *first, float scale, const Runs *to, int64_t place) {
  const VF shift = SET_F(SHIFT); /* Rounds to an integer. */
  VF halves[2] = {SET_F(0.0f), SET_F(0.0f)};
  UNROLL
  for (int i = 0; i < RUN; i += W) {
    VF number = MUL_F(LOAD_F32(from + i), factor);
    if (first) number = MUL_F(SUB_F(number, LOAD_I8(first->numbers + place * RUN + i)), SET_F(SECOND));
    number = ADD_F(number, shift);
    KEEP_I8(to->numbers + place * RUN + i, AS_I(number));
    halves[i / 16] = ADD_F(halves[i / 16], SUB_F(number, shift));
  }
  const float sums[3] = {SUM_F(halves[0]) + SUM_F(halves[1]), SUM_F(halves[0]), SUM_F(halves[1])};
  to->scales[place] = scale;
  to->sums[place] = sums[0];
  for (int i = 0; i < 3; i++) to->offsets[i][place] = scale * sums[i];
  for (int64_t index = 0; index < x->zero_count; index++) {
    const Layout about = layout_of(x->zeros[index].kind, (Groups){1, SCALE_F16, 0});
    const float zero = x->zeros[index].has_zeros ? 0.0f : (float)about.zero;
    for (int part = 0; part < 2; part++)
      to->starts[(2 * index + part) * to->places + place] = SHIFT - zero * sums[about.group == 16 ? 1 + part : 0];
  }
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
      keep_numbers(x, from + run * RUN, factor_of(peak), NULL, scale, &x->first, start + run * x->together);
      squares += scale * scale;
    }
    uint64_t *seconds = x->seconds + row * words_of(x->inputs);
    for (int64_t run = 0; run < runs; run++) {
      const int64_t place = start + run * x->together;
      const float scale = x->first.scales[place];
      if (run % 64 == 0) seconds[run / 64] = 0;
      if (!(scale * scale * (float)runs > FAR * squares)) continue;
      seconds[run / 64] |= 1ull << run % 64;
      keep_numbers(x, from + run * RUN, factor_of(peak_of_run(from + run * RUN)), &x->first, scale / SECOND, &x->second, place);
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
