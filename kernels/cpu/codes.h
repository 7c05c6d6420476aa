/* Codes and scales of a tile in vectors, for files that define the lanes (see tiles.h). */
#include "tiles_api.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
#define EACH_ROW UNROLL for (int m = 0; m < rows; m++)

#define HERE static inline __attribute__((always_inline)) TARGET

typedef struct { const uint8_t *heads, *codes; } Tile;

HERE Tile tile_at(Kind kind, const uint8_t *packed, int64_t inputs, int64_t tile) {
  const uint8_t *start = packed + tile * tile_bytes(kind, inputs);
  return (Tile){start, start + heads_bytes(layout_of(kind), inputs)};
}

/* Unit `unit` of a run: codes as they are multiplied. */
HERE VI unpacked(Kind kind, const uint8_t *run, int unit) {
  const Layout about = layout_of(kind);
  VI code;
  if (about.low == 8) return LOAD(run + LINE * unit);
  if (about.low == 4) {
    code = LOAD(run + LINE * (unit / 2));
    code = AND(unit % 2 ? SHR(code, 4) : code, 15);
  } else {
    code = AND(SHR(LOAD(run + LINE * (unit / 4)), 2 * (unit % 4)), 3);
  }
  if (about.high == 1) {
    VI bit = AND(SHR(LOAD(run + LINE * about.low), unit), 1);
    code = OR(code, SHL(bit, about.low));
  }
  if (about.high == 2) {
    VI bits = AND(SHR(LOAD(run + LINE * (about.low + unit / 4)), 2 * (unit % 4)), 3);
    code = OR(code, SHL(bits, about.low));
  }
  if (about.table == TABLE_IQ4) code = LOOKUP(code, IQ4_CODES);
  if (about.table == TABLE_E2M1) code = LOOKUP(code, E2M1_CODES);
  return code;
}

/* The scale of group `group` of a block, whose scales begin at `head`. */
HERE VF scale_of(Kind kind, const uint8_t *head, int group, int lane) {
  const Layout about = layout_of(kind);
  if (about.scale == SCALE_E8M0) return LOAD_E8M0(head + lane);
  VF block = LOAD_F16(head + 2 * lane);
  if (about.scale == SCALE_F16) return block;
  const uint8_t *groups = head + 2 * TILE * (about.minimum ? 2 : 1) + TILE * group + lane;
  return MUL_F(about.scale == SCALE_U8 ? LOAD_U8(groups) : LOAD_I8(groups), block);
}

HERE VF minimum_of(Kind kind, const uint8_t *head, int group, int lane) {
  const Layout about = layout_of(kind);
  VF block = LOAD_F16(head + 2 * TILE + 2 * lane);
  if (about.scale == SCALE_F16) return block;
  const int groups = about.runs * RUN / about.group;
  return MUL_F(LOAD_U8(head + 4 * TILE + TILE * (groups + group) + lane), block);
}

/* Input `j` of a unit as float32, as the file's own formula rounds it. */
HERE VF weight_of(Kind kind, VI code, int j, VF scale, VF minimum) {
  const Layout about = layout_of(kind);
  VI number = LANE_BYTE(code, j);
  VF found = MUL_F(TO_F(about.zero ? SUB_I(number, SET_I(about.zero)) : number), scale);
  if (about.minimum > 0) found = ADD_F(found, minimum);
  if (about.minimum < 0) found = SUB_F(found, minimum);
  return found;
}

/* `total` with what a group adds to it.
 *
 *   products    sums of codes times activations, exact
 *   zero        what is still to be taken from the codes; all numbers up to here are integers below
 *               2^24, so that nothing is rounded
 *   index       of the run among those of all rows
 */
HERE VF added(Kind kind, VF total, VF products, int zero, VF scale, VF minimum, const Quantized *x, int64_t index, int part) {
  const Layout about = layout_of(kind);
  const float *sums = about.group == 16 ? x->halves[part] + index : x->sums + index;
  if (zero) products = FMA(SET_F(-(float)zero), SET_F(*sums), products);
  total = FMA(products, MUL_F(scale, SET_F(x->scales[index])), total);
  if (!about.minimum) return total;
  const float offset = about.group == 16 ? x->scales[index] * *sums : x->offsets[index];
  return FMA(about.minimum < 0 ? SUB_F(SET_F(0.0f), minimum) : minimum, SET_F(offset), total);
}
