/* Packed layouts: how a matrix of GGUF blocks, or of codes with a scale for each group of inputs, is
 * stored for products on a processor.
 *
 * 16 outputs are a tile. A tile is stored as the scales of all its blocks, then the codes of all its
 * runs; each of both begins at a multiple of 64 bytes. A run is 32 inputs, a unit is 4 of them. A
 * vector of codes holds one unit of 16 outputs: byte 4n + j is input j of output n, the order in which
 * VPDPBUSD and its like add up products.
 *
 * Codes of a run, in bits of `low` and `high`, are planes of 64 bytes a bit: 4 bits are 4 lines, unit
 * u in line u / 2 and nibble u % 2; 2 bits are 2 lines, unit u in line u / 4 and field u % 4; 8 bits
 * are 8 lines; a high bit is one line, unit u in bit u. FP8 alone has pairs of inputs in place of fours: byte
 * 32 (j / 2) + 2n + j % 2 is input j of output n. Numbers of half precision are as they are: in float16 those of an
 * input next to each other, in bfloat16 two inputs of each output, the order in which TDPBF16PS adds up products. Nothing is
 * requantized: codes and scales are those of the file. Source of the formats: ggml's ggml-common.h and
 * ggml-quants.c.
 */
#ifndef HEARTH_LAYOUTS_H
#define HEARTH_LAYOUTS_H

#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

enum { TILE = 16, RUN = 32, UNIT = 4, UNITS = RUN / UNIT, LINE = 64 };

/* In the order of `LAYOUTS` in layouts.py. */
typedef enum {
  Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS,
  INT2, INT3, INT4, INT6, INT8, FP8, NF4, BF16, F16, KINDS
} Kind;
#define EACH_BLOCK_KIND(DO) \
  DO(Q4_0) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(Q8_0) DO(IQ4_NL) DO(MXFP4) \
  DO(Q2_K) DO(Q3_K) DO(Q4_K) DO(Q5_K) DO(Q6_K) DO(IQ4_XS)
/* Codes that are whole numbers, which int8 activations are multiplied with. */
#define EACH_INTEGER_GROUP_KIND(DO) DO(INT2) DO(INT3) DO(INT4) DO(INT6) DO(INT8)
#define EACH_INTEGER_KIND(DO) EACH_BLOCK_KIND(DO) EACH_INTEGER_GROUP_KIND(DO)
#define EACH_GROUP_KIND(DO) EACH_INTEGER_GROUP_KIND(DO) DO(FP8) DO(NF4)
#define EACH_KIND(DO) EACH_INTEGER_KIND(DO) DO(FP8) DO(NF4) DO(BF16) DO(F16)

/* A tile holds 16 outputs of each input, and no scales. */
INLINE int is_plain(Kind kind) { return kind >= BF16; }
/* Scales are those of groups, which are blocks whose length is known at run time. */
INLINE int is_grouped(Kind kind) { return kind >= INT2 && kind < BF16; }
INLINE int is_integer(Kind kind) { return kind < FP8; }

typedef enum {
  SCALE_F16,  /* float16 of a run, or of a block whose length is known at run time */
  SCALE_BF16, /* so are these two */
  SCALE_F32,
  SCALE_E8M0, /* a power of two of a run: half of 2^(byte - 127) */
  SCALE_U8,   /* an unsigned byte of a group, times a float16 of the block */
  SCALE_I8    /* a signed byte of a group, times a float16 of the block */
} ScaleForm;

typedef enum { NO_TABLE, TABLE_IQ4, TABLE_E2M1, TABLE_NF4, TABLE_E4M3 } Table;

typedef struct {
  int low, high;   /* bits of the planes of a code */
  int zero;        /* what is taken from a code */
  Table table;     /* which numbers codes stand for, `zero` added; or fractions */
  int runs;        /* of a block */
  int group;       /* inputs of a scale: 32 or 16 of a block, or a run of it */
  ScaleForm scale;
  int minimum;     /* 0: none; 1: a minimum is added; -1: it is taken away */
  int has_zeros;   /* a byte of each block is taken from its codes in place of `zero` */
} Layout;

/* What a packed matrix of groups begins with, in a line of its own. */
typedef struct { int32_t runs, scale, has_zeros; } Groups;

INLINE Layout layout_of(Kind kind, Groups groups) {
  const int runs = groups.runs, zeros = groups.has_zeros;
  const ScaleForm scale = (ScaleForm)groups.scale;
  switch (kind) {
    case Q4_0:   return (Layout){4, 0, 8, NO_TABLE, 1, 32, SCALE_F16, 0, 0};
    case Q4_1:   return (Layout){4, 0, 0, NO_TABLE, 1, 32, SCALE_F16, 1, 0};
    case Q5_0:   return (Layout){4, 1, 16, NO_TABLE, 1, 32, SCALE_F16, 0, 0};
    case Q5_1:   return (Layout){4, 1, 0, NO_TABLE, 1, 32, SCALE_F16, 1, 0};
    case Q8_0:   return (Layout){8, 0, 128, NO_TABLE, 1, 32, SCALE_F16, 0, 0};
    case IQ4_NL: return (Layout){4, 0, 128, TABLE_IQ4, 1, 32, SCALE_F16, 0, 0};
    case MXFP4:  return (Layout){4, 0, 12, TABLE_E2M1, 1, 32, SCALE_E8M0, 0, 0};
    case Q2_K:   return (Layout){2, 0, 0, NO_TABLE, 8, 16, SCALE_U8, -1, 0};
    case Q3_K:   return (Layout){2, 1, 4, NO_TABLE, 8, 16, SCALE_I8, 0, 0};
    case Q4_K:   return (Layout){4, 0, 0, NO_TABLE, 8, 32, SCALE_U8, -1, 0};
    case Q5_K:   return (Layout){4, 1, 0, NO_TABLE, 8, 32, SCALE_U8, -1, 0};
    case Q6_K:   return (Layout){4, 2, 32, NO_TABLE, 8, 16, SCALE_I8, 0, 0};
    case IQ4_XS: return (Layout){4, 0, 128, TABLE_IQ4, 8, 32, SCALE_I8, 0, 0};
    case INT2:   return (Layout){2, 0, 2, NO_TABLE, runs, 32, scale, 0, zeros};
    case INT3:   return (Layout){2, 1, 4, NO_TABLE, runs, 32, scale, 0, zeros};
    case INT4:   return (Layout){4, 0, 8, NO_TABLE, runs, 32, scale, 0, zeros};
    case INT6:   return (Layout){4, 2, 32, NO_TABLE, runs, 32, scale, 0, zeros};
    case INT8:   return (Layout){8, 0, 128, NO_TABLE, runs, 32, scale, 0, zeros};
    case NF4:    return (Layout){4, 0, 0, TABLE_NF4, runs, 32, scale, 0, 0};
    default:     return (Layout){8, 0, 0, TABLE_E4M3, runs, 32, scale, 0, 0}; /* FP8 */
  }
}

/* Of a packed matrix. */
INLINE Layout layout_at(Kind kind, const uint8_t *packed) {
  Groups groups = {1, SCALE_F16, 0};
  if (is_grouped(kind)) __builtin_memcpy(&groups, packed, sizeof groups);
  return layout_of(kind, groups);
}

/* Of a block's own scale of an output. */
INLINE int scale_bytes(Layout about) { return about.scale == SCALE_F32 ? 4 : about.scale == SCALE_E8M0 ? 1 : 2; }

/* Bytes of the scales of a block: those of the block, then its zeros or those of its groups, then the minima. */
INLINE int head_bytes(Layout about) {
  const int kinds = about.minimum ? 2 : 1, bytes = TILE * (scale_bytes(about) * kinds + about.has_zeros);
  if (about.scale < SCALE_U8) return bytes;
  return bytes + about.runs * RUN / about.group * TILE * kinds;
}

INLINE int run_bytes(Layout about) { return LINE * (about.low + about.high); }

INLINE int64_t aligned(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

INLINE int64_t blocks_of(Layout about, int64_t inputs) { return (inputs / RUN + about.runs - 1) / about.runs; }

INLINE int64_t heads_bytes(Layout about, int64_t inputs) { return aligned(blocks_of(about, inputs) * head_bytes(about)); }

INLINE int64_t tile_bytes(Kind kind, Layout about, int64_t inputs) {
  if (is_plain(kind)) return aligned(2 * TILE * inputs);
  return heads_bytes(about, inputs) + inputs / RUN * run_bytes(about);
}

/* Where a tile begins: its scales, which codes follow. */
INLINE int64_t tile_offset(Kind kind, Layout about, int64_t inputs, int64_t tile) {
  return (is_grouped(kind) ? LINE : 0) + tile * tile_bytes(kind, about, inputs);
}

/* Where in a tile of half precision input `input` of an output is, in numbers. */
INLINE int64_t half_of(Kind kind, int64_t output, int64_t input) {
  return kind == BF16 ? 2 * (TILE * (input / 2) + output) + input % 2 : TILE * input + output;
}

/* Where in a unit input `input` of an output is. */
INLINE int byte_of(Layout about, int output, int input) {
  if (about.table == TABLE_E4M3) return 2 * TILE * (input / 2) + 2 * output + input % 2;
  return UNIT * output + input;
}

/* Tables, `zero` added. */
static const uint8_t IQ4_CODES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t E2M1_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
/* Source: bitsandbytes' create_normal_map, as its kernels have them. */
static const float NF4_NUMBERS[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
    -0.18477343022823334f, -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f,
    0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

#endif
