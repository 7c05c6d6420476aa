/* Codes and scales of a tile in vectors, for files that define the lanes (see tiles.h). */
#include "exponential.h"
#include "tiles_api.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define EACH_ROW UNROLL for (int m = 0; m < rows; m++)

typedef struct {
  const uint8_t *heads, *codes, *end;
  const uint8_t *next; /* the tile that is multiplied after this one */
  Layout about;
} Tile;

/* Of `step` tiles that are multiplied together. */
HERE Tile tile_at(Kind kind, const uint8_t *packed, int64_t inputs, int64_t tile, int step) {
  const Layout about = layout_at(kind, packed);
  const uint8_t *start = packed + tile_offset(kind, about, inputs, tile);
  const int64_t bytes = tile_bytes(kind, about, inputs);
  return (Tile){start, start + heads_bytes(about, inputs), start + bytes, start + step * bytes, about};
}

/* For W outputs: of a block, or of a group of it. */
typedef struct {
  VF scale, minimum; /* what is added */
  VF zero;           /* what is added to a code */
  VF shift;          /* minus `SHIFT` times the sum of the scales of a run's groups; of the first of them alone */
} Factors;

/* Those of a block, and which runs it has. */
typedef struct {
  Factors of;
  const uint8_t *groups;
  int64_t run, end;
} Scales;

/* For each run from `first` to `last` of `tile`: `block.run`, with the scales of W outputs from `lane` on. */
#define EACH_RUN(first, last)                                                                \
  for (int64_t index = (first) / tile.about.runs; index * tile.about.runs < (last); index++) \
    for (Scales block = scales_of(kind, tile, lane, index, first, last); block.run < block.end; block.run++)
#define EACH_PART UNROLL for (int part = 0; part < RUN / tile.about.group; part++)
#define EACH_UNIT UNROLL for (int unit = part * PART_UNITS; unit < (part + 1) * PART_UNITS; unit++)
#define PART_UNITS (tile.about.group / UNIT)

HERE Scales scales_of(Kind kind, Tile tile, int lane, int64_t index, int64_t first, int64_t last) {
  const Layout about = tile.about;
  const uint8_t *head = tile.heads + index * head_bytes(about);
  const int64_t start = index * about.runs, end = start + about.runs;
  Scales found = {{SET_F(1.0f), SET_F(0.0f), SET_F(-(float)about.zero), SET_F(0.0f)}, head + lane, start, end};
  if (about.runs > 1) { /* Otherwise the compiler shall see that it is one. */
    if (start < first) found.run = first;
    if (end > last) found.end = last;
  }
  if (is_grouped(kind)) {
    if (about.scale == SCALE_F32) found.of.scale = LOAD_F32(head + 4 * lane);
    else if (about.scale == SCALE_BF16) found.of.scale = LOAD_BF16(head + 2 * lane);
    else found.of.scale = LOAD_F16(head + 2 * lane);
    if (about.has_zeros) found.of.zero = SUB_F(SET_F(0.0f), LOAD_U8(head + scale_bytes(about) * TILE + lane));
    if (about.table == TABLE_E4M3) found.of.scale = MUL_F(found.of.scale, SET_F(256.0f));
    return found;
  }
  if (about.scale == SCALE_E8M0) {
    found.of.scale = LOAD_E8M0(head + lane);
    return found;
  }
  found.of.scale = LOAD_F16(head + 2 * lane);
  if (about.minimum) found.of.minimum = LOAD_F16(head + 2 * TILE + 2 * lane);
  if (about.minimum < 0) found.of.minimum = SUB_F(SET_F(0.0f), found.of.minimum);
  found.groups += 2 * TILE * (about.minimum ? 2 : 1);
  return found;
}

/* Whether `SHIFT` times a scale is exact: float16 times a byte, at most, is. */
HERE int is_shifted(Kind kind, Layout about) { return IS_FUSED && !is_grouped(kind) && about.scale != SCALE_E8M0; }

/* Of part `part` of the block's current run, without `shift`. */
HERE Factors group_of(Kind kind, Layout about, Scales block, int part) {
  Factors of = block.of;
  if (is_grouped(kind) || about.scale < SCALE_U8) return of;
  const int parts = RUN / about.group;
  const uint8_t *scale = block.groups + TILE * (block.run % about.runs * parts + part);
  of.scale = MUL_F(about.scale == SCALE_U8 ? LOAD_U8(scale) : LOAD_I8(scale), of.scale);
  if (about.minimum) of.minimum = MUL_F(LOAD_U8(scale + TILE * about.runs * parts), of.minimum);
  return of;
}

/* The same with `shift`, if it is the first part. */
HERE Factors part_of(Kind kind, Layout about, Scales block, int part) {
  Factors of = group_of(kind, about, block, part);
  if (!is_shifted(kind, about) || part) return of;
  const VF all = about.group == 16 ? ADD_F(of.scale, group_of(kind, about, block, 1).scale) : of.scale;
  of.shift = MUL_F(all, SET_F(-SHIFT));
  return of;
}

/* Fetch what is read soon: on its own a processor looks no further than the end of a page. */
HERE void fetch(const uint8_t *place, int64_t bytes) {
  UNROLL
  for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(place + i);
}

/* How far ahead codes are fetched: docs/results/2026-11-29-fetching-ahead.md. */
enum { CODES_AHEAD = 3072 };

/* Fetch codes ahead of run `run`, which is of block `block`. Between the codes of a tile and those of the next one are the next
 * one's scales, which are read along with its codes: they are fetched a tile ahead, those of a block at a time.
 */
HERE void fetch_ahead(Tile tile, int64_t block, int64_t run) {
  const int64_t bytes = run_bytes(tile.about);
  const uint8_t *place = tile.codes + run * bytes + CODES_AHEAD;
  fetch(place < tile.end ? place : place + (tile.codes - tile.heads) + (tile.next - tile.end), bytes);
  if (run == block * tile.about.runs) fetch(tile.next + block * head_bytes(tile.about), head_bytes(tile.about));
}

/* Unit `unit` of run `index`: codes as they are multiplied. */
HERE VI unpacked(Tile tile, int64_t index, int lane, int unit) {
  const Layout about = tile.about;
  const uint8_t *run = tile.codes + index * run_bytes(about);
  VI code;
  if (about.table == TABLE_E4M3) return LOAD_PAIRS(run + LINE * unit + 2 * lane);
  run += UNIT * lane;
  if (about.low == 8) return LOAD(run + LINE * unit);
  if (about.low == 4) {
    code = LOAD(run + LINE * (unit / 2));
    if (unit % 2) code = SHR(code, 4);
    if (about.table == TABLE_NF4) return code; /* What is looked up has its other bits ignored. */
    code = AND(code, 15);
  } else {
    code = AND(SHR(LOAD(run + LINE * (unit / 4)), 2 * (unit % 4)), 3);
  }
  if (about.high) { /* Moved to their place at once, above those of `low`. */
    const int per_line = 8 / about.high, by = about.low - about.high * (unit % per_line);
    VI bits = LOAD(run + LINE * (about.low + unit / per_line));
    if (by > 0) bits = SHL(bits, by);
    if (by < 0) bits = SHR(bits, -by);
    code = OR(code, AND(bits, (about.high == 1 ? 1 : 3) << about.low));
  }
  if (about.table == TABLE_IQ4) code = LOOKUP(code, IQ4_CODES);
  if (about.table == TABLE_E2M1) code = LOOKUP(code, E2M1_CODES);
  return code;
}

INLINE int32_t four_of(const int8_t *numbers) {
  int32_t four;
  __builtin_memcpy(&four, numbers, 4);
  return four;
}

#define DOT_FOUR(sum, codes, x, place, unit) \
  DOT(sum, codes, SET_I(four_of((x)->numbers + (place) * RUN + (unit) * UNIT)), tile.about.zero == 128)

/* Input `j` of a unit as float32, as the file's own formula rounds it. */
HERE VF weight_of(Kind kind, Layout about, VI code, int j, Factors of) {
  VF number;
  if (about.table == TABLE_E4M3) number = FROM_E4M3(code, j);
  else if (about.table == TABLE_NF4) number = PICK(code, j, NF4_NUMBERS);
  else number = TO_F(LANE_BYTE(code, j));
  if (about.zero || (is_grouped(kind) && about.has_zeros)) number = ADD_F(number, of.zero);
  number = MUL_F(number, of.scale);
  return about.minimum ? ADD_F(number, of.minimum) : number;
}

/* Where sums of products with a matrix begin, in the order of `Runs.starts`; NULL: at `SHIFT`. */
HERE const float *starts_of(Kind kind, Layout about, const Quantized *x, const Runs *of) {
  if (about.zero == TAKEN(about)) return NULL; /* Known to the compiler. */
  int64_t index = 0;
  while (x->zeros[index].kind != kind || x->zeros[index].has_zeros != (is_grouped(kind) && about.has_zeros)) index++;
  return of->starts + index * 2 * of->places;
}

/* Of part `part` of the run at `place`. */
HERE VI start_of(Layout about, const float *starts, int64_t places, int64_t place, int part) {
  if (about.zero == TAKEN(about)) return AS_I(SET_F(SHIFT));
  return AS_I(SET_F(starts[part * places + place]));
}

/* `total` with what a group adds to it: `sum` is the bits of a float, `SHIFT` and the exact sum of codes times activations.
 *
 *   place       of the run in `x`
 *   first       between the halves of a run: what the first one leaves, which is rounded to about the second's scale (see `lost_of`)
 */
HERE VF added(Kind kind, Layout about, VF total, VI sum, Factors of, const Runs *x, int64_t place, int part, VF *first) {
  VF products;
  if (is_shifted(kind, about)) products = FMA(AS_F(sum), of.scale, part ? *first : of.shift);
  else {
    products = SUB_F(AS_F(sum), SET_F(SHIFT));
    if (is_grouped(kind) && about.has_zeros)
      products = FMA(ADD_F(of.zero, SET_F((float)TAKEN(about))), SET_F(x->sums[place]), products); /* Whole numbers below 2^24. */
    products = MUL_F(products, of.scale);
  }
  if (is_shifted(kind, about) && about.group == 16 && !part) *first = products;
  else total = FMA(products, SET_F(x->scales[place]), total);
  return about.minimum ? FMA(of.minimum, SET_F(x->offsets[about.group == 16 ? 1 + part : 0][place]), total) : total;
}

/* What `added` loses of the first half of a run whose sum is `sum`, without the scale of the activations: that can be large. */
HERE VF lost_of(VI sum, Factors of) {
  const VF other = FMA(of.scale, SET_F(-SHIFT), SUB_F(SET_F(0.0f), of.shift)); /* SHIFT times the scale of the other half */
  const VF left = ADD_F(FMA(AS_F(sum), of.scale, of.shift), other);
  return FMA(SUB_F(AS_F(sum), SET_F(SHIFT)), of.scale, SUB_F(SET_F(0.0f), left));
}

/* out[row * stride + n] of `rows` rows with what their second runs add to it, for W outputs n from `lane` on. All are neighbours. */
HERE void add_seconds(Kind kind, const int rows, Tile tile, int lane, const Quantized *x, int64_t row, float *out, int64_t stride) {
  const float *starts = starts_of(kind, tile.about, x, &x->second), *firsts = starts_of(kind, tile.about, x, &x->first);
  const int64_t words = words_of(x->inputs), start = place_of(x, row, 0);
  const uint64_t *seconds = x->seconds + row * words;
  for (int64_t word = 0; word < words; word++) {
    uint64_t left = 0;
    for (int m = 0; m < rows; m++) left |= seconds[m * words + word];
    for (; left; left &= left - 1) {
      const int bit = __builtin_ctzll(left);
      const int64_t run = 64 * word + bit, place = start + run * x->together;
      VF first[NEIGHBOURS];
      EACH_RUN(run, run + 1) EACH_PART {
        const Factors of = part_of(kind, tile.about, block, part);
        VI codes[UNITS];
        EACH_UNIT codes[unit] = unpacked(tile, run, lane, unit);
        for (int m = 0; m < rows; m++) {
          if (!(seconds[m * words + word] >> bit & 1)) continue;
          VI sum = start_of(tile.about, starts, x->second.places, place + m, part);
          EACH_UNIT sum = DOT_FOUR(sum, codes[unit], &x->second, place + m, unit);
          VF total = LOAD_F32(out + m * stride);
          if (is_shifted(kind, tile.about) && tile.about.group == 16 && !part) {
            VI whole = start_of(tile.about, firsts, x->first.places, place + m, part);
            EACH_UNIT whole = DOT_FOUR(whole, codes[unit], &x->first, place + m, unit);
            total = FMA(lost_of(whole, of), SET_F(x->first.scales[place + m]), total);
          }
          STORE_F(out + m * stride, added(kind, tile.about, total, sum, of, &x->second, place + m, part, first + m));
        }
      }
    }
  }
}
