/* Products of codes with int8 activations by AMX, for some rows: the same sums as those of `dot_rows` in tiles.h, which are
 * exact, with scales applied in the same order. So a row's result has the same bits either way.
 */
#include "amx.h"

#if defined(AMX)
#include "codes.h"

#define AMX_DOT __attribute__((target("amx-tile,amx-int8,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,f16c,fma")))

/* How many runs later the next thing is done with a run. Sums are in the tiles 0 to 3; then come activations, and codes. */
enum { LATER = 4 };
#define ROWS 4
#define CODES 5

/* For 16 rows, and `group` inputs at a time: a run, or half of one. */
AMX_DOT static void use_dot_tiles(int group) {
  struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
  for (int tile = 0; tile < LATER; tile++) config.bytes[tile] = LINE, config.rows[tile] = TILE;
  config.bytes[ROWS] = (uint16_t)group, config.rows[ROWS] = TILE;
  config.bytes[CODES] = LINE, config.rows[CODES] = (uint8_t)(group / UNIT);
  __asm__ volatile("ldtilecfg %0" : : "m"(config)); /* See use_tiles. */
}

/* 16 rows of `x`, from `row` on, with a tile: out[16 rows, 16]. Codes of a run become bytes
 * in `codes`, unless they are there, at their number and `kept`; `LATER` they are multiplied, and as much later scales are applied to the sums:
 * what is written takes some time until tiles can be loaded from there, and the other way round.
 */
AMX_DOT static inline __attribute__((always_inline)) void amx_rows(Kind kind, Tile tile, const Quantized *x,
                                                                   int64_t row, uint8_t *codes, int64_t kept, int is_there, float *out) {
  const int rows = TILE, lane = 0, group = tile.about.group, parts = RUN / group;
  const int64_t runs = x->inputs / RUN, start = place_of(x, row, 0);
  int32_t sums[2 * LATER][2][16 * TILE] __attribute__((aligned(LINE)));
  VF total[16];
  EACH_ROW total[m] = SET_F(0.0f);
  int64_t index = 0, next = tile.about.runs; /* the block of the run whose scales are applied, and where the next one begins */
  for (int64_t at = 0; at < runs + 2 * LATER; at++) {
    int64_t run = at - LATER;
    if (run >= 0 && run < runs) {
      const int8_t *numbers = x->first.numbers + (start + run * x->together) * RUN;
      const uint8_t *bytes = codes + (run & kept) * RUN * TILE;
#define MULTIPLY(sum)                                               \
  case sum:                                                         \
    UNROLL for (int part = 0; part < parts; part++) {               \
      _tile_zero(sum);                                              \
      _tile_loadd(ROWS, numbers + part * group, RUN);               \
      _tile_loadd(CODES, bytes + part * group * TILE, LINE);        \
      _tile_dpbssd(sum, ROWS, CODES);                               \
      _tile_stored(sum, sums[run % (2 * LATER)][part], LINE);       \
    }                                                               \
    break;
      switch (run % LATER) { MULTIPLY(0) MULTIPLY(1) MULTIPLY(2) MULTIPLY(3) }
#undef MULTIPLY
    }
    if (at < runs) {
      fetch(tile.codes + at * run_bytes(tile.about) + 2048, run_bytes(tile.about));
      if (!is_there)
        UNROLL for (int unit = 0; unit < UNITS; unit++) {
          VI code = unpacked(tile, at, lane, unit);
          if (tile.about.zero) code = _mm512_sub_epi8(code, _mm512_set1_epi8((char)tile.about.zero));
          _mm512_store_si512(codes + (at & kept) * RUN * TILE + unit * LINE, code);
        }
    }
    if ((run = at - 2 * LATER) < 0) continue;
    if (run == next) index++, next += tile.about.runs;
    Scales block = scales_of(kind, tile, lane, index, 0, runs);
    block.run = run;
    const int64_t place = start + run * x->together;
    EACH_PART {
      const Scales of = part_of(kind, tile.about, block, part);
      const int32_t *found = sums[run % (2 * LATER)][part];
      EACH_ROW {
        const VF products = TO_F(LOAD(found + m * TILE));
        total[m] = added(kind, tile.about, tile.about.zero, total[m], products, of, &x->first, place + m, part);
      }
    }
  }
  EACH_ROW STORE_F(out + m * TILE, total[m]);
  add_seconds(kind, rows, tile, lane, x, row, out);
}

/* See `AmxDot`. */
AMX_DOT static inline __attribute__((always_inline)) void amx_dot_tile(Kind kind, const uint8_t *packed, int64_t tile, int count,
                                                                       const Quantized *x, int64_t row, int64_t end,
                                                                       uint8_t *codes, float *y, int64_t stride) {
  float found[16 * TILE];
  const Tile at = tile_at(kind, packed, x->inputs, tile);
  const int64_t kept = end - row <= TILE ? 2 * LATER - 1 : -1; /* All are there for more rows. */
  for (int is_there = 0; row < end; is_there = 1) {
    amx_rows(kind, at, x, row, codes, kept, is_there, found);
    for (int64_t m = 0; m < TILE && row < end; m++, row++, y += stride) __builtin_memcpy(y, found + m * TILE, sizeof(float) * count);
  }
}

#define DOT_OF(kind)                                                                                                       \
  AMX_DOT static void dot_##kind(const uint8_t *packed, int64_t tile, int count, const Quantized *x, int64_t row, int64_t end, \
                                 uint8_t *codes, float *y, int64_t stride) {                                               \
    amx_dot_tile(kind, packed, tile, count, x, row, end, codes, y, stride);                                                \
  }
EACH_INTEGER_KIND(DOT_OF)
#define ENTRY(kind) [kind] = dot_##kind,
static const AmxDot dots[KINDS] = {EACH_INTEGER_KIND(ENTRY)};

AmxDot amx_begin_dot(Kind kind, const uint8_t *packed) {
  use_dot_tiles(layout_at(kind, packed).group);
  return dots[kind];
}

void amx_keep_tiles(uint8_t *before) { keep_tiles(before); }
void amx_end_dot(const uint8_t *before) { give_back_tiles(before); }

#else

AmxDot amx_begin_dot(Kind kind, const uint8_t *packed) {
  (void)kind, (void)packed;
  return 0;
}
void amx_keep_tiles(uint8_t *before) { (void)before; }
void amx_end_dot(const uint8_t *before) { (void)before; }

#endif
