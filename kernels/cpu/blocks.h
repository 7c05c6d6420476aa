/* GGUF's blocks, one output at a time. Source: ggml's ggml-common.h. */
#ifndef HEARTH_BLOCKS_H
#define HEARTH_BLOCKS_H

#include "layouts.h"

enum { MOST_CODES = 256, MOST_GROUPS = 16 };

typedef struct {
  uint8_t codes[MOST_CODES];
  uint8_t scale[2], minimum[2]; /* float16 of the block; `scale[0]` alone is an exponent of MXFP4 */
  uint8_t scales[MOST_GROUPS];  /* of groups, signed where the layout says so */
  uint8_t minima[MOST_GROUPS];
} Block;

INLINE int block_bytes(Kind kind) {
  switch (kind) {
    case Q4_0: case IQ4_NL: return 18;
    case Q4_1: return 20;
    case Q5_0: return 22;
    case Q5_1: return 24;
    case Q8_0: return 34;
    case MXFP4: return 17;
    case Q2_K: return 84;
    case Q3_K: return 110;
    case Q4_K: return 144;
    case Q5_K: return 176;
    case Q6_K: return 210;
    default: return 136; /* IQ4_XS */
  }
}

INLINE void read_half(uint8_t *to, const uint8_t *from) { to[0] = from[0], to[1] = from[1]; }

/* 32 codes of 16 bytes: the low halves, then the high ones. */
INLINE void read_nibbles(uint8_t *codes, const uint8_t *bytes) {
  for (int i = 0; i < 16; i++) codes[i] = bytes[i] & 15, codes[16 + i] = bytes[i] >> 4;
}

INLINE void read_fifth_bits(uint8_t *codes, const uint8_t *bits) {
  for (int i = 0; i < 32; i++) codes[i] |= (bits[i / 8] >> i % 8 & 1) << 4;
}

/* 256 codes of two bits: 32 bytes hold four times 32 of them. */
INLINE void read_crumbs(uint8_t *codes, const uint8_t *bytes) {
  for (int run = 0; run < 8; run++)
    for (int i = 0; i < 32; i++) codes[32 * run + i] = bytes[run / 4 * 32 + i] >> run % 4 * 2 & 3;
}

/* Eight scales and eight minima of six bits, in twelve bytes. */
INLINE void read_six_bits(Block *block, const uint8_t *bytes) {
  for (int i = 0; i < 4; i++) {
    block->scales[i] = bytes[i] & 63;
    block->minima[i] = bytes[4 + i] & 63;
    block->scales[4 + i] = (bytes[8 + i] & 15) | (bytes[i] >> 2 & 48);
    block->minima[4 + i] = bytes[8 + i] >> 4 | (bytes[4 + i] >> 2 & 48);
  }
}

INLINE void read_block(Kind kind, const uint8_t *from, Block *block) {
  switch (kind) {
    case Q4_0: case IQ4_NL:
      read_half(block->scale, from);
      read_nibbles(block->codes, from + 2);
      break;
    case Q4_1:
      read_half(block->scale, from), read_half(block->minimum, from + 2);
      read_nibbles(block->codes, from + 4);
      break;
    case Q5_0:
      read_half(block->scale, from);
      read_nibbles(block->codes, from + 6), read_fifth_bits(block->codes, from + 2);
      break;
    case Q5_1:
      read_half(block->scale, from), read_half(block->minimum, from + 2);
      read_nibbles(block->codes, from + 8), read_fifth_bits(block->codes, from + 4);
      break;
    case Q8_0:
      read_half(block->scale, from);
      for (int i = 0; i < 32; i++) block->codes[i] = from[2 + i] ^ 0x80;
      break;
    case MXFP4:
      block->scale[0] = from[0];
      read_nibbles(block->codes, from + 1);
      break;
    case Q2_K:
      for (int i = 0; i < 16; i++) block->scales[i] = from[i] & 15, block->minima[i] = from[i] >> 4;
      read_crumbs(block->codes, from + 16);
      read_half(block->scale, from + 80), read_half(block->minimum, from + 82);
      break;
    case Q3_K:
      for (int i = 0; i < 16; i++) {
        const int low = from[96 + i % 8] >> i / 8 * 4 & 15, high = from[104 + i % 4] >> i / 4 * 2 & 3;
        block->scales[i] = (uint8_t)((low | high << 4) - 32);
      }
      read_crumbs(block->codes, from + 32);
      for (int run = 0; run < 8; run++)
        for (int i = 0; i < 32; i++) block->codes[32 * run + i] |= (from[i] >> run & 1) << 2;
      read_half(block->scale, from + 108);
      break;
    case Q4_K: case Q5_K:
      read_half(block->scale, from), read_half(block->minimum, from + 2);
      read_six_bits(block, from + 4);
      for (int run = 0; run < 8; run++) {
        const uint8_t *low = from + (kind == Q5_K ? 48 : 16) + run / 2 * 32, *high = from + 16;
        uint8_t *codes = block->codes + 32 * run;
        for (int i = 0; i < 32; i++) codes[i] = low[i] >> run % 2 * 4 & 15;
        if (kind == Q5_K)
          for (int i = 0; i < 32; i++) codes[i] |= (high[i] >> run & 1) << 4;
      }
      break;
    case Q6_K:
      for (int i = 0; i < 16; i++) block->scales[i] = from[192 + i];
      for (int run = 0; run < 8; run++) {
        const uint8_t *low = from + run / 4 * 64 + run % 2 * 32, *high = from + 128 + run / 4 * 32;
        uint8_t *codes = block->codes + 32 * run;
        for (int i = 0; i < 32; i++) codes[i] = (low[i] >> run % 4 / 2 * 4 & 15) | (high[i] >> run % 4 * 2 & 3) << 4;
      }
      read_half(block->scale, from + 208);
      break;
    default: /* IQ4_XS */
      read_half(block->scale, from);
      for (int i = 0; i < 8; i++) {
        const int low = from[4 + i / 2] >> i % 2 * 4 & 15, high = (from[2] | from[3] << 8) >> 2 * i & 3;
        block->scales[i] = (uint8_t)((low | high << 4) - 32);
        read_nibbles(block->codes + 32 * i, from + 8 + 16 * i);
      }
  }
}

#endif
