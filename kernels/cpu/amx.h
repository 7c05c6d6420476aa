/* AMX, on the system that lets a process use it: Linux on x86-64. */
#ifndef HEARTH_AMX_H
#define HEARTH_AMX_H

#include "tiles_api.h"

enum { WIDE = 2 * TILE };

#if defined(__x86_64__) && defined(__linux__)
#include "lanes_avx512.h"

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,f16c,fma")))

/* Eight tiles of 16 rows of 64 bytes. */
AMX static inline void use_tiles(void) {
  struct { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {.palette = 1};
  for (int tile = 0; tile < 8; tile++) config.bytes[tile] = LINE, config.rows[tile] = TILE;
  /* Not the intrinsic: GCC before 12.4 takes its operand for 8 bytes, and drops what is written to the others. */
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

/* Rounded to even. Every processor with AMX's bfloat16 has this instruction. */
AMX static inline __m256i to_bf16(__m512 numbers) {
  const __m256bh halves = _mm512_cvtneps_pbh(numbers);
  __m256i bits;
  __builtin_memcpy(&bits, &halves, sizeof bits);
  return bits;
}

#endif
#endif
