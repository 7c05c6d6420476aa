/* Numbers of a file as floats. */
#ifndef HEARTH_NUMBERS_H
#define HEARTH_NUMBERS_H

#include <stdint.h>

static inline float from_bits(uint32_t bits) {
  float found;
  __builtin_memcpy(&found, &bits, 4);
  return found;
}

/* Little-endian, as are those below. */
static inline float from_f32(const uint8_t *place) {
  float found;
  __builtin_memcpy(&found, place, 4);
  return found;
}

static inline float from_bf16(const uint8_t *place) { return from_bits((uint32_t)(place[0] | place[1] << 8) << 16); }

/* IEEE half precision. */
static inline float from_f16(const uint8_t *place) {
  const uint32_t half = (uint32_t)place[0] | (uint32_t)place[1] << 8;
  const uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
  if (exponent == 31) return from_bits(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
  const float small = (float)mantissa * 5.9604644775390625e-8f; /* 2^-24 */
  return sign ? -small : small;
}

/* A float of at most 65504 as IEEE half precision, rounded to even. */
static inline void to_f16(float value, uint8_t *place) {
  uint32_t bits, half;
  __builtin_memcpy(&bits, &value, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits < 0x38800000) { /* Below 2^-14 halves are multiples of 2^-24: adding 1/2 rounds to them. */
    float small = from_bits(bits) + 0.5f;
    __builtin_memcpy(&half, &small, 4);
    half -= 0x3f000000;
  } else {
    half = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;
  }
  half |= sign;
  place[0] = (uint8_t)half, place[1] = (uint8_t)(half >> 8);
}

/* float8_e4m3fn. */
static inline float from_e4m3fn(uint8_t code) {
  const uint32_t sign = (uint32_t)(code & 0x80) << 24, size = code & 0x7f;
  if (size == 0x7f) return from_bits(sign | 0x7fc00000);
  if (size >= 8) return from_bits(sign | (size + (120 << 3)) << 20);
  const float small = (float)size * 0.001953125f; /* 2^-9 */
  return sign ? -small : small;
}

/* Half of 2^(exponent - 127); the two lowest are subnormal. */
static inline float power_of(uint8_t exponent) {
  if (exponent < 2) return from_bits(exponent ? 0x400000 : 0x200000);
  return from_bits((uint32_t)(exponent - 1) << 23);
}

#endif
