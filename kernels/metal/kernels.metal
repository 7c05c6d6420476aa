// Kernels for the GPUs of Apple: products of few rows with packed matrices, attention of single
// tokens over pages, and norms and rotary positions of heads.
//
// This is the part of Metal that is C as well, but for the attribute of `place`, so that the tests
// compile the same text for processors (tests/support/metal_on_cpu.py). What a kernel is compiled
// for comes as macros in front (`shaders.py`): T is the number of activations, S that of scales.
// Scalars are pointers into `constant` memory. Groups of threads are 32 wide, as simdgroups are, so
// that place.x is the lane. All arithmetic is float32.

#define LANES 32

#ifdef PACKING

#define Q4_0 1
#define Q8_0 2
#define Q4_K 3
#define Q6_K 4
#define INT4 5
#define INT8 6
#define OUTPUTS 4  // Of a simdgroup, which share the activations that it reads.
#define RUN 8      // Inputs of a lane at a time, of one block and one scale.

static inline float half_at(device const uchar* place) {
    return (float)*(device const half*)place;
}

// The weights of inputs k to k + RUN - 1 of a row. scales, zeros: of the row, of codes.
static inline void weights(device const uchar* row, device const S* scales,
                           device const uchar* zeros, long k, long group, thread float* found) {
#if PACKING == Q4_0
    device const uchar* block = row + k / 32 * 18;
    int at = (int)(k % 32);
    float scale = half_at(block);
    for (int i = 0; i < RUN; i++) {
        uchar pair = block[2 + at % 16 + i];
        found[i] = scale * (float)((at < 16 ? pair & 15 : pair >> 4) - 8);
    }
#elif PACKING == Q8_0
    device const uchar* block = row + k / 32 * 34;
    float scale = half_at(block);
    for (int i = 0; i < RUN; i++) {
        int code = block[2 + k % 32 + i];
        found[i] = scale * (float)(code < 128 ? code : code - 256);
    }
#elif PACKING == Q4_K
    device const uchar* block = row + k / 256 * 144;
    device const uchar* six = block + 4;
    int at = (int)(k % 256), sub = at / 32, scale, least;
    if (sub < 4) {
        scale = six[sub] & 63;
        least = six[sub + 4] & 63;
    } else {
        scale = (six[sub + 4] & 15) | (six[sub - 4] >> 6 << 4);
        least = (six[sub + 4] >> 4) | (six[sub] >> 6 << 4);
    }
    float factor = half_at(block) * (float)scale, below = half_at(block + 2) * (float)least;
    for (int i = 0; i < RUN; i++) {
        uchar pair = block[16 + at / 64 * 32 + at % 32 + i];
        found[i] = factor * (float)(sub % 2 ? pair >> 4 : pair & 15) - below;
    }
#elif PACKING == Q6_K
    device const uchar* block = row + k / 256 * 210;
    int at = (int)(k % 256), part = at / 128, quarter = at % 128 / 32, inner = at % 32;
    int scale = block[192 + at / 16];
    float factor = half_at(block + 208) * (float)(scale < 128 ? scale : scale - 256);
    for (int i = 0; i < RUN; i++) {
        int pair = block[64 * part + inner + 32 * (quarter % 2) + i];
        int high = block[128 + 32 * part + inner + i] >> 2 * quarter & 3;
        found[i] = factor * (float)(((quarter < 2 ? pair & 15 : pair >> 4) | high << 4) - 32);
    }
#else
#if PACKING == INT4
    int zero = 8;
#else
    int zero = 128;
#endif
#ifdef HAS_ZEROS
    zero = zeros[k / group];
#endif
    float scale = (float)scales[k / group];
    for (int i = 0; i < RUN; i++) {
#if PACKING == INT4
        uchar pair = row[(k + i) / 2];
        int code = i % 2 ? pair >> 4 : pair & 15;
#else
        int code = row[k + i];
#endif
        found[i] = scale * (float)(code - zero);
    }
#endif
}

// out[rows, N] = x[rows, K] · weightsᵀ, rows x_stride and out_stride apart. Threads are (32, N / 4,
// rows). codes: [N, row_bytes]; scales, zeros: [N, K / group], of codes.
kernel void multiply(device const T* x, device const uchar* codes, device const S* scales,
                     device const uchar* zeros, device T* out, constant long* N, constant long* K,
                     constant long* x_stride, constant long* out_stride, constant long* row_bytes,
                     constant long* group, uint3 place [[thread_position_in_grid]]) {
    long first = (long)place.y * OUTPUTS, groups = *K / *group;
    device const T* row = x + (long)place.z * *x_stride;
    float total[OUTPUTS] = {0};
    for (long k = (long)place.x * RUN; k < *K; k += LANES * RUN) {
        for (int at = 0; at < OUTPUTS && first + at < *N; at++) {
            long output = first + at;
            float weight[RUN];
            weights(codes + output * *row_bytes, scales + output * groups, zeros + output * groups,
                    k, *group, weight);
            for (int i = 0; i < RUN; i++) total[at] += weight[i] * (float)row[k + i];
        }
    }
    for (int at = 0; at < OUTPUTS; at++) {
        float sum = simd_sum(total[at]);
        if (place.x == 0 && first + at < *N)
            out[(long)place.z * *out_stride + first + at] = (T)sum;
    }
}

#endif
#ifdef PARTS

#define EACH ((SIZE + LANES - 1) / LANES)  // Numbers of a head that a lane has.

// Attention of single tokens. Threads are (32, PARTS · heads, tokens), a group of 32 · PARTS for
// each head: the simdgroups of a group take its keys in turn, and what they find is put together
// in order. keys, values: pages by the same strides; tables, begins, ends as of
// `kernels/cuda/attention.py`.
kernel void attend(device const T* query, device const T* keys, device const T* values,
                   device const int* tables, device const int* begins, device const int* ends,
                   device const float* sinks, device T* out, constant float* scale,
                   constant float* softcap, constant long* heads, constant long* shared,
                   constant long* query_stride, constant long* page, constant long* page_stride,
                   constant long* token_stride, constant long* head_stride,
                   constant long* table_stride, uint3 place [[thread_position_in_grid]]) {
    threadgroup float peaks[PARTS];
    threadgroup float totals[PARTS];
    threadgroup float sums[PARTS * SIZE];
    int lane = (int)place.x, part = (int)place.y % PARTS;
    long head = (long)place.y / PARTS, token = (long)place.z;
    float asked[EACH], found[EACH];
    for (int i = 0; i < EACH; i++) {
        int at = lane + LANES * i;
        asked[i] = at < SIZE ? (float)query[token * *query_stride + head * SIZE + at] : 0.0f;
        found[i] = 0.0f;
    }
    float peak = -1e30f, total = 0.0f;
    for (long key = begins[token] + part; key < ends[token]; key += PARTS) {
        long offset = (long)tables[token * *table_stride + key / *page] * *page_stride;
        offset += key % *page * *token_stride + head / *shared * *head_stride;
        float product = 0.0f;
        for (int i = 0; i < EACH; i++) {
            int at = lane + LANES * i;
            if (at < SIZE) product += asked[i] * (float)keys[offset + at];
        }
        float score = simd_sum(product) * *scale;
        if (*softcap != 0.0f) score = *softcap * tanh(clamp(score / *softcap, -15.0f, 15.0f));
        float higher = fmax(peak, score);
        float before = exp(peak - higher), weight = exp(score - higher);
        total = total * before + weight;
        for (int i = 0; i < EACH; i++) {
            int at = lane + LANES * i;
            if (at < SIZE) found[i] = found[i] * before + weight * (float)values[offset + at];
        }
        peak = higher;
    }
    for (int i = 0; i < EACH; i++) {
        int at = lane + LANES * i;
        if (at < SIZE) sums[part * SIZE + at] = found[i];
    }
    if (lane == 0) {
        peaks[part] = peak;
        totals[part] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (part != 0) return;
    total = 0.0f;
#ifdef HAS_SINKS
    peak = fmax(peak, sinks[head]);
#endif
    for (int one = 1; one < PARTS; one++) peak = fmax(peak, peaks[one]);
#ifdef HAS_SINKS
    total = exp(sinks[head] - peak);
#endif
    for (int i = 0; i < EACH; i++) found[i] = 0.0f;
    for (int one = 0; one < PARTS; one++) {
        float weight = exp(peaks[one] - peak);
        total += totals[one] * weight;
        for (int i = 0; i < EACH; i++) {
            int at = lane + LANES * i;
            if (at < SIZE) found[i] += sums[one * SIZE + at] * weight;
        }
    }
    for (int i = 0; i < EACH; i++) {
        int at = lane + LANES * i;
        if (at < SIZE) out[(token * *heads + head) * SIZE + at] = (T)(found[i] / total);
    }
}

#endif
#ifdef TURNED

// Norm and rotary positions of heads, in place. Threads are (32, heads, tokens), a group of 32 for
// each head. heads: tokens `stride` apart, the first `queries` of them queries, the others keys;
// weights: [SIZE]; cosine, sine: [tokens, TURNED], of which the second halves count.
kernel void finish_heads(device T* heads, device const float* query_weight,
                         device const float* key_weight, device const float* cosine,
                         device const float* sine, constant float* eps, constant long* stride,
                         constant long* queries, uint3 place [[thread_position_in_grid]]) {
    device T* head = heads + (long)place.z * *stride + (long)place.y * SIZE;
    int lane = (int)place.x, middle = TURNED / 2;
    float factor = 1.0f;
#ifdef HAS_NORMS
    device const float* weight = (long)place.y < *queries ? query_weight : key_weight;
    float squares = 0.0f;
    for (int at = lane; at < SIZE; at += LANES) squares += (float)head[at] * (float)head[at];
    // Waits for all lanes, which have read then what is written below.
    factor = 1.0f / sqrt(simd_sum(squares) / SIZE + *eps);
#define NORMED(at) ((float)head[at] * factor * weight[at])
#else
#define NORMED(at) ((float)head[at] * factor)
#endif
    for (int at = lane; at < middle; at += LANES) {
        float first = NORMED(at), second = NORMED(middle + at);
        float c = cosine[(long)place.z * TURNED + middle + at];
        float s = sine[(long)place.z * TURNED + middle + at];
        head[at] = (T)(first * c - second * s);
        head[middle + at] = (T)(second * c + first * s);
    }
    for (int at = TURNED + lane; at < SIZE; at += LANES) head[at] = (T)NORMED(at);
}

#endif
