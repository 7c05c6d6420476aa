/* The feed-forward of a mixture of experts: tokens are sorted by expert, so that its matrices are read once for all of its
 * rows. A token's sum is in the order of the numbers of its experts: its bits do not depend on other tokens, but for the way
 * that products of an expert go, which its number of rows decides.
 */
#include <stdlib.h>
#include <string.h>

#include "experts.h"

enum { ROWS_ALONE = 4, TOGETHER_BYTES = 8 << 20 };

typedef struct {
  const Tiles *tiles;
  const Experts *about;
  int64_t width, tokens;
  int32_t activation;
  const float *x;
  float *out;
  int64_t spread;    /* scores of a token, a multiple of 16 */
  int64_t shares;    /* weights of a token, likewise */
  float *scores;     /* [tokens, spread] */
  float *weights;    /* [tokens, shares] */
  int64_t *chosen;   /* [tokens, active] in rising order */
  int64_t *places;   /* [tokens, active] the row of a choice when all are sorted by expert */
  int64_t *sources;  /* [rows] the token of a row */
  int64_t *owners;   /* [rows] its expert */
  int64_t *offsets;  /* [count + 1] the first row of each expert */
  int64_t begin, end; /* the rows that are computed together: */
  float *rows;       /* [end - begin, width] what goes in, then what comes out */
  float *both;       /* [end - begin, 2 hides] */
  float *hidden;     /* [end - begin, hides] */
} Mixture;

static int64_t padded(int64_t size) { return (size + TILE - 1) / TILE * TILE; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- choosing */

/* The experts with the greatest scores, of equal ones the first; then in rising order, with their weights. */
static void choose(const Mixture *job, int64_t token) {
  const Experts *about = job->about;
  float *scores = job->scores + token * job->spread, *weights = job->weights + token * job->shares;
  int64_t *chosen = job->chosen + token * about->active, count = 0;
  for (int64_t expert = 0; expert < about->count; expert++) {
    const float score = scores[expert];
    if (count == about->active && !(score > scores[chosen[count - 1]])) continue;
    int64_t place = count < about->active ? count++ : count - 1;
    for (; place && score > scores[chosen[place - 1]]; place--) chosen[place] = chosen[place - 1];
    chosen[place] = expert;
  }
  const float peak = scores[chosen[0]];
  for (int64_t index = 1; index < count; index++) {
    const int64_t expert = chosen[index];
    int64_t place = index;
    for (; place && chosen[place - 1] > expert; place--) chosen[place] = chosen[place - 1];
    chosen[place] = expert;
  }
  for (int64_t index = 0; index < job->shares; index++) weights[index] = index < count ? scores[chosen[index]] : -3.0e38f;
  float total = job->tiles->weigh(weights, peak, job->shares);
  if (about->weighs_all) total = job->tiles->weigh(scores, peak, job->spread);
  for (int64_t index = 0; index < count; index++) weights[index] /= total;
}

static void route(int64_t begin, int64_t end, void *context) {
  const Mixture *job = context;
  const Experts *about = job->about;
  job->tiles->score(KV_F32, job->x + begin * job->width, end - begin, (const uint8_t *)about->router, about->count, job->width,
                    job->scores + begin * job->spread, job->spread);
  for (int64_t token = begin; token < end; token++) {
    float *scores = job->scores + token * job->spread;
    for (int64_t expert = about->count; expert < job->spread; expert++) scores[expert] = -3.0e38f;
    for (int64_t expert = 0; about->router_bias && expert < about->count; expert++)
      scores[expert] += about->router_bias[expert];
    choose(job, token);
  }
}

static void sort_by_expert(const Mixture *job) {
  const int64_t active = job->about->active, count = job->about->count;
  memset(job->offsets, 0, sizeof(int64_t) * (count + 1));
  for (int64_t index = 0; index < job->tokens * active; index++) job->offsets[job->chosen[index] + 1]++;
  for (int64_t expert = 0; expert < count; expert++) job->offsets[expert + 1] += job->offsets[expert];
  for (int64_t index = 0; index < job->tokens * active; index++) {
    const int64_t expert = job->chosen[index], place = job->offsets[expert]++;
    job->places[index] = place;
    job->sources[place] = index / active;
    job->owners[place] = expert;
  }
  memmove(job->offsets + 1, job->offsets, sizeof(int64_t) * count); /* Each was moved to the end of its rows. */
  job->offsets[0] = 0;
}

/* ---- what experts do */

static void gather(int64_t begin, int64_t end, void *context) {
  const Mixture *job = context;
  for (int64_t row = begin; row < end; row++)
    memcpy(job->rows + row * job->width, job->x + job->sources[job->begin + row] * job->width, sizeof(float) * job->width);
}

static void gate(int64_t begin, int64_t end, void *context) {
  const Mixture *job = context;
  const int64_t hides = job->about->hides;
  for (int64_t row = begin; row < end; row++) {
    float *both = job->both + row * 2 * hides, *hidden = job->hidden + row * hides;
    if (job->about->gate_up_bias)
      job->tiles->add(both, job->about->gate_up_bias + job->owners[job->begin + row] * 2 * hides, 2 * hides);
    memcpy(hidden, both, sizeof(float) * hides);
    job->tiles->gate(job->activation, hidden, both + hides, hides);
  }
}

static void add_up(int64_t begin, int64_t end, void *context) {
  const Mixture *job = context;
  const int64_t active = job->about->active, width = job->width;
  for (int64_t token = begin; token < end; token++)
    for (int64_t index = 0; index < active; index++) {
      const int64_t place = job->places[token * active + index];
      if (place < job->begin || place >= job->end) continue;
      float *found = job->rows + (place - job->begin) * width;
      if (job->about->down_bias) job->tiles->add(found, job->about->down_bias + job->owners[place] * width, width);
      job->tiles->add_share(job->out + token * width, found, job->weights[token * job->shares + index], width);
    }
}

/* The experts `first` to `last`, whose rows are together. */
static int32_t compute(Mixture *job, int64_t first, int64_t last, int32_t is_wide) {
  const Experts *about = job->about;
  job->begin = job->offsets[first];
  job->end = job->offsets[last];
  const int64_t rows = job->end - job->begin, *offsets = job->offsets + first;
  in_parallel(rows, ROWS_ALONE, gather, job);
  int32_t fault = multiply_groups(*job->tiles, about->gate_up + first * about->gate_up_parts, about->gate_up_parts,
                                  last - first, offsets, job->width, job->rows, job->both, is_wide);
  if (fault) return fault;
  in_parallel(rows, ROWS_ALONE, gate, job);
  fault = multiply_groups(*job->tiles, about->down + first * about->down_parts, about->down_parts, last - first, offsets,
                          about->hides, job->hidden, job->rows, is_wide);
  if (!fault) in_parallel(job->tokens, ROWS_ALONE, add_up, job);
  return fault;
}

/* As many experts at a time as have rows for some megabytes, so that these are memory that malloc has at hand. */
static int32_t compute_all(Mixture *job, int32_t is_wide) {
  const int64_t count = job->about->count, numbers = job->width + 3 * job->about->hides;
  int64_t most = smaller(TOGETHER_BYTES / (numbers * (int64_t)sizeof(float)), job->offsets[count]);
  for (int64_t expert = 0; expert < count; expert++) {
    const int64_t rows = job->offsets[expert + 1] - job->offsets[expert];
    most = rows > most ? rows : most;
  }
  void *room = malloc(sizeof(float) * most * numbers + LINE);
  if (!room) return NO_MEMORY;
  job->rows = line_of(room);
  job->both = job->rows + most * job->width;
  job->hidden = job->both + most * 2 * job->about->hides;
  int32_t fault = OK;
  for (int64_t first = 0, last; first < count && !fault; first = last) {
    for (last = first + 1; last < count && job->offsets[last + 1] - job->offsets[first] <= most;) last++;
    if (job->offsets[last] > job->offsets[first]) fault = compute(job, first, last, is_wide);
  }
  free(room);
  return fault;
}

int32_t mix_experts(const Tiles *tiles, const Experts *about, int64_t width, int32_t activation, int32_t is_wide,
                    int64_t tokens, const float *x, float *out) {
  if (about->active < 1 || about->active > about->count || about->hides % TILE || width % TILE) return NO_SHAPE;
  const int64_t rows = tokens * about->active;
  Mixture job = {.tiles = tiles, .about = about, .width = width, .tokens = tokens, .activation = activation, .x = x, .out = out,
                 .spread = padded(about->count), .shares = padded(about->active)};
  int64_t *room = malloc(sizeof(int64_t) * (4 * rows + about->count + 1) + sizeof(float) * tokens * (job.spread + job.shares));
  if (!room) return NO_MEMORY;
  job.chosen = room;
  job.places = job.chosen + rows;
  job.sources = job.places + rows;
  job.owners = job.sources + rows;
  job.offsets = job.owners + rows;
  job.scores = (float *)(job.offsets + about->count + 1);
  job.weights = job.scores + tokens * job.spread;
  in_parallel(tokens, ROWS_ALONE, route, &job);
  sort_by_expert(&job);
  memset(out, 0, sizeof(float) * tokens * width);
  const int32_t fault = compute_all(&job, is_wide);
  free(room);
  return fault;
}
