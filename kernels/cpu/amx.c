/* Products of many rows by AMX: weights are unpacked to bfloat16 some tiles at a time, and activations are rounded to it.
 * Sums are float32, added in one order: a row's result has the same bits for any number of rows that comes here.
 */
#include "amx.h"

#if defined(AMX)
#include <cpuid.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "codes.h"

/* Inputs at a time, whose weights stay in the first cache; rows at a time, whose activations stay in the second one. */
enum { DEPTH = 512, BYTES_OF_ROWS = 1 << 20, LEAST_ROWS = 128, MOST_ROWS = 512 };
enum { APART_ROWS = 48 }; /* whose results go to memory: see store_sums */
enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };

int amx_is_here(void) {
  static int found = -1;
  if (found >= 0) return found;
  const unsigned parts = 1 << 22 | 1 << 24; /* Of leaf 7: AMX-BF16, AMX-TILE. */
  unsigned a, b, c, d, low, high;
  found = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1 << 27)) return found; /* OSXSAVE */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & parts) != parts || !(c & 1 << 1)) return found; /* and VBMI */
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

/* ---- weights as tiles: a run is out[input / 2][output][input % 2], and the next one follows `STEP` numbers behind it. */

enum { STEP = 2 * TILE * TILE };

#define UNPACK AMX static inline __attribute__((always_inline))

/* Codes of at most seven bits become floats without being converted: they are the first bits of a fraction, and these floats
 * are 128 + code.
 */
UNPACK int is_fraction(Layout about) { return about.table == NO_TABLE && about.low + about.high < 8; }

/* Inputs `input` and the next one of a unit, of 8 outputs from `output` on, as 16 floats: [output][input]. */
UNPACK __m512 two_inputs(Kind kind, Layout about, VI code, int output, int input, VF scale, VF offset) {
  static const uint8_t first[16] = {0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29};
  VI places = _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)first)),
                               _mm512_set1_epi32(UNIT * output + input));
  if (is_fraction(about)) {
    places = _mm512_slli_epi32(places, 16);
    return FMA(AS_F(_mm512_mask_permutexvar_epi8(AS_I(SET_F(128.0f)), 0x4444444444444444, places, code)), scale, offset);
  }
  const VI codes = _mm512_maskz_permutexvar_epi8(0x1111111111111111, places, code);
  const VF number = about.table == TABLE_NF4 ? PICK(codes, 0, NF4_NUMBERS) : TO_F(codes);
  const int is_offset = about.minimum || about.zero || (is_grouped(kind) && about.has_zeros);
  return is_offset ? FMA(number, scale, offset) : MUL_F(number, scale);
}

UNPACK void unpack_codes(Kind kind, Tile tile, int64_t start, int64_t count, uint32_t *out) {
  const int lane = 0;
  const Layout about = tile.about;
  const VI low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), high = _mm512_add_epi32(low, SET_I(8));
  EACH_RUN(start, start + count) {
    fetch(tile.codes + block.run * run_bytes(about) + 2048, run_bytes(about));
    uint32_t *to = out + (block.run - start) * STEP;
    EACH_PART {
      const Factors of = part_of(kind, about, block, part);
      VF added = about.minimum ? of.minimum : MUL_F(of.zero, of.scale);
      if (is_fraction(about)) added = FMA(of.scale, SET_F(-128.0f), added);
      const VF scales[2] = {_mm512_permutexvar_ps(low, of.scale), _mm512_permutexvar_ps(high, of.scale)};
      const VF offsets[2] = {_mm512_permutexvar_ps(low, added), _mm512_permutexvar_ps(high, added)};
      EACH_UNIT {
        const VI code = unpacked(tile, block.run, lane, unit);
        UNROLL for (int input = 0; input < UNIT; input += 2) {
          const VF some = two_inputs(kind, about, code, 0, input, scales[0], offsets[0]);
          const VF others = two_inputs(kind, about, code, TILE / 2, input, scales[1], offsets[1]);
          STORE_BF16(to + TILE * (unit * UNIT + input) / 2, others, some);
        }
      }
    }
  }
}

UNPACK void unpack_fp8(Tile tile, int64_t start, int64_t count, uint32_t *out) {
  const Kind kind = FP8;
  const int lane = 0;
  EACH_RUN(start, start + count) {
    uint32_t *to = out + (block.run - start) * STEP;
    for (int unit = 0; unit < UNITS; unit++) {
      const VI code = unpacked(tile, block.run, lane, unit);
      VF numbers[UNIT];
      UNROLL for (int input = 0; input < UNIT; input++) numbers[input] = weight_of(kind, tile.about, code, input, block.of);
      UNROLL for (int input = 0; input < UNIT; input += 2)
        store_pair(to + TILE * (unit * UNIT + input) / 2, numbers[input], numbers[input + 1]);
    }
  }
}

/* Inputs that the matrix does not have are zero. */
UNPACK void unpack_plain(Kind kind, const uint8_t *tile, int64_t inputs, int64_t start, int64_t count, uint32_t *out) {
  for (int64_t run = 0; run < count; run++)
    for (int pair = 0; pair < RUN / 2; pair++) {
      const int64_t input = (start + run) * RUN + 2 * pair;
      const uint8_t *place = tile + 2 * TILE * input;
      uint32_t *to = out + run * STEP + TILE * pair;
      if (kind == BF16)
        _mm512_storeu_si512(to, input < inputs ? LOAD(place) : SET_I(0));
      else
        store_pair(to, input < inputs ? LOAD_F16(place) : SET_F(0.0f), input + 1 < inputs ? LOAD_F16(place + 2 * TILE) : SET_F(0.0f));
    }
}

#define UNPACK_OF(kind)                                                                                              \
  AMX static void unpack_##kind(const uint8_t *packed, int64_t number, int64_t inputs, int64_t start, int64_t count, \
                                uint32_t *out) {                                                                     \
    const Tile tile = tile_at(kind, packed, inputs, number, 1);                                                      \
    if (is_plain(kind)) unpack_plain(kind, tile.heads, inputs, start, count, out);                                   \
    else if (kind == FP8) unpack_fp8(tile, start, count, out);                                                       \
    else unpack_codes(kind, tile, start, count, out);                                                                \
  }
EACH_KIND(UNPACK_OF)
#define ENTRY(kind) [kind] = unpack_##kind,
/* `count` runs of a tile, from run `start` on. */
static void (*const unpack[KINDS])(const uint8_t *packed, int64_t number, int64_t inputs, int64_t start, int64_t count,
                                   uint32_t *out) = {EACH_KIND(ENTRY)};

/* ---- products */

/* Two tiles of columns: where the first is, how far behind it the second, and how far behind a run of both the next one. */
typedef struct {
  const uint32_t *start;
  int64_t right, step;
} Columns;

/* Those of `count` runs of the tiles `tile` and, if there is one, the next: unpacked to `room`, or where they are. */
AMX static Columns columns_of(const AmxProduct *job, int64_t tile, int64_t start, int64_t count, uint32_t *room) {
  const int64_t next = tile + 1 < job->end; /* A second tile that is not there is added to columns that are not read. */
  if (job->kind == BF16 && job->inputs % RUN == 0) {
    const Layout about = layout_at(BF16, job->packed);
    const uint8_t *first = job->packed + tile_offset(BF16, about, job->inputs, tile);
    const int64_t bytes = tile_bytes(BF16, about, job->inputs);
    return (Columns){(const uint32_t *)first + start * TILE * TILE, next * bytes / (int64_t)sizeof(uint32_t), TILE * TILE};
  }
  for (int side = 0; side < 2; side++)
    unpack[job->kind](job->packed, tile + side * next, job->inputs, start, count, room + side * TILE * TILE);
  return (Columns){room, TILE * TILE, STEP};
}

static int64_t rows_at_once(int64_t inputs) {
  const int64_t rows = BYTES_OF_ROWS / (2 * inputs) / WIDE * WIDE;
  return rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

/* `columns` of 32 sums of at most 32 rows become results. Those of many rows do not stay in a cache, and the next row is
 * thousands of bytes away: whole lines go to memory without being read first.
 */
AMX static void store_sums(const float *sums, int64_t columns, int64_t rows, int is_many, float *y, int64_t stride) {
  const int is_apart = is_many && columns == WIDE && (uintptr_t)y % LINE == 0 && stride % TILE == 0;
  for (int64_t row = 0; row < WIDE && row < rows; row++, sums += WIDE, y += stride) {
    if (is_apart) {
      _mm512_stream_ps(y, _mm512_load_ps(sums));
      _mm512_stream_ps(y + TILE, _mm512_load_ps(sums + TILE));
    } else
      memcpy(y, sums, sizeof(float) * columns);
  }
}

AMX void amx_multiply(const AmxProduct *job, uint8_t *room) {
  const int64_t runs = (job->inputs + RUN - 1) / RUN, some = rows_at_once(job->inputs);
  uint32_t *weights = (uint32_t *)room;
  float *sums = (float *)(room + WIDE * DEPTH * 2); /* [rows / 32][32][32] */
  uint8_t before[LINE];
  keep_tiles(before);
  use_tiles();
  for (int64_t top = 0; top < job->rows; top += some) {
    const int64_t bottom = top + some < job->rows ? top + some : job->rows;
    for (int64_t tile = job->begin; tile < job->end; tile += 2) {
      const int64_t left = job->outputs - tile * TILE, within = tile + 2 > job->end ? TILE : WIDE;
      const int64_t columns = left < within ? left : within;
      for (int64_t start = 0; start < runs; start += DEPTH / RUN) {
        const int64_t count = start + DEPTH / RUN < runs ? DEPTH / RUN : runs - start;
        const Columns of = columns_of(job, tile, start, count, weights);
        for (int64_t row = top; row < bottom; row += WIDE) {
          const uint16_t *x = job->x + (row / TILE * runs + start) * TILE * RUN;
          float *sum = sums + (row - top) * WIDE, *y = job->y + row * job->stride + (tile - job->begin) * TILE;
          if (row + TILE >= job->rows)
            add_upper_tiles(x, of.start, of.right, of.step, count, start ? sum : NULL, WIDE, sum, WIDE);
          else
            add_tiles(x, runs * TILE * RUN, of.start, of.right, of.step, count, start ? sum : NULL, WIDE, sum, WIDE);
          if (start + count == runs) store_sums(sum, columns, job->rows - row, job->rows >= APART_ROWS, y, job->stride);
        }
      }
    }
  }
  _mm_sfence(); /* Other threads read what is stored past the caches. */
  give_back_tiles(before);
}

int64_t amx_room_bytes(const AmxProduct *job) {
  return WIDE * DEPTH * 2 + rows_at_once(job->inputs) * WIDE * (int64_t)sizeof(float);
}

#else

int amx_is_here(void) { return 0; }
int64_t amx_room_bytes(const AmxProduct *job) { return job->rows; }
void amx_arrange(const float *x, int64_t rows, int64_t inputs, int64_t begin, int64_t end, uint16_t *out) {
  (void)x, (void)rows, (void)inputs, (void)begin, (void)end, (void)out;
}
void amx_multiply(const AmxProduct *job, uint8_t *room) { (void)job, (void)room; }

#endif
