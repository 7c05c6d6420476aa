/* AVX2 with FMA and F16C: 8 outputs a vector. VPMADDUBSW adds two products in 16 bits, which codes of
 * up to 6 bits cannot fill; wider ones are split into magnitudes and signs.
 */
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#include <stdint.h>

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define W 8
#define VI __m256i
#define VF __m256
#define LOAD(p) _mm256_loadu_si256((const __m256i *)(p))
#define SHR(v, n) _mm256_srli_epi16(v, n)
#define SHL(v, n) _mm256_slli_epi16(v, n)
#define AND(v, byte) _mm256_and_si256(v, _mm256_set1_epi8(byte))
#define OR(a, b) _mm256_or_si256(a, b)
#define LOOKUP(v, table) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(table))), v)
#define DOT(sum, codes, x, wide) dot_bytes(sum, codes, x, wide)
#define TAKEN(about) ((about).zero == 128 ? 128 : 0)
#define LANE_BYTE(v, j) _mm256_and_si256(_mm256_srli_epi32(v, 8 * (j)), _mm256_set1_epi32(255))
#define SET_I(i) _mm256_set1_epi32(i)
#define ADD_I(a, b) _mm256_add_epi32(a, b)
#define TO_F(v) _mm256_cvtepi32_ps(v)
#define SET_F(f) _mm256_set1_ps(f)
#define ADD_F(a, b) _mm256_add_ps(a, b)
#define SUB_F(a, b) _mm256_sub_ps(a, b)
#define MUL_F(a, b) _mm256_mul_ps(a, b)
#define FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#define IS_FUSED 1
#define SUM_F(v) sum_of(v)
#define STORE_SUMS(p, a, b, c, d) ((p)[0] = SUM_F(a), (p)[1] = SUM_F(b), (p)[2] = SUM_F(c), (p)[3] = SUM_F(d))
#define STORE_F(p, v) _mm256_storeu_ps(p, v)
#define LOAD_F16(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
#define SAME_F16(p) _mm256_cvtph_ps(_mm_set1_epi16(*(const short *)(p)))
#define LOAD_PAIRS(p) _mm256_set_m128i(_mm_loadu_si128((const __m128i *)((p) + 32)), _mm_loadu_si128((const __m128i *)(p)))
#define FROM_E4M3(v, j) from_e4m3(v, j)
#define PICK(v, j, table) pick(_mm256_srli_epi32(v, 8 * (j)), table)
#define LOAD_F32(p) _mm256_loadu_ps((const float *)(p))
#define LOAD_U8(p) _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define LOAD_I8(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define LOAD_E8M0(p) power_of(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p))))
#define LOAD_BF16(p) \
  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p))), 16))
#define MAX_F(a, b) _mm256_max_ps(a, b)
#define MIN_F(a, b) _mm256_min_ps(a, b)
#define DIV_F(a, b) _mm256_div_ps(a, b)
#define SQRT_F(v) _mm256_sqrt_ps(v)
#define AS_I(v) _mm256_castps_si256(v)
#define AS_F(v) _mm256_castsi256_ps(v)
#define SHL_I(v, n) _mm256_slli_epi32(v, n)
#define HIGH_16(v) _mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000))
#define PEAK_F(v) peak_of(v)
#define KEEP_I8(p, v) keep_i8(p, v)
#define KEEP_F16(p, v) _mm_storeu_si128((__m128i *)(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))
#define TILES tiles_avx2

TARGET static inline __m256i dot_bytes(__m256i sum, __m256i codes, __m256i x, const int wide) {
  if (wide) {
    const __m256i signs = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    codes = _mm256_abs_epi8(signs);
    x = _mm256_sign_epi8(x, signs);
  }
  const __m256i pairs = _mm256_maddubs_epi16(codes, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

TARGET static inline void keep_i8(int8_t *to, __m256i lanes) {
  const __m256i lowest = _mm256_shuffle_epi8(lanes, _mm256_set1_epi32(0x0c080400));
  _mm_storel_epi64((__m128i *)to, _mm_unpacklo_epi32(_mm256_castsi256_si128(lowest), _mm256_extracti128_si256(lowest, 1)));
}

TARGET static inline __m256 power_of(__m256i exponent) {
  /* Half of 2^(e - 127) as a float's bits; the two lowest are subnormal. */
  const __m256i one = _mm256_set1_epi32(1), none = _mm256_setzero_si256();
  __m256i bits = _mm256_slli_epi32(_mm256_max_epi32(_mm256_sub_epi32(exponent, one), none), 23);
  bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x200000), _mm256_cmpeq_epi32(exponent, none));
  bits = _mm256_blendv_epi8(bits, _mm256_set1_epi32(0x400000), _mm256_cmpeq_epi32(exponent, one));
  return _mm256_castsi256_ps(bits);
}

TARGET static inline float sum_of(__m256 value) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps(value, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

/* By way of float16, whose exponent has a bit more. */
TARGET static inline __m256 from_e4m3(__m256i codes, const int j) {
  const __m256i nan = _mm256_set1_epi16(0x3f80);
  __m256i halves = _mm256_srai_epi16(j % 2 ? codes : _mm256_slli_epi16(codes, 8), 1);
  halves = _mm256_and_si256(halves, _mm256_set1_epi16((short)0xbf80));
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(halves, nan), nan);
  halves = _mm256_or_si256(halves, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x4000)));
  return _mm256_cvtph_ps(j / 2 ? _mm256_extracti128_si256(halves, 1) : _mm256_castsi256_si128(halves));
}

TARGET static inline __m256 pick(__m256i index, const float *table) {
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

TARGET static inline float peak_of(__m256 v) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

#include "tiles.h"
#endif
