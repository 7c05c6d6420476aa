/* The lanes of AVX-512 with VNNI, for tiles.h and rows.h: 16 outputs a vector, 64 products an instruction. */
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))
#define W 16
#define VI __m512i
#define VF __m512
#define LOAD(p) _mm512_loadu_si512(p)
#define SHR(v, n) _mm512_srli_epi16(v, n)
#define SHL(v, n) _mm512_slli_epi16(v, n)
#define AND(v, byte) _mm512_and_si512(v, _mm512_set1_epi8(byte))
#define OR(a, b) _mm512_or_si512(a, b)
#define LOOKUP(v, table) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(table))), v)
#define DOT(sum, codes, x, wide) _mm512_dpbusd_epi32(sum, codes, x)
#define TAKEN(about) 0
#define LANE_BYTE(v, j) _mm512_and_si512(_mm512_srli_epi32(v, 8 * (j)), _mm512_set1_epi32(255))
#define SET_I(i) _mm512_set1_epi32(i)
#define ADD_I(a, b) _mm512_add_epi32(a, b)
#define TO_F(v) _mm512_cvtepi32_ps(v)
#define SET_F(f) _mm512_set1_ps(f)
#define ADD_F(a, b) _mm512_add_ps(a, b)
#define SUB_F(a, b) _mm512_sub_ps(a, b)
#define MUL_F(a, b) _mm512_mul_ps(a, b)
#define FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#define IS_FUSED 1
#define SUM_F(v) _mm512_reduce_add_ps(v)
#define STORE_SUMS(p, a, b, c, d) store_four_sums(p, a, b, c, d)
#define STORE_F(p, v) _mm512_storeu_ps(p, v)
#define LOAD_F16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define SAME_F16(p) _mm512_cvtph_ps(_mm256_set1_epi16(*(const short *)(p)))
#define LOAD_PAIRS(p) LOAD(p)
#define FROM_E4M3(v, j) from_e4m3(v, j)
#define PICK(v, j, table) _mm512_permutexvar_ps(_mm512_srli_epi32(v, 8 * (j)), _mm512_loadu_ps(table))
#define LOAD_F32(p) _mm512_loadu_ps(p)
#define LOAD_U8(p) _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define LOAD_I8(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define LOAD_E8M0(p) power_of(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(p))))
#define LOAD_BF16(p) \
  _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p))), 16))
#define MAX_F(a, b) _mm512_max_ps(a, b)
#define MIN_F(a, b) _mm512_min_ps(a, b)
#define DIV_F(a, b) _mm512_div_ps(a, b)
#define SQRT_F(v) _mm512_sqrt_ps(v)
#define AS_I(v) _mm512_castps_si512(v)
#define AS_F(v) _mm512_castsi512_ps(v)
#define SHL_I(v, n) _mm512_slli_epi32(v, n)
#define HIGH_16(v) _mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000))
#define PEAK_F(v) _mm512_reduce_max_ps(v)
#define KEEP_I8(p, v) _mm_storeu_si128((__m128i *)(p), _mm512_cvtepi32_epi8(v))
#define KEEP_F16(p, v) _mm256_storeu_si256((__m256i *)(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT))

/* Halves are added as in `SUM_F`, those of all four at once. */
TARGET static inline void store_four_sums(float *to, __m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
  const __m512i places = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(places, all)));
}

TARGET static inline __m512 power_of(__m512i exponent) {
  /* Half of 2^(e - 127) as a float's bits; the two lowest are subnormal. */
  const __m512i one = _mm512_set1_epi32(1);
  __m512i bits = _mm512_slli_epi32(_mm512_max_epi32(_mm512_sub_epi32(exponent, one), _mm512_setzero_si512()), 23);
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(exponent, _mm512_setzero_si512()), _mm512_set1_epi32(0x200000));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(exponent, one), _mm512_set1_epi32(0x400000));
  return _mm512_castsi512_ps(bits);
}

/* By way of float16, whose exponent has a bit more. */
TARGET static inline __m512 from_e4m3(__m512i codes, const int j) {
  const __m512i nan = _mm512_set1_epi16(0x3f80);
  __m512i halves = _mm512_srai_epi16(j % 2 ? codes : _mm512_slli_epi16(codes, 8), 1);
  halves = _mm512_and_si512(halves, _mm512_set1_epi16((short)0xbf80));
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(halves, nan), nan);
  halves = _mm512_mask_mov_epi16(halves, is_nan, _mm512_set1_epi16(0x7e00));
  return _mm512_cvtph_ps(j / 2 ? _mm512_extracti64x4_epi64(halves, 1) : _mm512_castsi512_si256(halves));
}
