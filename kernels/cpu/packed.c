/* The library: packing a matrix, and products with it. Called from library.py with addresses of
 * tensors; work is divided among the threads of torch, whose functions are handed over at the start.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#endif

#include "blocks.h"
#include "numbers.h"
#include "packed.h"

typedef int32_t (*ParallelFor)(int64_t begin, int64_t end, int64_t grain, Range range, void *context);
typedef int32_t (*CountThreads)(uint32_t *count);

/* From how many rows on AMX is faster, with its unpacking (benchmarks/packed.py); and without, of bfloat16. */
enum { AMX_ROWS = 48, WIDE_AMX_ROWS = 8, BF16_AMX_ROWS = 2 };
/* What reading a tile costs, in rows that it is multiplied with; what is not divided among threads. */
enum { TILE_COST = 12, WORK_ALONE = 4 * (TILE_COST + 1), REARRANGED_ALONE = 16384 /* numbers */ };

/* Rows as files have them: GGUF's blocks, codes in groups, or numbers of half precision. */
typedef struct {
  const uint8_t *rows;
  const uint8_t *scales, *zeros; /* of groups, [outputs, groups]; zeros, which are bytes, may be NULL */
  int64_t outputs, inputs;
  int32_t kind, runs, scale; /* runs of a group, of which the last may be shorter; ScaleForm of `scales` */
} Rows;

static ParallelFor parallel_for;
static CountThreads count_threads;

/* Of the sources: see build_library.py. */
EXPORT const char *hearth_version(void) { return HEARTH_VERSION; }

EXPORT void hearth_use_threads(ParallelFor function, CountThreads count) { parallel_for = function, count_threads = count; }

enum { MOST_THREADS = 128 };

/* The part of the work that a thread begins with; `next` is the first unit that no thread has taken. */
typedef struct {
  _Alignas(LINE) _Atomic int64_t next;
  int64_t end;
} Portion;

typedef struct {
  Range range;
  void *context;
  int64_t threads, grain;
  Portion portions[MOST_THREADS];
} Work;

/* Takes half of what is left of a portion at a time: of the thread's own portion first, then of the others, because cores differ
 * in speed, and other programs slow some of them down.
 */
static void take_portions(int64_t thread, int64_t end, void *context) {
  (void)end;
  Work *work = context;
  for (int64_t at = 0; at < work->threads; at++) {
    Portion *portion = work->portions + (thread + at) % work->threads;
    int64_t from = atomic_load(&portion->next);
    while (from < portion->end) {
      const int64_t left = portion->end - from, half = left / 2 > work->grain ? left / 2 : work->grain;
      const int64_t to = from + (half < left ? half : left);
      if (!atomic_compare_exchange_weak(&portion->next, &from, to)) continue;
      work->range(from, to, work->context);
      from = atomic_load(&portion->next);
    }
  }
}

void in_parallel(int64_t count, int64_t grain, Range range, void *context) {
  uint32_t most = 1;
  if (parallel_for) count_threads(&most);
  int64_t threads = most < MOST_THREADS ? most : MOST_THREADS;
  if (count / grain < threads) threads = count / grain;
  if (threads <= 1) {
    range(0, count, context);
    return;
  }
  Work work; /* Not initialized: only the portions of `threads` are used. */
  work.range = range, work.context = context, work.threads = threads, work.grain = grain;
  for (int64_t thread = 0; thread < threads; thread++) {
    atomic_init(&work.portions[thread].next, count * thread / threads);
    work.portions[thread].end = count * (thread + 1) / threads;
  }
  parallel_for(0, threads, 1, take_portions, &work);
}

static int64_t tiles_of(int64_t outputs) { return (outputs + TILE - 1) / TILE; }

static int is_wrong(int32_t kind, int64_t inputs) {
  if (kind < 0 || kind >= KINDS) return NO_KIND;
  const int multiple = is_plain((Kind)kind) ? 1 : layout_of((Kind)kind, (Groups){1, SCALE_F16, 0}).runs * RUN;
  return inputs <= 0 || inputs % multiple ? NO_SHAPE : OK;
}

/* Asked of the processor itself: not every compiler's library implements `__builtin_cpu_supports`. */
static int32_t asked_instructions(void) {
#if defined(__x86_64__) || defined(_M_X64)
  enum { FMA = 1 << 12, OSXSAVE = 1 << 27, F16C = 1 << 29 };                              /* leaf 1, ecx */
  const unsigned avx2 = 1 << 5, avx512 = 1 << 16 | 1 << 17 | 1 << 30 | 1u << 31, vnni = 1 << 11; /* leaf 7: F, DQ, BW, VL */
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & (FMA | OSXSAVE | F16C)) != (FMA | OSXSAVE | F16C)) return PLAIN;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return PLAIN;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((b & avx512) == avx512 && c & vnni && (low & 0xe6) == 0xe6) return amx_is_here() ? WITH_AMX : AVX512;
  if (b & avx2 && (low & 6) == 6) return AVX2;
#endif
  return PLAIN;
}

/* The best set of instructions of this processor that the system saves the registers of. */
EXPORT int32_t hearth_instructions(void) {
  static _Atomic int32_t best = -1; /* A virtual machine takes longer to answer than a small product. */
  if (best < 0) best = asked_instructions();
  return best;
}

Tiles tiles_for(int32_t instructions) {
  if (instructions < 0 || instructions > hearth_instructions()) return (Tiles){.quantize = NULL};
  Tiles found = tiles_plain;
#if defined(__x86_64__) || defined(_M_X64)
  if (instructions == AVX2) found = tiles_avx2;
  if (instructions >= AVX512) found = tiles_avx512;
#endif
  found.has_amx = instructions == WITH_AMX;
  return found;
}

/* ---- packing */

typedef struct {
  Rows from;
  uint8_t *packed;
} Packing;

static Groups groups_of(const Rows *from) { return (Groups){from->runs, from->scale, from->zeros != NULL}; }

/* Bytes of the rows when they are packed; 0 for what cannot be. */
EXPORT int64_t hearth_packed_bytes(const Rows *from) {
  const Kind kind = (Kind)from->kind;
  if (is_wrong(kind, from->inputs)) return 0;
  if (is_grouped(kind) && (from->runs < 1 || from->scale < SCALE_F16 || from->scale > SCALE_F32)) return 0;
  return tile_offset(kind, layout_of(kind, groups_of(from)), from->inputs, tiles_of(from->outputs));
}

/* The 32 codes of a run of one output, four at a time: `run` is cleared. */
INLINE void put_run(Layout about, uint8_t *run, int output, const uint8_t *codes) {
  for (int unit = 0; unit < UNITS; unit++) {
    const uint8_t *from = codes + UNIT * unit;
    if (about.table == TABLE_E4M3) {
      for (int input = 0; input < UNIT; input++) run[LINE * unit + byte_of(about, output, input)] = from[input];
      continue;
    }
    const int per_line = 8 / about.low;
    uint32_t four, line;
    memcpy(&four, from, 4);
    uint8_t *place = run + LINE * (unit / per_line) + UNIT * output;
    memcpy(&line, place, 4);
    line |= (four & 0x01010101u * ((1u << about.low) - 1)) << unit % per_line * about.low;
    memcpy(place, &line, 4);
    if (!about.high) continue;
    place = run + LINE * (about.low + unit / (8 / about.high)) + UNIT * output;
    memcpy(&line, place, 4);
    line |= (four >> about.low & 0x01010101u * ((1u << about.high) - 1)) << unit % (8 / about.high) * about.high;
    memcpy(place, &line, 4);
  }
}

INLINE void put_scales(Layout about, uint8_t *head, int output, const Block *block) {
  if (about.scale == SCALE_E8M0) {
    head[output] = block->scale[0];
    return;
  }
  memcpy(head + 2 * output, block->scale, 2);
  if (about.minimum) memcpy(head + 2 * TILE + 2 * output, block->minimum, 2);
  if (about.scale == SCALE_F16) return;
  const int groups = about.runs * RUN / about.group;
  uint8_t *of_groups = head + 2 * TILE * (about.minimum ? 2 : 1);
  for (int group = 0; group < groups; group++) {
    of_groups[TILE * group + output] = block->scales[group];
    if (about.minimum) of_groups[TILE * (groups + group) + output] = block->minima[group];
  }
}

/* Outputs that fill up the last tile have scales of zero. */
INLINE uint8_t *cleared_tile(Kind kind, Layout about, const Packing *job, int64_t tile) {
  uint8_t *start = job->packed + tile_offset(kind, about, job->from.inputs, tile);
  memset(start, 0, tile_bytes(kind, about, job->from.inputs));
  return start;
}

INLINE void pack_blocks(Kind kind, const Packing *job, int64_t begin, int64_t end) {
  const Rows *from = &job->from;
  const Layout about = layout_of(kind, groups_of(from));
  const int64_t blocks = blocks_of(about, from->inputs);
  for (int64_t tile = begin; tile < end; tile++) {
    uint8_t *heads = cleared_tile(kind, about, job, tile), *codes = heads + heads_bytes(about, from->inputs);
    for (int output = 0; output < TILE && tile * TILE + output < from->outputs; output++) {
      const uint8_t *row = from->rows + (tile * TILE + output) * blocks * block_bytes(kind);
      for (int64_t index = 0; index < blocks; index++) {
        Block block;
        read_block(kind, row + index * block_bytes(kind), &block);
        put_scales(about, heads + index * head_bytes(about), output, &block);
        for (int run = 0; run < about.runs; run++)
          put_run(about, codes + (index * about.runs + run) * run_bytes(about), output, block.codes + RUN * run);
      }
    }
  }
}

INLINE void pack_groups(Kind kind, const Packing *job, int64_t begin, int64_t end) {
  const Rows *from = &job->from;
  const Layout about = layout_of(kind, groups_of(from));
  const int64_t groups = blocks_of(about, from->inputs), size = scale_bytes(about);
  const int bits = about.low + about.high, most = (1 << bits) - 1;
  for (int64_t tile = begin; tile < end; tile++) {
    uint8_t *heads = cleared_tile(kind, about, job, tile), *codes = heads + heads_bytes(about, from->inputs);
    for (int output = 0; output < TILE && tile * TILE + output < from->outputs; output++) {
      const int64_t index = tile * TILE + output;
      const uint8_t *row = from->rows + index * (from->inputs * bits / 8);
      for (int64_t group = 0; group < groups; group++) {
        uint8_t *head = heads + group * head_bytes(about);
        memcpy(head + size * output, from->scales + size * (index * groups + group), size);
        if (about.has_zeros) head[size * TILE + output] = from->zeros[index * groups + group];
      }
      for (int64_t run = 0; run < from->inputs / RUN; run++, row += RUN * bits / 8) {
        uint8_t of_run[RUN];
        for (int input = 0; input < RUN; input++) {
          const int byte = input * bits / 8, start = input * bits % 8;
          const int next = start + bits > 8 ? row[byte + 1] << 8 : 0; /* A code of 3 or 6 bits may begin in one byte and end in the next. */
          of_run[input] = (row[byte] | next) >> start & most;
        }
        put_run(about, codes + run * run_bytes(about), output, of_run);
      }
    }
  }
}

/* Numbers of half precision. */
static void pack_plain(Kind kind, const Packing *job, int64_t begin, int64_t end) {
  const Rows *from = &job->from;
  const uint16_t *rows = (const uint16_t *)from->rows;
  for (int64_t tile = begin; tile < end; tile++) {
    uint16_t *to = (uint16_t *)cleared_tile(kind, layout_of(kind, groups_of(from)), job, tile);
    for (int output = 0; output < TILE && tile * TILE + output < from->outputs; output++)
      for (int64_t input = 0; input < from->inputs; input++)
        to[half_of(kind, output, input)] = rows[(tile * TILE + output) * from->inputs + input];
  }
}

static void pack_tiles(int64_t begin, int64_t end, void *context) {
  const Packing *job = context;
#define PACK_BLOCKS(name) case name: pack_blocks(name, job, begin, end); break;
#define PACK_GROUPS(name) case name: pack_groups(name, job, begin, end); break;
  switch (job->from.kind) {
    EACH_BLOCK_KIND(PACK_BLOCKS)
    EACH_GROUP_KIND(PACK_GROUPS)
    default: pack_plain((Kind)job->from.kind, job, begin, end);
  }
}

/* Into `packed`, which has hearth_packed_bytes. */
EXPORT int32_t hearth_pack(const Rows *from, uint8_t *packed) {
  if (!hearth_packed_bytes(from)) return NO_SHAPE;
  Packing job = {*from, packed};
  const Groups groups = groups_of(from);
  if (is_grouped((Kind)from->kind)) memcpy(packed, &groups, sizeof groups);
  in_parallel(tiles_of(from->outputs), 4, pack_tiles, &job);
  return OK;
}

/* ---- products */

/* Some of what is divided among threads: `units` of `cost` each, the first of which begins at `first`. */
typedef struct { int64_t first, units, cost; } Share;

typedef struct {
  const Tiles *tiles;
  const Part *parts;
  int64_t count, inputs, rows, outputs;
  const float *x;
  Quantized quantized;
  float *y;
  int is_wide, is_quantized, is_bf16; /* `is_bf16`: all parts are */
  int is_many;        /* for AMX, in bfloat16 */
  uint16_t *arranged; /* for AMX */
  int32_t fault;
  Share rearranged, multiplied; /* of rows; of pairs of tiles */
} Product;

typedef struct {
  Product *products;
  int64_t count;
} Products;

/* How many units begin before `at`. */
static int64_t units_before(const Share *share, int64_t at) {
  if (at <= share->first) return 0;
  const int64_t before = (at - share->first + share->cost - 1) / share->cost;
  return before < share->units ? before : share->units;
}

/* Rows of a product whose runs are neighbours. */
static int64_t neighbours_of(int64_t rows) { return rows > 4 ? NEIGHBOURS : rows == 3 ? 4 : rows; }

/* The `index`th rows that are neighbours become zeros. */
static void clear_rows(Quantized *x, int64_t index) {
  const int64_t places = x->inputs / RUN * x->together, first = index * places, words = x->together * words_of(x->inputs);
  const size_t arrays = (BYTES_OF_RUN - RUN + x->zero_count * BYTES_OF_STARTS) / sizeof(float);
  memset(x->first.numbers + first * RUN, 0, places * RUN);
  for (size_t array = 0; array < arrays; array++) /* One behind the other: see `runs_in`. */
    memset(x->first.scales + array * x->first.places + first, 0, places * sizeof(float));
  memset(x->seconds + index * words, 0, words * sizeof *x->seconds);
}

/* Rows that begin at `begin` to `end`, counted through all products, as their products take them. */
static void rearrange(int64_t begin, int64_t end, void *context) {
  const Products *all = context;
  for (int64_t index = 0; index < all->count; index++) {
    Product *job = all->products + index;
    const int64_t from = units_before(&job->rearranged, begin), to = units_before(&job->rearranged, end);
    if (from >= to) continue;
    if (job->is_many) amx_arrange(job->x, job->rows, job->inputs, from * TILE, to * TILE, job->arranged);
    else {
      const int64_t together = job->quantized.together, last = to * together;
      if (last > job->rows) clear_rows(&job->quantized, to - 1);
      job->tiles->quantize(&job->quantized, job->x, from * together, last < job->rows ? last : job->rows);
    }
  }
}

/* Tiles `tile` to `last` of a part by AMX, to y[m * outputs of all parts + n]. */
static void multiply_many(Product *job, const Part *part, int64_t tile, int64_t last, float *y) {
  const AmxProduct product = {(Kind)part->kind, part->packed, tile, last, part->outputs, job->inputs, job->arranged, job->rows,
                              y, job->outputs};
  uint8_t *room = malloc(amx_room_bytes(&product) + LINE);
  if (room) amx_multiply(&product, line_of(room));
  else job->fault = NO_MEMORY;
  free(room);
}

/* The same without AMX. Some rows at a time, which stay in cache. */
static void multiply_some(const Product *job, const Part *part, int64_t tile, int64_t last, float *y) {
  const int64_t stride = job->outputs;
  for (int64_t row = 0; row < job->rows; row += BLOCK_ROWS, y += BLOCK_ROWS * stride) {
    const int64_t end = row + BLOCK_ROWS < job->rows ? row + BLOCK_ROWS : job->rows;
    if (!job->is_wide && is_integer((Kind)part->kind))
      job->tiles->dot[part->kind](part->packed, tile, last, part->outputs, &job->quantized, row, end, y, stride);
    else
      for (int64_t at = tile; at < last; at++)
        job->tiles->wide[part->kind](part->packed, at, outputs_of(part->outputs, at), job->inputs, job->x + row * job->inputs,
                                     end - row, y + (at - tile) * TILE, stride);
  }
}

static int64_t pairs_of(const Part *part) { return (tiles_of(part->outputs) + 1) / 2; }

/* Pairs of tiles `begin` to `end` of all parts, counted through. */
static void multiply(Product *job, int64_t begin, int64_t end) {
  float *y = job->y;
  for (const Part *part = job->parts; part < job->parts + job->count; y += part++->outputs) {
    const int64_t pairs = pairs_of(part), tiles = tiles_of(part->outputs), to = 2 * (end < pairs ? end : pairs);
    const int64_t tile = 2 * (begin > 0 ? begin : 0), last = to < tiles ? to : tiles;
    if (tile < last && job->is_many) multiply_many(job, part, tile, last, y + tile * TILE);
    else if (tile < last) multiply_some(job, part, tile, last, y + tile * TILE);
    begin -= pairs, end -= pairs;
  }
}

/* What activations become: they stay float32, are int8, or bfloat16 for AMX. In the order of `Activations` in library.py. */
enum { IN_F32, IN_INT8, IN_BF16 };

static int32_t activations_of(const Tiles *with, int is_wide, int is_quantized, int is_bf16, int64_t rows) {
  const int64_t least = is_quantized ? AMX_ROWS : is_bf16 ? BF16_AMX_ROWS : WIDE_AMX_ROWS;
  if (with->has_amx && !is_wide && rows >= least) return IN_BF16;
  return is_quantized && !is_wide ? IN_INT8 : IN_F32;
}

/* The same of a matrix whose rows are all of one kind. */
EXPORT int32_t hearth_activations(int32_t kind, int64_t rows, int32_t is_wide, int32_t instructions) {
  const Tiles with = tiles_for(instructions);
  return activations_of(&with, is_wide, is_integer((Kind)kind), kind == BF16, rows);
}

static void multiply_all(int64_t begin, int64_t end, void *context) {
  const Products *all = context;
  for (int64_t index = 0; index < all->count; index++) {
    Product *job = all->products + index;
    const int64_t from = units_before(&job->multiplied, begin), to = units_before(&job->multiplied, end);
    if (from < to) multiply(job, from, to);
  }
}

/* Sums of products with a matrix begin with what is taken from its codes. */
static void take_zero(Quantized *x, const Part *part) {
  const Layout about = layout_at((Kind)part->kind, part->packed);
  if (!about.zero) return;
  for (int64_t index = 0; index < x->zero_count; index++)
    if (x->zeros[index].kind == (Kind)part->kind && x->zeros[index].has_zeros == about.has_zeros) return;
  x->zeros[x->zero_count++] = (Zero){(Kind)part->kind, about.has_zeros};
}

/* Which way the rows of a product go, and what there is to do. Returns a fault. */
static int32_t plan(Product *job) {
  int64_t pairs = 0;
  job->is_bf16 = 1;
  for (int64_t index = 0; index < job->count; index++) {
    const Part *part = job->parts + index;
    const int32_t wrong = is_wrong(part->kind, job->inputs);
    if (wrong) return wrong;
    pairs += pairs_of(part);
    job->outputs += part->outputs;
    job->is_quantized |= !job->is_wide && is_integer((Kind)part->kind);
    job->is_bf16 &= part->kind == BF16;
    if (!job->is_wide && is_integer((Kind)part->kind)) take_zero(&job->quantized, part);
  }
  job->is_many = activations_of(job->tiles, job->is_wide, job->is_quantized, job->is_bf16, job->rows) == IN_BF16;
  const int64_t together = job->quantized.together; /* Rows that share cache lines. */
  job->rearranged = (Share){0, job->is_quantized ? (job->rows + together - 1) / together : 0, together * job->inputs};
  if (job->is_many) job->rearranged = (Share){0, (job->rows + 2 * TILE - 1) / (2 * TILE) * 2, TILE * job->inputs};
  job->multiplied = (Share){0, pairs, 2 * (TILE_COST + job->rows)};
  return OK;
}

/* Rows of `Quantized`, those that fill up the last neighbours included. */
static int64_t padded_rows(const Product *job) {
  const int64_t together = job->quantized.together;
  return (job->rows + together - 1) / together * together;
}

/* Of one of its `Runs`. */
static int64_t bytes_of_runs(const Product *job) {
  return padded_rows(job) * (job->inputs / RUN) * (BYTES_OF_RUN + job->quantized.zero_count * BYTES_OF_STARTS);
}

/* Of rearranged rows. */
static int64_t room_bytes(const Product *job) {
  if (job->is_many)
    return job->rearranged.units * TILE * ((job->inputs + RUN - 1) / RUN) * RUN * (int64_t)sizeof(uint16_t);
  if (!job->is_quantized) return 0;
  return aligned(padded_rows(job) * words_of(job->inputs) * (int64_t)sizeof(uint64_t) + 2 * bytes_of_runs(job));
}

static Runs runs_in(uint8_t *room, int64_t places) {
  float *about = (float *)(room + places * RUN);
  float *offsets = about + 2 * places;
  return (Runs){(int8_t *)room, about, about + places, {offsets, offsets + places, offsets + 2 * places}, offsets + 3 * places, places};
}

static void use_room(Product *job, uint8_t *room) {
  if (job->is_many)
    job->arranged = (uint16_t *)room;
  else if (job->is_quantized) {
    const int64_t rows = padded_rows(job), places = rows * (job->inputs / RUN);
    job->quantized.seconds = (uint64_t *)room;
    room += rows * words_of(job->inputs) * sizeof(uint64_t);
    job->quantized.first = runs_in(room, places);
    job->quantized.second = runs_in(room + bytes_of_runs(job), places);
  }
}

static int32_t multiply_products(Products all) {
  int64_t bytes = 0, rows = 0, work = 0;
  for (int64_t index = 0; index < all.count; index++) {
    Product *job = all.products + index;
    job->rearranged.first = rows;
    job->multiplied.first = work;
    rows += job->rearranged.units * job->rearranged.cost;
    work += job->multiplied.units * job->multiplied.cost;
    bytes += room_bytes(job);
  }
  uint8_t *room = bytes ? malloc(bytes + LINE) : NULL, *place = line_of(room);
  if (bytes && !room) return NO_MEMORY;
  for (int64_t index = 0; index < all.count; place += room_bytes(all.products + index++))
    use_room(all.products + index, place);
  in_parallel(rows, REARRANGED_ALONE, rearrange, &all);
  in_parallel(work, WORK_ALONE, multiply_all, &all);
  free(room);
  int32_t fault = OK;
  for (int64_t index = 0; index < all.count && !fault; index++) fault = all.products[index].fault;
  return fault;
}

/* y[rows, outputs of all parts] = x[rows, inputs] times the parts, one below the other, transposed.
 *
 * `is_wide`: activations stay float32; otherwise they are int8 with a scale for each 32 of a row, but for parts
 * whose codes are fractions.
 */
EXPORT int32_t hearth_multiply(const Part *parts, int64_t count, int64_t inputs, const float *x, int64_t rows,
                               float *y, int32_t is_wide, int32_t instructions) {
  return multiply_parts(tiles_for(instructions), parts, count, inputs, x, rows, y, is_wide);
}

int32_t multiply_parts(Tiles with, const Part *parts, int64_t count, int64_t inputs, const float *x, int64_t rows, float *y,
                       int32_t is_wide) {
  const int64_t offsets[2] = {0, rows};
  return multiply_groups(with, parts, count, 1, offsets, inputs, x, y, is_wide);
}

/* The same of groups of rows, each with a matrix of its own: of rows offsets[g] to offsets[g + 1] these are the `count` parts
 * from g · count on. x and y begin with row offsets[0]; all matrices have as many outputs.
 */
EXPORT int32_t hearth_multiply_groups(const Part *parts, int64_t count, int64_t groups, const int64_t *offsets, int64_t inputs,
                                      const float *x, float *y, int32_t is_wide, int32_t instructions) {
  return multiply_groups(tiles_for(instructions), parts, count, groups, offsets, inputs, x, y, is_wide);
}

int32_t multiply_groups(Tiles with, const Part *parts, int64_t count, int64_t groups, const int64_t *offsets, int64_t inputs,
                        const float *x, float *y, int32_t is_wide) {
  if (!with.quantize) return NO_INSTRUCTIONS;
  Product alone;
  Products all = {groups == 1 ? &alone : malloc(sizeof(Product) * groups), 0};
  if (!all.products) return NO_MEMORY;
  int32_t fault = OK;
  for (int64_t group = 0; group < groups && !fault; group++) {
    const int64_t start = offsets[group] - offsets[0], rows = offsets[group + 1] - offsets[group];
    if (!rows) continue;
    Product *job = all.products + all.count++;
    *job = (Product){.tiles = &with, .parts = parts + group * count, .count = count, .inputs = inputs, .rows = rows,
                     .x = x + start * inputs, .quantized = {.inputs = inputs, .together = neighbours_of(rows)},
                     .is_wide = is_wide};
    fault = rows < 0 ? NO_SHAPE : plan(job);
    job->y = y + start * job->outputs;
    if (job->outputs != all.products->outputs) fault = NO_SHAPE;
  }
  if (!fault) fault = multiply_products(all);
  if (groups != 1) free(all.products);
  return fault;
}

/* ---- rows as plain numbers */

static float scale_at(Layout about, const uint8_t *head, int group, int output) {
  const uint8_t *place = head + scale_bytes(about) * output;
  if (about.scale == SCALE_E8M0) return power_of(*place);
  if (about.scale == SCALE_BF16) return from_bf16(place);
  if (about.scale == SCALE_F32) return from_f32(place);
  const float block = from_f16(place);
  if (about.scale == SCALE_F16) return block;
  const uint8_t byte = head[2 * TILE * (about.minimum ? 2 : 1) + TILE * group + output];
  return (about.scale == SCALE_U8 ? (float)byte : (float)(int8_t)byte) * block;
}

static float minimum_at(Layout about, const uint8_t *head, int group, int output) {
  const float block = from_f16(head + 2 * TILE + 2 * output);
  if (about.scale == SCALE_F16) return block;
  return (float)head[4 * TILE + TILE * (about.runs * RUN / about.group + group) + output] * block;
}

static float number_at(Layout about, const uint8_t *run, int output, int input, int zero) {
  const int unit = input / UNIT, byte = byte_of(about, output, input % UNIT);
  int code = 0;
  if (about.low == 8) code = run[LINE * unit + byte];
  if (about.low == 4) code = run[LINE * (unit / 2) + byte] >> unit % 2 * 4 & 15;
  if (about.low == 2) code = run[LINE * (unit / 4) + byte] >> unit % 4 * 2 & 3;
  if (about.high == 1) code |= (run[LINE * about.low + byte] >> unit & 1) << about.low;
  if (about.high == 2) code |= (run[LINE * (about.low + unit / 4) + byte] >> unit % 4 * 2 & 3) << about.low;
  if (about.table == TABLE_IQ4) code = IQ4_CODES[code];
  if (about.table == TABLE_E2M1) code = E2M1_CODES[code];
  if (about.table == TABLE_NF4) return NF4_NUMBERS[code];
  if (about.table == TABLE_E4M3) return from_e4m3fn((uint8_t)code);
  return (float)(code - zero);
}

typedef struct {
  const uint8_t *packed;
  int64_t inputs;
  const int64_t *wanted;
  float *out;
  Kind kind;
} Gathering;

static void gather_rows(int64_t begin, int64_t end, void *context) {
  const Gathering *job = context;
  const Kind kind = job->kind;
  const Layout about = layout_at(kind, job->packed);
  for (int64_t index = begin; index < end; index++) {
    float *out = job->out + index * job->inputs;
    const uint8_t *heads = job->packed + tile_offset(kind, about, job->inputs, job->wanted[index] / TILE);
    const int output = (int)(job->wanted[index] % TILE);
    if (is_plain(kind)) {
      for (int64_t input = 0; input < job->inputs; input++) {
        const uint8_t *half = heads + 2 * half_of(kind, output, input);
        out[input] = kind == F16 ? from_f16(half) : from_bf16(half);
      }
      continue;
    }
    const uint8_t *codes = heads + heads_bytes(about, job->inputs);
    for (int64_t group = 0; group < job->inputs / about.group; group++) {
      const int64_t run = group * about.group / RUN;
      const uint8_t *head = heads + run / about.runs * head_bytes(about);
      const int of_block = (int)(group % (about.runs * RUN / about.group));
      const float scale = scale_at(about, head, of_block, output);
      const float minimum = about.minimum ? (float)about.minimum * minimum_at(about, head, of_block, output) : 0.0f;
      const int zero = about.has_zeros ? head[scale_bytes(about) * TILE + output] : about.zero;
      for (int i = 0; i < about.group; i++) {
        const int input = (int)(group * about.group % RUN) + i;
        const float value = number_at(about, codes + run * run_bytes(about), output, input, zero) * scale;
        out[group * about.group + i] = about.minimum ? value + minimum : value;
      }
    }
  }
}

/* Some rows of a packed matrix as float32, out[count, inputs]: an embedding. */
EXPORT int32_t hearth_rows(int32_t kind, const uint8_t *packed, int64_t outputs, int64_t inputs,
                           const int64_t *wanted, int64_t count, float *out) {
  const int wrong = is_wrong(kind, inputs);
  if (wrong) return wrong;
  for (int64_t index = 0; index < count; index++)
    if (wanted[index] < 0 || wanted[index] >= outputs) return NO_SHAPE;
  Gathering job = {packed, inputs, wanted, out, (Kind)kind};
  in_parallel(count, 16, gather_rows, &job);
  return OK;
}
