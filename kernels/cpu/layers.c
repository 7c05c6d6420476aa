/* A layer of a decoder in two calls: what comes before its attention and the attention, which reads keys and values where
 * they are; and what comes after it. Activations are float32.
 */
#include <stdlib.h>
#include <string.h>

#include "experts.h"

enum { ROWS_ALONE = 4, SPANS_ALONE = 2, TOKENS_ALONE = 4 };

/* x · Wᵀ + b. */
typedef struct {
  const Part *parts;
  int64_t count;     /* of the parts; 0: there is no such matrix */
  int64_t outputs;
  const float *bias; /* [outputs], or NULL */
} Matrix;

/* A layer; weights of norms that it does not have are NULL. */
typedef struct {
  Heads heads;
  int64_t width, feed_forward;
  const float *attention_norm, *query_norm, *key_norm, *attention_post_norm;
  const float *feed_forward_norm, *feed_forward_post_norm;
  Matrix qkv, out, gate_up, down;
  Experts experts; /* in place of `gate_up` and `down` */
  float eps;
  int32_t activation;
  int32_t is_wide; /* of products; see `hearth_multiply` */
  int32_t instructions;
} Layer;

/* The tokens of a step, and where their sequences have keys and values in a layer. */
typedef struct {
  int64_t tokens;
  const int64_t *positions; /* [tokens] */
  const int32_t *tables;    /* blocks of all sequences, one after the other */
  const int64_t *starts;    /* [tokens] where in `tables` the blocks of its sequence begin */
  const uint8_t *is_apart;  /* [tokens] attention of this token is that of a run, or computed elsewhere */
  const int64_t *runs;      /* [run_count, 2] first token of a run, and the one behind its last: for AMX */
  int64_t run_count;
  const float *cosines;     /* [tokens, rotated], of both halves; NULL: no positions */
  const float *sines;       /* likewise, negative for the first half */
  int64_t rotated;
  int64_t blocks;           /* of the pool */
  /* Of tokens in a tree, whose places in the blocks of their sequence, cells, are not their positions; NULL: there are none. */
  const int64_t *known;     /* [tokens] positions before it are in cells of the same number */
  const int64_t *paths;     /* [tokens, reach] the cells of the positions from there to that of the token */
  int64_t reach;
} Step;

static int64_t cell_of(const Step *step, int64_t token) {
  const int64_t position = step->positions[token];
  if (!step->known || position < step->known[token]) return position;
  return step->paths[token * step->reach + position - step->known[token]];
}

static int is_misshapen(const Heads *about) {
  return about->heads <= 0 || about->kv_heads <= 0 || about->heads % about->kv_heads || about->head_dim <= 0 ||
         about->head_dim % TILE || about->page <= 0 ||
         ((about->key_type == KV_Q8_0 || about->value_type == KV_Q8_0) && about->head_dim % RUN);
}

/* ---- attention */

/* Tokens of sequences that begin with the same block: where they have more in common, it is read once for all of them. */
typedef struct {
  int32_t block;
  int64_t tokens, first; /* how many, and where in `order` they begin */
  int64_t span, spans;   /* the first that one of them sees, and how many there are to the last */
  int64_t work;          /* for a head, of the groups before it */
} Group;

/* Queries over the same keys, which are attended together. */
enum { TOGETHER = 12, MOST_SIZE = 256 };

/* Of the sums over spans, unless those of a single token are larger: for more tokens they are had one batch after the other. */
enum { PARTS_BYTES = 16 << 20 };

typedef struct {
  Tiles tiles;
  const Heads *about;
  const Step *step;
  const uint8_t *keys, *values;
  const float *query; /* [tokens, heads, head_dim], of `stride` numbers a token */
  int64_t stride;
  float *out;         /* [tokens, heads, head_dim], of `out_stride` numbers a token */
  int64_t out_stride;
  Group *groups;
  int64_t *order;     /* [tokens] those of a group one after the other */
  int64_t *firsts;    /* [tokens + 1] the first span of each token; each has as many for a head of keys */
  int64_t begin;      /* the first token of the batch */
  float *parts;       /* [spans, shared, head_dim] */
  float *peaks, *totals; /* [spans, shared] */
  int64_t work;       /* for a head: pairs of a span and a token that may see it */
} Attention;

static int64_t first_seen(const Heads *about, int64_t position) {
  return about->window && position >= about->window ? position + 1 - about->window : 0;
}

/* Spans end at multiples of SPAN, so that they do not depend on what else is in the step. */
static int64_t spans_of(const Heads *about, int64_t position) {
  return position / SPAN - first_seen(about, position) / SPAN + 1;
}

/* The keys of span `number` that a token sees. */
static Span span_of(const Attention *job, int64_t token, int64_t head, int64_t number) {
  const Heads *about = job->about;
  const Step *step = job->step;
  const int64_t first = first_seen(about, step->positions[token]), behind = step->positions[token] + 1;
  const int64_t start = number * SPAN, rows = head * step->blocks * about->page;
  return (Span){job->keys + rows * kv_row_bytes(about->key_type, about->head_dim),
                job->values + rows * kv_row_bytes(about->value_type, about->head_dim),
                step->tables + step->starts[token],
                start > first ? start : first,
                start + SPAN < behind ? start + SPAN : behind,
                step->known ? step->known[token] : INT64_MAX,
                step->known ? step->paths + token * step->reach : NULL};
}

/* How many of `tokens`, at most `most`, see the keys of `span`, of the first one, and no others of span `number`. */
static int64_t seen_together(const Attention *job, const Span *span, const int64_t *tokens, int64_t number, int64_t most) {
  const int64_t from = span->begin / job->about->page, to = (span->end - 1) / job->about->page + 1;
  int64_t count = 1;
  if (span->known < span->end) return count; /* Each has a path of its own. */
  for (; count < most; count++) {
    const Span other = span_of(job, tokens[count], 0, number);
    if (other.begin != span->begin || other.end != span->end || other.known < other.end) break;
    if (memcmp(other.table + from, span->table + from, sizeof(int32_t) * (to - from))) break;
  }
  return count;
}

static void attend_spans(int64_t begin, int64_t end, void *context) {
  const Attention *job = context;
  const Heads *about = job->about;
  const int64_t shared = about->heads / about->kv_heads, size = about->head_dim, each = shared * size;
  const int64_t together = size <= MOST_SIZE && shared < TOGETHER ? TOGETHER / shared : 1;
  float queries[TOGETHER * MOST_SIZE], found[TOGETHER * MOST_SIZE], peaks[TOGETHER], totals[TOGETHER];
  for (int64_t at = begin, count; at < end; at += count) {
    const int64_t head = at / job->work, rest = at % job->work;
    const Group *group = job->groups;
    while (rest >= group[1].work) group++;
    const int64_t place = (rest - group->work) % group->tokens, number = group->span + (rest - group->work) / group->tokens;
    const int64_t *tokens = job->order + group->first + place;
    const Span span = span_of(job, *tokens, head, number);
    count = 1;
    if (span.begin >= span.end) continue;
    const int64_t left = group->tokens - place < end - at ? group->tokens - place : end - at;
    count = seen_together(job, &span, tokens, number, left < together ? left : together);
    for (int64_t t = 0; t < count; t++) {
      const int64_t position = job->step->positions[tokens[t]], first = first_seen(about, position) / SPAN;
      const int64_t index = (job->firsts[tokens[t]] + head * spans_of(about, position) + number - first) * shared;
      if (count == 1) {
        job->tiles.attend(about, &span, job->query + *tokens * job->stride + head * each, shared, job->parts + index * size,
                          job->peaks + index, job->totals + index);
        break;
      }
      if (!t) {
        for (int64_t i = 0; i < count; i++)
          memcpy(queries + i * each, job->query + tokens[i] * job->stride + head * each, sizeof(float) * each);
        job->tiles.attend(about, &span, queries, count * shared, found, peaks, totals);
      }
      memcpy(job->parts + index * size, found + t * each, sizeof(float) * each);
      memcpy(job->peaks + index, peaks + t * shared, sizeof(float) * shared);
      memcpy(job->totals + index, totals + t * shared, sizeof(float) * shared);
    }
  }
}

static void join(int64_t begin, int64_t end, void *context) {
  const Attention *job = context;
  const Heads *about = job->about;
  const int64_t shared = about->heads / about->kv_heads, size = about->head_dim;
  for (int64_t token = job->begin + begin; token < job->begin + end; token++) {
    if (job->step->is_apart[token]) continue;
    const int64_t count = spans_of(about, job->step->positions[token]);
    for (int64_t head = 0; head < about->heads; head++) {
      const int64_t first = (job->firsts[token] + head / shared * count) * shared + head % shared;
      job->tiles.join(job->parts + first * size, shared * size, job->peaks + first, job->totals + first, shared, count,
                      about->sinks ? about->sinks + head : NULL, size, job->out + token * job->out_stride + head * size);
    }
  }
}

/* Fills in groups[tokens + 1] and order[tokens] for the tokens from `begin` to `end`. Returns the work for a head, which is that
 * of the group behind the last.
 */
static int64_t grouped(const Heads *about, const Step *step, int64_t begin, int64_t end, Group *groups, int64_t *order) {
  int64_t count = 0, place = 0, work = 0, at = 0;
  for (int64_t token = begin; token < end; token++) {
    if (step->is_apart[token]) continue;
    const int64_t position = step->positions[token], span = first_seen(about, position) / SPAN, behind = position / SPAN + 1;
    const int32_t block = step->tables[step->starts[token]];
    if (!count || groups[at].block != block)
      for (at = 0; at < count && groups[at].block != block;) at++;
    if (at == count) groups[count++] = (Group){block, 0, 0, span, behind - span, 0};
    Group *group = groups + at;
    const int64_t last = group->span + group->spans;
    group->tokens++;
    group->span = span < group->span ? span : group->span;
    group->spans = (behind > last ? behind : last) - group->span;
  }
  for (at = 0; at < count; at++) {
    groups[at].first = place;
    groups[at].work = work;
    work += groups[at].spans * groups[at].tokens;
    for (int64_t token = begin; token < end; token++)
      if (!step->is_apart[token] && step->tables[step->starts[token]] == groups[at].block) order[place++] = token;
  }
  groups[count].work = work;
  return work;
}

static int32_t attend(Tiles tiles, const Heads *about, const Step *step, const uint8_t *keys, const uint8_t *values,
                      const float *query, int64_t stride, float *out, int64_t out_stride) {
  const int64_t shared = about->heads / about->kv_heads, numbers = about->head_dim + 2;
  const int64_t enough = PARTS_BYTES / (int64_t)sizeof(float) / numbers / shared; /* spans of a batch */
  int64_t spans = 0, most = 0, all = 0;
  Group *groups = malloc((sizeof(Group) + 2 * sizeof(int64_t)) * (step->tokens + 1));
  if (!groups) return NO_MEMORY;
  int64_t *firsts = (int64_t *)(groups + step->tokens + 1), *order = firsts + step->tokens + 1;
  for (int64_t token = 0; token < step->tokens; token++) {
    spans = step->is_apart[token] ? 0 : about->kv_heads * spans_of(about, step->positions[token]);
    most = spans > most ? spans : most;
    all += spans;
  }
  const int64_t queries = shared * (all < enough ? all : most < enough ? enough : most);
  float *parts = malloc(sizeof(float) * (queries * numbers + 1));
  if (!parts) {
    free(groups);
    return NO_MEMORY;
  }
  float *peaks = parts + queries * about->head_dim;
  for (int64_t begin = 0, end; begin < step->tokens; begin = end) {
    for (end = begin, firsts[begin] = 0; end < step->tokens; end++) {
      spans = step->is_apart[end] ? 0 : about->kv_heads * spans_of(about, step->positions[end]);
      if (end > begin && (firsts[end] + spans) * shared > queries) break;
      firsts[end + 1] = firsts[end] + spans;
    }
    const int64_t work = grouped(about, step, begin, end, groups, order);
    Attention job = {tiles,  about, step,   keys,  values, query, stride,          out, out_stride,
                     groups, order, firsts, begin, parts,  peaks, peaks + queries, work};
    in_parallel(about->kv_heads * work, SPANS_ALONE, attend_spans, &job);
    in_parallel(end - begin, TOKENS_ALONE, join, &job);
  }
  free(parts);
  free(groups);
  int32_t fault = OK;
  for (int64_t run = 0; run < step->run_count && !fault; run++) {
    const int64_t begin = step->runs[2 * run], end = step->runs[2 * run + 1];
    const Run job = {about, keys, values, step->blocks * about->page, step->tables + step->starts[begin],
                     step->positions[begin], end - begin, query + begin * stride, stride,
                     out + begin * out_stride, out_stride};
    fault = tiles.has_amx ? amx_attend(&job) : NO_INSTRUCTIONS;
  }
  return fault;
}

/* Attention over keys and values that are in the pool: out[tokens, heads, head_dim] for query[tokens, heads, head_dim], of
 * which tokens are `out_stride` and `stride` numbers apart. Rows of tokens that are apart stay as they are.
 */
EXPORT int32_t hearth_attend(const Heads *about, const Step *step, const uint8_t *keys, const uint8_t *values,
                             const float *query, int64_t stride, float *out, int64_t out_stride, int32_t instructions) {
  const Tiles tiles = tiles_for(instructions);
  if (!tiles.quantize) return NO_INSTRUCTIONS;
  return is_misshapen(about) ? NO_SHAPE : attend(tiles, about, step, keys, values, query, stride, out, out_stride);
}

/* ---- half layers */

typedef struct {
  Tiles tiles;
  const Layer *layer;
  const Step *step;
  uint8_t *keys, *values;
  float *rows;  /* of all tokens */
  float *found;
  const float *weight;
  int64_t size;
  const float *bias;
} Rows;

static void norm_rows(int64_t begin, int64_t end, void *context) {
  const Rows *job = context;
  for (int64_t row = begin; row < end; row++)
    job->tiles.norm(job->rows + row * job->size, job->weight, job->layer->eps, job->size, job->found + row * job->size);
}

static void rotate(float *head, const float *cosines, const float *sines, int64_t size) {
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; i++) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cosines[i] + second * sines[i];
    head[i + half] = second * cosines[i + half] + first * sines[i + half];
  }
}

/* Queries, keys and values [tokens, heads + 2 kv_heads, head_dim] in place, and into the pool. */
static void place_heads(int64_t begin, int64_t end, void *context) {
  const Rows *job = context;
  const Heads *about = &job->layer->heads;
  const Step *step = job->step;
  const int64_t size = about->head_dim, rotated = about->heads + about->kv_heads, all = rotated + about->kv_heads;
  for (int64_t token = begin; token < end; token++) {
    float *heads = job->rows + token * all * size;
    if (job->layer->qkv.bias) job->tiles.add(heads, job->layer->qkv.bias, all * size);
    for (int64_t head = 0; head < rotated; head++) {
      const float *weight = head < about->heads ? job->layer->query_norm : job->layer->key_norm;
      if (weight) job->tiles.norm(heads + head * size, weight, job->layer->eps, size, heads + head * size);
      if (step->cosines)
        rotate(heads + head * size, step->cosines + token * step->rotated, step->sines + token * step->rotated, step->rotated);
    }
    const int64_t cell = cell_of(step, token);
    const int64_t block = step->tables[step->starts[token] + cell / about->page];
    for (int64_t head = 0; head < about->kv_heads; head++) {
      const int64_t row = (head * step->blocks + block) * about->page + cell % about->page;
      const float *key = heads + (about->heads + head) * size, *value = key + about->kv_heads * size;
      job->tiles.keep(about->key_type, key, job->keys + row * kv_row_bytes(about->key_type, size), size);
      job->tiles.keep(about->value_type, value, job->values + row * kv_row_bytes(about->value_type, size), size);
    }
  }
}

/* The first half: hidden[tokens, width] -> qkv[tokens, heads + 2 kv_heads, head_dim], with positions, of which keys and
 * values are in the pool then; and attended[tokens, heads, head_dim], but for tokens whose attention is computed elsewhere.
 */
EXPORT int32_t hearth_attention_half(const Layer *layer, const Step *step, uint8_t *keys, uint8_t *values, float *hidden,
                                     float *qkv, float *attended) {
  const Heads *about = &layer->heads;
  const int64_t outputs = (about->heads + 2 * about->kv_heads) * about->head_dim;
  const Tiles tiles = tiles_for(layer->instructions);
  if (!tiles.quantize) return NO_INSTRUCTIONS;
  if (is_misshapen(about) || layer->width % TILE || layer->qkv.outputs != outputs || step->rotated > about->head_dim)
    return NO_SHAPE;
  float *normed = malloc(sizeof(float) * step->tokens * layer->width);
  if (!normed) return NO_MEMORY;
  Rows job = {tiles, layer, step, keys, values, hidden, normed, layer->attention_norm, layer->width, NULL};
  in_parallel(step->tokens, ROWS_ALONE, norm_rows, &job);
  int32_t fault =
      multiply_parts(tiles, layer->qkv.parts, layer->qkv.count, layer->width, normed, step->tokens, qkv, layer->is_wide);
  free(normed);
  if (fault) return fault;
  job.rows = qkv;
  in_parallel(step->tokens, ROWS_ALONE, place_heads, &job);
  return attend(tiles, about, step, keys, values, qkv, outputs, attended, about->heads * about->head_dim);
}

/* hidden[tokens, width] += found, with a bias, and normed where there is a weight for it. */
static void add_rows(int64_t begin, int64_t end, void *context) {
  const Rows *job = context;
  for (int64_t row = begin; row < end; row++) {
    float *found = job->found + row * job->size;
    if (job->bias) job->tiles.add(found, job->bias, job->size);
    if (job->weight) job->tiles.norm(found, job->weight, job->layer->eps, job->size, found);
    job->tiles.add(job->rows + row * job->size, found, job->size);
  }
}

/* found[tokens, 2 size]: the gate's half becomes what the feed-forward hides, and rows move together. */
static void gate_rows(int64_t begin, int64_t end, void *context) {
  const Rows *job = context;
  for (int64_t row = begin; row < end; row++) {
    const float *both = job->rows + row * 2 * job->size;
    memcpy(job->found + row * job->size, both, sizeof(float) * job->size);
    job->tiles.gate(job->layer->activation, job->found + row * job->size, both + job->size, job->size);
  }
}

/* found[tokens, width], normed, becomes what feeds forward. */
static int32_t feed(const Tiles *tiles, const Layer *layer, int64_t tokens, float *found) {
  const int64_t width = layer->width, hides = layer->feed_forward;
  void *room = malloc(sizeof(float) * tokens * 3 * hides + LINE);
  if (!room) return NO_MEMORY;
  float *both = line_of(room), *hidden_layer = both + 2 * tokens * hides;
  int32_t fault =
      multiply_parts(*tiles, layer->gate_up.parts, layer->gate_up.count, width, found, tokens, both, layer->is_wide);
  Rows gates = {*tiles, layer, NULL, NULL, NULL, both, hidden_layer, NULL, hides, NULL};
  if (!fault) in_parallel(tokens, ROWS_ALONE, gate_rows, &gates);
  if (!fault)
    fault = multiply_parts(*tiles, layer->down.parts, layer->down.count, hides, hidden_layer, tokens, found, layer->is_wide);
  free(room);
  return fault;
}

/* The second half: hidden[tokens, width] becomes what the layer makes of it and of attended[tokens, heads, head_dim].
 * Without experts and a matrix `gate_up`, the attention alone is added.
 */
EXPORT int32_t hearth_feed_half(const Layer *layer, int64_t tokens, const float *attended, float *hidden) {
  const int64_t width = layer->width;
  const Experts *experts = layer->experts.count ? &layer->experts : NULL;
  const int has_more = experts || layer->gate_up.count;
  const Tiles tiles = tiles_for(layer->instructions);
  if (!tiles.quantize) return NO_INSTRUCTIONS;
  if (width % TILE || layer->out.outputs != width) return NO_SHAPE;
  if (layer->gate_up.count && (layer->feed_forward % TILE || layer->gate_up.outputs != 2 * layer->feed_forward ||
                               layer->down.outputs != width))
    return NO_SHAPE;
  void *room = malloc(sizeof(float) * tokens * width * (experts ? 2 : 1) + LINE);
  if (!room) return NO_MEMORY;
  float *found = line_of(room);
  int32_t fault = multiply_parts(tiles, layer->out.parts, layer->out.count, layer->heads.heads * layer->heads.head_dim,
                                 attended, tokens, found, layer->is_wide);
  Rows job = {tiles, layer, NULL, NULL, NULL, hidden, found, layer->attention_post_norm, width, layer->out.bias};
  if (!fault) in_parallel(tokens, ROWS_ALONE, add_rows, &job);
  if (!fault && has_more) {
    job.weight = layer->feed_forward_norm;
    in_parallel(tokens, ROWS_ALONE, norm_rows, &job);
    if (experts) job.found += tokens * width;
    fault = experts ? mix_experts(&tiles, experts, width, layer->activation, layer->is_wide, tokens, found, job.found)
                    : feed(&tiles, layer, tokens, found);
    job.weight = layer->feed_forward_post_norm;
    job.bias = layer->down.bias;
    if (!fault) in_parallel(tokens, ROWS_ALONE, add_rows, &job);
  }
  free(room);
  return fault;
}
