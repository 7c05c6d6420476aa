/* Attention of many tokens of a sequence by AMX, in bfloat16 with sums in float32: FlashAttention (arXiv 2205.14135) over
 * pages. Rows are the queries that share a head of keys: query q of token t is row t * shared + q, and 32 rows are a
 * block. Some keys at a time are arranged as tiles for all blocks.
 */
#include "amx.h"
#include "packed.h"

#if defined(AMX)
#include <stdlib.h>
#include <string.h>

#include "exponential.h"

enum { CHUNK = 1024, GROUP = WIDE, GROUPS = CHUNK / GROUP, TOGETHER = 8 * GROUP };

typedef struct {
  const Run *run;
  int64_t shared, rows, blocks, depth; /* rows of a head of keys, and blocks of them; runs of 32 of head_dim */
  int64_t begin, end;                  /* keys of the chunk */
  uint16_t *queries;                   /* [kv_heads, blocks, 2, depth][16 rows][32] */
  uint32_t *keys;                      /* [kv_heads, GROUPS, depth, 2][16 pairs of numbers][16 keys] */
  uint32_t *values;                    /* [kv_heads, GROUPS, 2 depth][16 pairs of keys][16 numbers] */
  float *sums;                         /* [kv_heads, blocks, 32, 32 depth] */
  float *peaks, *totals;               /* [kv_heads, blocks, 32] */
} Job;

static int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }

static __mmask16 first_of(int64_t count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1 << count) - 1); }

AMX static __m512 kept(int32_t type, int64_t size, const uint8_t *row, int64_t from) {
  const __mmask16 some = first_of(size - from);
  if (type == KV_F32) return _mm512_maskz_loadu_ps(some, (const float *)row + from);
  if (type == KV_F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(some, row + 2 * from));
  const __m512 codes = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(row + from))));
  return _mm512_mul_ps(codes, _mm512_cvtph_ps(_mm256_set1_epi16(*(const short *)(row + size + from / RUN * 2))));
}

/* Queries of blocks `begin` to `end`, of all heads of keys, by the scale of scores. */
AMX static void arrange_queries(int64_t begin, int64_t end, void *context) {
  const Job *job = context;
  const Heads *about = job->run->about;
  for (int64_t block = begin; block < end; block++) {
    const int64_t head = block / job->blocks, first = block % job->blocks * WIDE;
    for (int64_t row = 0; row < WIDE; row++) {
      const int64_t token = (first + row) / job->shared, query = head * job->shared + (first + row) % job->shared;
      const float *from = job->run->query + token * job->run->stride + query * about->head_dim;
      for (int64_t at = 0; at < job->depth * RUN; at += 16) {
        const __mmask16 some = first + row < job->rows ? first_of(about->head_dim - at) : 0;
        const __m512 numbers = _mm512_mul_ps(_mm512_maskz_loadu_ps(some, from + at), _mm512_set1_ps(about->scale));
        uint16_t *to = job->queries + ((block * 2 + row / TILE) * job->depth + at / RUN) * TILE * RUN;
        _mm256_storeu_si256((__m256i *)(to + row % TILE * RUN + at % RUN), to_bf16(numbers));
      }
      job->peaks[block * WIDE + row] = -3.0e38f;
      job->totals[block * WIDE + row] = 0.0f;
    }
    memset(job->sums + block * WIDE * job->depth * RUN, 0, sizeof(float) * WIDE * job->depth * RUN);
  }
}

/* Groups of 32 keys and values, `begin` to `end` of all heads; what is not in the chunk is zero. */
AMX static void arrange_keys(int64_t begin, int64_t end, void *context) {
  const Job *job = context;
  const Heads *about = job->run->about;
  const int64_t key_bytes = kv_row_bytes(about->key_type, about->head_dim);
  const int64_t value_bytes = kv_row_bytes(about->value_type, about->head_dim);
  for (int64_t index = begin; index < end; index++) {
    const int64_t head = index / GROUPS, group = index % GROUPS;
    uint32_t *keys = job->keys + index * job->depth * 2 * TILE * TILE;
    uint32_t *values = job->values + index * job->depth * 2 * TILE * TILE;
    const uint8_t *of_keys[GROUP], *of_values[GROUP];
    if (job->begin + group * GROUP >= job->end) continue;
    for (int64_t key = 0; key < GROUP; key++) {
      const int64_t at = job->begin + group * GROUP + key;
      const int64_t place = at < job->end ? job->run->table[at / about->page] * about->page + at % about->page : -1;
      of_keys[key] = place < 0 ? NULL : job->run->keys + (head * job->run->head_rows + place) * key_bytes;
      of_values[key] = place < 0 ? NULL : job->run->values + (head * job->run->head_rows + place) * value_bytes;
    }
    for (int64_t at = 0; at < job->depth * RUN; at += 16) {
      for (int64_t key = 0; key < GROUP; key++) {
        uint32_t pairs[8];
        const __m512 numbers = of_keys[key] ? kept(about->key_type, about->head_dim, of_keys[key], at) : _mm512_setzero_ps();
        _mm256_storeu_si256((__m256i *)pairs, to_bf16(numbers));
        uint32_t *to = keys + ((at / RUN) * 2 + key / TILE) * TILE * TILE + at % RUN / 2 * TILE + key % TILE;
        for (int pair = 0; pair < 8; pair++) to[pair * TILE] = pairs[pair];
      }
      for (int64_t pair = 0; pair < TILE; pair++) {
        __m512 both[2];
        for (int side = 0; side < 2; side++) {
          const uint8_t *row = of_values[2 * pair + side];
          both[side] = row ? kept(about->value_type, about->head_dim, row, at) : _mm512_setzero_ps();
        }
        store_pair(values + (at / 16 * TILE + pair) * TILE, both[0], both[1]);
      }
    }
  }
}

/* Scores [TOGETHER] of a row to weights, of the keys `low` to `high` - 1: its new peak, and what its sums are worth. */
AMX static float weigh(const Heads *about, float *scores, int64_t low, int64_t high, int64_t keys, uint16_t *weights,
                       float *peak, float *total) {
  const __m512 none = _mm512_set1_ps(-3.0e38f), cap = _mm512_set1_ps(about->softcap);
  __m512 most = _mm512_set1_ps(*peak), sum = _mm512_setzero_ps();
  for (int64_t at = 0; at < keys; at += 16) {
    const __mmask16 seen = first_of(high - at) & ~first_of(low - at);
    __m512 one = _mm512_loadu_ps(scores + at);
    if (about->softcap != 0.0f) { /* tanh x is 1 - 2 / (1 + e^2x). */
      const __m512 power = exp_f(_mm512_mul_ps(one, _mm512_set1_ps(2.0f / about->softcap)));
      const __m512 share = _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(power, _mm512_set1_ps(1.0f)));
      one = _mm512_mul_ps(_mm512_sub_ps(_mm512_set1_ps(1.0f), share), cap);
    }
    one = _mm512_mask_mov_ps(none, seen, one);
    _mm512_storeu_ps(scores + at, one);
    most = _mm512_max_ps(one, most);
  }
  const float before = *peak;
  *peak = _mm512_reduce_max_ps(most);
  for (int64_t at = 0; at < keys; at += 16) {
    const __mmask16 seen = first_of(high - at) & ~first_of(low - at);
    const __m512 weight = _mm512_maskz_mov_ps(seen, exp_f(_mm512_sub_ps(_mm512_loadu_ps(scores + at), _mm512_set1_ps(*peak))));
    sum = _mm512_add_ps(sum, weight);
    _mm256_storeu_si256((__m256i *)(weights + at / RUN * TILE * RUN + at % RUN), to_bf16(weight));
  }
  const float worth = _mm512_cvtss_f32(exp_f(_mm512_set1_ps(before - *peak)));
  *total = *total * worth + _mm512_reduce_add_ps(sum);
  return worth;
}

/* Blocks `begin` to `end` of all heads, over the keys of the chunk. */
AMX static void attend_blocks(int64_t begin, int64_t end, void *context) {
  const Job *job = context;
  const Heads *about = job->run->about;
  const int64_t size = job->depth * RUN, group_size = job->depth * 2 * TILE * TILE;
  float scores[WIDE * TOGETHER];
  uint16_t weights[WIDE * TOGETHER] __attribute__((aligned(64)));
  uint8_t before[LINE];
  keep_tiles(before);
  use_tiles();
  for (int64_t block = begin; block < end; block++) {
    const int64_t head = block / job->blocks, first = block % job->blocks * WIDE;
    const int64_t rows = smaller(WIDE, job->rows - first);
    const int64_t newest = job->run->start + (first + rows - 1) / job->shared, oldest = job->run->start + first / job->shared;
    const uint16_t *queries = job->queries + block * 2 * job->depth * TILE * RUN;
    float *sums = job->sums + block * WIDE * size;
    for (int64_t start = job->begin; start < job->end && start <= newest; start += TOGETHER) {
      const int64_t stop = smaller(start + TOGETHER, smaller(job->end, newest + 1));
      if (about->window && stop <= oldest + 1 - about->window) continue;
      const int64_t groups = (stop - start + GROUP - 1) / GROUP, group = head * GROUPS + (start - job->begin) / GROUP;
      for (int64_t one = 0; one < groups; one++)
        add_tiles(queries, job->depth * TILE * RUN, job->keys + (group + one) * group_size, TILE * TILE, 2 * TILE * TILE, job->depth, NULL, 0,
                  scores + one * GROUP, TOGETHER);
      for (int64_t row = 0; row < WIDE; row++) {
        uint16_t *to = weights + row / TILE * TOGETHER * TILE + row % TILE * RUN;
        if (row >= rows) {
          for (int64_t one = 0; one < groups; one++) memset(to + one * TILE * RUN, 0, RUN * sizeof(uint16_t));
          continue;
        }
        const int64_t position = job->run->start + (first + row) / job->shared;
        const int64_t low = about->window && position >= about->window ? position + 1 - about->window - start : 0;
        float *peak = job->peaks + block * WIDE + row;
        const float worth = weigh(about, scores + row * TOGETHER, low, position + 1 - start, groups * GROUP, to, peak,
                                  job->totals + block * WIDE + row);
        if (worth != 1.0f)
          for (int64_t at = 0; at < size; at += 16)
            _mm512_storeu_ps(sums + row * size + at,
                             _mm512_mul_ps(_mm512_loadu_ps(sums + row * size + at), _mm512_set1_ps(worth)));
      }
      for (int64_t at = 0; at < size; at += WIDE)
        add_tiles(weights, TOGETHER * TILE, job->values + group * group_size + at * TILE, TILE * TILE, group_size, groups, sums + at, size, sums + at,
                  size);
    }
  }
  give_back_tiles(before);
}

AMX static void finish_blocks(int64_t begin, int64_t end, void *context) {
  const Job *job = context;
  const Heads *about = job->run->about;
  for (int64_t block = begin; block < end; block++) {
    const int64_t head = block / job->blocks, first = block % job->blocks * WIDE;
    for (int64_t row = 0; row < smaller(WIDE, job->rows - first); row++) {
      const int64_t token = (first + row) / job->shared, query = head * job->shared + (first + row) % job->shared;
      const float *sums = job->sums + (block * WIDE + row) * job->depth * RUN;
      float *out = job->run->out + token * job->run->out_stride + query * about->head_dim;
      float total = job->totals[block * WIDE + row], worth = 1.0f;
      if (about->sinks) {
        const float sink = about->sinks[query], peak = job->peaks[block * WIDE + row], most = sink > peak ? sink : peak;
        worth = _mm512_cvtss_f32(exp_f(_mm512_set1_ps(peak - most)));
        total = total * worth + _mm512_cvtss_f32(exp_f(_mm512_set1_ps(sink - most)));
      }
      const __m512 share = _mm512_set1_ps(worth / total);
      for (int64_t at = 0; at < about->head_dim; at += 16)
        _mm512_storeu_ps(out + at, _mm512_mul_ps(_mm512_loadu_ps(sums + at), share));
    }
  }
}

int32_t amx_attend(const Run *run) {
  const Heads *about = run->about;
  const int64_t shared = about->heads / about->kv_heads, rows = run->count * shared, blocks = (rows + WIDE - 1) / WIDE;
  const int64_t depth = (about->head_dim + RUN - 1) / RUN, all = about->kv_heads * blocks * WIDE;
  const int64_t arranged = about->kv_heads * CHUNK * depth * RUN / 2;
  const int64_t first = about->window && run->start >= about->window ? run->start + 1 - about->window : 0;
  uint8_t *room = malloc(all * depth * RUN * (sizeof(float) + 2) + 2 * arranged * sizeof(uint32_t) + all * 2 * sizeof(float) + LINE);
  if (!room) return NO_MEMORY;
  Job job = {run, shared, rows, blocks, depth, 0, 0, line_of(room)};
  job.keys = (uint32_t *)(job.queries + all * depth * RUN);
  job.values = job.keys + arranged;
  job.sums = (float *)(job.values + arranged);
  job.peaks = job.sums + all * depth * RUN;
  job.totals = job.peaks + all;
  in_parallel(about->kv_heads * blocks, 1, arrange_queries, &job);
  for (job.begin = first; job.begin < run->start + run->count; job.begin = job.end) {
    job.end = smaller(job.begin + CHUNK, run->start + run->count);
    in_parallel(about->kv_heads * GROUPS, 1, arrange_keys, &job);
    in_parallel(about->kv_heads * blocks, 1, attend_blocks, &job);
  }
  in_parallel(about->kv_heads * blocks, 1, finish_blocks, &job);
  free(room);
  return OK;
}

#else

int32_t amx_attend(const Run *run) { return run->count ? NO_INSTRUCTIONS : OK; }

#endif
