/* What a layer does with rows of float32 between its products, written once for the lanes of a file that
 * includes this (see tiles.h for those that products use). Also needed:
 *
 *   MAX_F MIN_F DIV_F SQRT_F                 on W floats
 *   SHL_I(v, n)                              shifts in 32 bits
 *   PEAK_F(v)                                of the lanes of a vector
 *   KEEP_F16(p, v)                           W floats as float16
 *   SAME_F16(p)                              a float16, in all lanes
 *
 * Rows have a multiple of 16 numbers. A row's result does not depend on other rows.
 */

/* out = x / sqrt(mean(x²) + eps) · weight; `out` may be `x`. */
TARGET static void norm_row(const float *x, const float *weight, float eps, int64_t size, float *out) {
  VF squares = SET_F(0.0f);
  for (int64_t i = 0; i < size; i += W) squares = FMA(LOAD_F32(x + i), LOAD_F32(x + i), squares);
  const VF mean = SET_F(SUM_F(squares) / (float)size + eps);
  const VF factor = DIV_F(SET_F(1.0f), SQRT_F(mean));
  for (int64_t i = 0; i < size; i += W) STORE_F(out + i, MUL_F(MUL_F(LOAD_F32(x + i), factor), LOAD_F32(weight + i)));
}

/* gate = activation(gate) · up. That of gpt-oss is clamped: x · sigmoid(1.702 x) · (up + 1). */
TARGET static void gate_row(int32_t activation, float *gate, const float *up, int64_t size) {
  if (activation == SWIGLU_CLAMPED) {
    const VF limit = SET_F(7.0f), least = SET_F(-7.0f);
    for (int64_t i = 0; i < size; i += W) {
      const VF x = MIN_F(LOAD_F32(gate + i), limit), other = MAX_F(MIN_F(LOAD_F32(up + i), limit), least);
      STORE_F(gate + i, MUL_F(MUL_F(x, sigmoid_f(MUL_F(x, SET_F(1.702f)))), ADD_F(other, SET_F(1.0f))));
    }
    return;
  }
  for (int64_t i = 0; i < size; i += W) {
    const VF x = LOAD_F32(gate + i);
    VF inner = x;
    if (activation == GELU_TANH) { /* x (1 + tanh y) / 2 is x · sigmoid(2 y). */
      inner = FMA(MUL_F(MUL_F(x, x), x), SET_F(0.044715f), x);
      inner = MUL_F(inner, SET_F(1.5957691216f)); /* 2 sqrt(2 / pi) */
    }
    STORE_F(gate + i, MUL_F(MUL_F(x, sigmoid_f(inner)), LOAD_F32(up + i)));
  }
}

/* x += y */
TARGET static void add_row(float *x, const float *y, int64_t size) {
  for (int64_t i = 0; i < size; i += W) STORE_F(x + i, ADD_F(LOAD_F32(x + i), LOAD_F32(y + i)));
}

/* x += share · y */
TARGET static void add_share_of_row(float *x, const float *y, float share, int64_t size) {
  for (int64_t i = 0; i < size; i += W) STORE_F(x + i, FMA(LOAD_F32(y + i), SET_F(share), LOAD_F32(x + i)));
}

/* x = e^(x - peak). Returns their sum. */
TARGET static float weigh_row(float *x, float peak, int64_t size) {
  VF sum = SET_F(0.0f);
  for (int64_t i = 0; i < size; i += W) {
    const VF weight = exp_f(SUB_F(LOAD_F32(x + i), SET_F(peak)));
    STORE_F(x + i, weight);
    sum = ADD_F(sum, weight);
  }
  return SUM_F(sum);
}

/* A run of Q8_0: codes, rounded to the nearest, ties to even, and their scale. */
TARGET static void keep_run(const float *numbers, int8_t *codes, uint8_t *scale) {
  float most = 0.0f;
  for (int i = 0; i < RUN; i++) most = numbers[i] > most ? numbers[i] : -numbers[i] > most ? -numbers[i] : most;
  const float unit = most / 127.0f, inverse = unit > 0.0f ? 1.0f / unit : 0.0f;
  for (int i = 0; i < RUN; i++) codes[i] = (int8_t)(numbers[i] * inverse + 12582912.0f - 12582912.0f); /* 1.5 * 2^23 */
  uint8_t halves[2 * W];
  KEEP_F16(halves, SET_F(unit));
  __builtin_memcpy(scale, halves, 2);
}

/* Float32 as what keys and values are kept in. What is kept is finite: NaN becomes 0. */
TARGET static void keep_row(int32_t type, const float *from, uint8_t *to, int64_t size) {
  const float most = type == KV_F32 ? 3.40282347e38f : 65504.0f;
  float finite[RUN];
  for (int64_t at = 0; at < size; at += RUN) {
    const int count = size - at < RUN ? (int)(size - at) : RUN;
    for (int i = 0; i < count; i++) {
      const float value = from[at + i] == from[at + i] ? from[at + i] : 0.0f;
      finite[i] = value > most ? most : value < -most ? -most : value;
    }
    if (type == KV_Q8_0) keep_run(finite, (int8_t *)to + at, to + size + at / RUN * 2);
    for (int i = 0; type == KV_F32 && i < count; i += W) STORE_F((float *)to + at + i, LOAD_F32(finite + i));
    for (int i = 0; type == KV_F16 && i < count; i += W) KEEP_F16(to + 2 * (at + i), LOAD_F32(finite + i));
  }
}

HERE VF kept(const int type, const uint8_t *row, int64_t size, int64_t i) {
  if (type == KV_F32) return LOAD_F32((const float *)row + i);
  if (type == KV_F16) return LOAD_F16(row + 2 * i);
  if (type == ROW_BF16) return LOAD_BF16(row + 2 * i);
  return MUL_F(LOAD_I8(row + i), SAME_F16(row + size + i / RUN * 2));
}

/* Scores of `keys` keys, which are neighbours, for `shared` queries [shared, size]: out[query * STRIDE + key]. */
HERE void score(const int type, const int shared, const int keys, const float *query, const uint8_t *key, int64_t size,
                float *out) {
  VF sum[4][4];
  UNROLL for (int k = 0; k < keys; k++) UNROLL for (int q = 0; q < shared; q++) sum[k][q] = SET_F(0.0f);
  const int64_t row = kv_row_bytes(type, size);
  for (int64_t i = 0; i < size; i += W) {
    VF part[4];
    UNROLL for (int k = 0; k < keys; k++) part[k] = kept(type, key + k * row, size, i);
    UNROLL for (int q = 0; q < shared; q++) {
      const VF wanted = LOAD_F32(query + q * size + i);
      UNROLL for (int k = 0; k < keys; k++) sum[k][q] = FMA(wanted, part[k], sum[k][q]);
    }
  }
  if (keys == 4) {
    UNROLL for (int q = 0; q < shared; q++) STORE_SUMS(out + q * STRIDE, sum[0][q], sum[1][q], sum[2][q], sum[3][q]);
  } else {
    UNROLL for (int k = 0; k < keys; k++) UNROLL for (int q = 0; q < shared; q++) out[q * STRIDE + k] = SUM_F(sum[k][q]);
  }
}

HERE void score_rows_of(const int type, const float *x, int64_t rows, const uint8_t *weight, int64_t count, int64_t size,
                        float *out, int64_t stride) {
  const int64_t row = kv_row_bytes(type, size);
  float found[4 * STRIDE];
#define SOME(n, keys)                                                                    \
  for (; count - at >= keys; at += keys) {                                               \
    score(type, n, keys, x, weight + at * row, size, found);                             \
    UNROLL for (int q = 0; q < n; q++)                                                   \
      __builtin_memcpy(out + q * stride + at, found + q * STRIDE, keys * sizeof(float)); \
  }
#define ROWS(n)                                                    \
  for (; rows >= n; rows -= n, x += n * size, out += n * stride) { \
    int64_t at = 0;                                                \
    SOME(n, 4) SOME(n, 1)                                          \
  }
  ROWS(4) ROWS(2) ROWS(1)
#undef ROWS
#undef SOME
}

/* out[row * stride + n] = x[row] · weight[n], of `count` rows of weights: of KV_F32, KV_F16 or ROW_BF16. */
TARGET static void score_rows(int32_t type, const float *x, int64_t rows, const uint8_t *weight, int64_t count, int64_t size,
                              float *out, int64_t stride) {
  switch (type) {
    case KV_F32: score_rows_of(KV_F32, x, rows, weight, count, size, out, stride); break;
    case KV_F16: score_rows_of(KV_F16, x, rows, weight, count, size, out, stride); break;
    case ROW_BF16: score_rows_of(ROW_BF16, x, rows, weight, count, size, out, stride); break;
  }
}

/* Queries that take the same value from memory, or from half precision: AVX-512 has registers for the sums of 12. */
enum { MOST_QUERIES = W > 8 ? 12 : 4 };

/* out[shared, size] += weights[query * STRIDE + key] · values, for `keys` values, which are neighbours. */
HERE void gather(const int type, const int shared, int64_t keys, const float *weights, const uint8_t *value, int64_t size,
                 float *out) {
  const int64_t row = kv_row_bytes(type, size);
  for (int64_t i = 0; i < size; i += 16) {
    VF sum[MOST_QUERIES][16 / W];
    UNROLL for (int q = 0; q < shared; q++)
      UNROLL for (int v = 0; v < 16 / W; v++) sum[q][v] = LOAD_F32(out + q * size + i + v * W);
    for (int64_t k = 0; k < keys; k++) {
      VF part[16 / W];
      UNROLL for (int v = 0; v < 16 / W; v++) part[v] = kept(type, value + k * row, size, i + v * W);
      UNROLL for (int q = 0; q < shared; q++) {
        const VF weight = SET_F(weights[q * STRIDE + k]);
        UNROLL for (int v = 0; v < 16 / W; v++) sum[q][v] = FMA(weight, part[v], sum[q][v]);
      }
    }
    UNROLL for (int q = 0; q < shared; q++)
      UNROLL for (int v = 0; v < 16 / W; v++) STORE_F(out + q * size + i + v * W, sum[q][v]);
  }
}

/* Ask for keys or values of the block that comes next, of which a processor knows nothing: blocks lie in any order. */
HERE void look_at_block(const uint8_t *place, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += LINE) __builtin_prefetch(place + i);
}

/* Scores to weights e^(score - peak), in place: their peak, and their sum. There is place for a vector more. */
HERE void weigh(const Heads *about, int64_t keys, float *scores, float *peak, float *total) {
  for (int64_t k = keys; k % W; k++) scores[k] = scores[0];
  VF most = SET_F(scores[0] * about->scale), sum = SET_F(0.0f);
  if (about->softcap != 0.0f) most = SET_F(-about->softcap);
  for (int64_t k = 0; k < keys; k += W) {
    VF one = MUL_F(LOAD_F32(scores + k), SET_F(about->scale));
    if (about->softcap != 0.0f) { /* tanh x is 2 sigmoid(2 x) - 1. */
      one = sigmoid_f(MUL_F(one, SET_F(2.0f / about->softcap)));
      one = MUL_F(FMA(one, SET_F(2.0f), SET_F(-1.0f)), SET_F(about->softcap));
    }
    STORE_F(scores + k, one);
    most = MAX_F(one, most);
  }
  *peak = PEAK_F(most);
  for (int64_t k = 0; k < keys; k += W) STORE_F(scores + k, exp_f(SUB_F(LOAD_F32(scores + k), SET_F(*peak))));
  for (int64_t k = keys; k % W; k++) scores[k] = 0.0f;
  for (int64_t k = 0; k < keys; k += W) sum = ADD_F(sum, LOAD_F32(scores + k));
  *total = SUM_F(sum);
}

/* Scores of `count` keys, which are neighbours, as `score`. */
HERE void score_all(const int type, const int shared, int64_t count, const float *query, const uint8_t *key, int64_t size,
                    float *out) {
  const int64_t row = kv_row_bytes(type, size);
  for (; count >= 4; count -= 4, key += 4 * row, out += 4) score(type, shared, 4, query, key, size, out);
  for (; count; count--, key += row, out++) score(type, shared, 1, query, key, size, out);
}

HERE void attend_some(const int shared, const Heads *about, const Span *span, const float *query, float *out, float *peaks,
                      float *totals) {
  const int64_t size = about->head_dim;
  const int some = shared < 4 ? shared : 4; /* whose scores are computed together */
  float scores[MOST_QUERIES * STRIDE];
  for (int is_second = 0; is_second < 2; is_second++) {
    const int32_t type = is_second ? about->value_type : about->key_type;
    const int64_t row = kv_row_bytes(type, size);
    const uint8_t *rows = is_second ? span->values : span->keys;
    for (int64_t at = span->begin, end; at < span->end; at = end) {
      int64_t cell = at, most = span->known < span->end ? span->known : span->end;
      if (at >= span->known) cell = span->path[at - span->known], most = at + 1;
      const int64_t place = cell % about->page;
      end = at - place + about->page < most ? at - place + about->page : most;
      const int64_t start = ((int64_t)span->table[cell / about->page] * about->page + place) * row;
      float *to = scores + (at - span->begin);
      if (end < span->end)
        look_at_block(rows + (int64_t)span->table[end / about->page] * about->page * row, about->page * row);
#define OF(kind)                                                                              \
  case kind:                                                                                  \
    if (is_second) gather(kind, shared, end - at, to, rows + start, size, out);               \
    for (int q = 0; !is_second && q < shared; q += some)                                      \
      score_all(kind, some, end - at, query + q * size, rows + start, size, to + q * STRIDE); \
    break;
      switch (type) { OF(KV_F16) OF(KV_F32) OF(KV_Q8_0) }
#undef OF
    }
    if (is_second) break;
    for (int q = 0; q < shared; q++) {
      weigh(about, span->end - span->begin, scores + q * STRIDE, peaks + q, totals + q);
      for (int64_t i = 0; i < size; i += W) STORE_F(out + q * size + i, SET_F(0.0f));
    }
  }
}

/* Of `shared` queries [shared, head_dim] over a span of keys: the sums of values by e^(score - peak), in `out` of the same
 * shape, and the peak and the sum of these weights of each.
 */
TARGET static void attend_span(const Heads *about, const Span *span, const float *query, int64_t shared, float *out,
                               float *peaks, float *totals) {
  const int64_t size = about->head_dim;
#define SOME(n)                                                                                   \
  for (; shared >= n; shared -= n, query += n * size, out += n * size, peaks += n, totals += n) { \
    attend_some(n, about, span, query, out, peaks, totals);                                       \
  }
  if (MOST_QUERIES > 4) { SOME(12) SOME(8) }
  SOME(4) SOME(3) SOME(2) SOME(1)
#undef SOME
}

HERE float exp_of(float x) {
  float found[W];
  STORE_F(found, exp_f(SET_F(x)));
  return found[0];
}

/* out[size] of `count` spans: their parts, weighed so that all have one peak, by the sum of all weights.
 *
 *   parts     of the query in the first span; of the next one at `stride` numbers from there
 *   peaks     likewise, at `step` numbers; so are totals
 *   sink      a score without a value, or NULL
 */
TARGET static void join_spans(const float *parts, int64_t stride, const float *peaks, const float *totals, int64_t step,
                              int64_t count, const float *sink, int64_t size, float *out) {
  float peak = peaks[0], total = 0.0f;
  for (int64_t span = 1; span < count; span++) peak = peaks[span * step] > peak ? peaks[span * step] : peak;
  if (sink && *sink > peak) peak = *sink;
  for (int64_t i = 0; i < size; i += W) STORE_F(out + i, SET_F(0.0f));
  for (int64_t span = 0; span < count; span++) {
    const float factor = exp_of(peaks[span * step] - peak);
    total += totals[span * step] * factor;
    for (int64_t i = 0; i < size; i += W)
      STORE_F(out + i, FMA(LOAD_F32(parts + span * stride + i), SET_F(factor), LOAD_F32(out + i)));
  }
  if (sink) total += exp_of(*sink - peak);
  const VF share = SET_F(1.0f / total);
  for (int64_t i = 0; i < size; i += W) STORE_F(out + i, MUL_F(LOAD_F32(out + i), share));
}
