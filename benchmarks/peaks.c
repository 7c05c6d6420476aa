/* What a processor computes at most: loops over registers alone, called from peaks.py. Each returns the multiply-adds that
 * it made, or 0 where the processor lacks the instruction.
 */
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CHAINS = 12, TURNS = 1 << 20, ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };
#define UNROLL _Pragma("GCC unroll 16")

/* `CHAINS` independent sums of `type`, each with `step` added in every turn. The empty assembly keeps sums in registers. */
#define LOOP(name, features, type, zero, step, products)                                 \
  __attribute__((target(features))) int64_t name(void) {                                 \
    type sum[CHAINS], a = zero, b = zero;                                                \
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = zero;                               \
    __asm__ volatile("" : "+x"(a), "+x"(b));                                             \
    for (int turn = 0; turn < TURNS; turn++) {                                           \
      UNROLL for (int i = 0; i < CHAINS; i++) { step; }                                  \
      UNROLL for (int i = 0; i < CHAINS; i++) __asm__ volatile("" : "+x"(sum[i]));       \
    }                                                                                    \
    return (int64_t)TURNS * CHAINS * products;                                           \
  }
#define WIDE_LOOP(name, features, type, zero, step, products)                            \
  __attribute__((target(features))) int64_t name(void) {                                 \
    type sum[CHAINS], a = zero, b = zero;                                                \
    UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = zero;                               \
    __asm__ volatile("" : "+v"(a), "+v"(b));                                             \
    for (int turn = 0; turn < TURNS; turn++) {                                           \
      UNROLL for (int i = 0; i < CHAINS; i++) { step; }                                  \
      UNROLL for (int i = 0; i < CHAINS; i++) __asm__ volatile("" : "+v"(sum[i]));       \
    }                                                                                    \
    return (int64_t)TURNS * CHAINS * products;                                           \
  }

LOOP(avx2_fma, "avx2,fma", __m256, _mm256_setzero_ps(), sum[i] = _mm256_fmadd_ps(a, b, sum[i]), 8)
/* Without VNNI 32 products of bytes take three instructions. */
LOOP(avx2_maddubs, "avx2", __m256i, _mm256_setzero_si256(),
     sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, sum[i]), b)), 32)
WIDE_LOOP(avx512_fma, "avx512f", __m512, _mm512_setzero_ps(), sum[i] = _mm512_fmadd_ps(a, b, sum[i]), 16)
WIDE_LOOP(avx512_vpdpbusd, "avx512f,avx512vnni", __m512i, _mm512_setzero_si512(), sum[i] = _mm512_dpbusd_epi32(sum[i], a, b), 64)

#define AMX_LOOP(name, product, products)                                                \
  __attribute__((target("amx-tile,amx-int8,amx-bf16"))) int64_t name(void) {             \
    struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1}; \
    if (syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA)) return 0;                     \
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = 64, config.rows[tile] = 16; \
    __asm__ volatile("ldtilecfg %0" : : "m"(config));                                    \
    for (int turn = 0; turn < TURNS / 4; turn++) {                                       \
      product(0, 4, 6);                                                                  \
      product(1, 4, 7);                                                                  \
      product(2, 5, 6);                                                                  \
      product(3, 5, 7);                                                                  \
    }                                                                                    \
    _tile_release();                                                                     \
    return (int64_t)TURNS * products;                                                    \
  }
AMX_LOOP(amx_tdpbssd, _tile_dpbssd, 16 * 16 * 64)
AMX_LOOP(amx_tdpbf16ps, _tile_dpbf16ps, 16 * 16 * 32)

/* With a tile loaded from the first cache for each product, which is what products of matrices need at least. */
static uint8_t of_a_tile[16 * 64] __attribute__((aligned(64)));
#define LOAD_AND_MULTIPLY(sum, rows, columns) \
  _tile_loadd(columns, of_a_tile, 64);        \
  _tile_dpbf16ps(sum, rows, columns)
AMX_LOOP(amx_load_tdpbf16ps, LOAD_AND_MULTIPLY, 16 * 16 * 32)
