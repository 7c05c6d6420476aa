/* Packed layouts: how a matrix of GGUF blocks is stored for products on a processor.
 *
 * 16 outputs are a tile. A tile is stored as the scales of all its blocks, then the codes of all its
 * runs; each of both begins at a multiple of 64 bytes. A run is 32 inputs, a unit is 4 of them. A
 * vector of codes holds one unit of 16 outputs: byte 4n + j is input j of output n, the order in which
 * VPDPBUSD and its like add up products.
 *
 * Codes of a run, in bits of `low` and `high`, are planes of 64 bytes a bit: 4 bits are 4 lines, unit
 * u in line u / 2 and nibble u % 2; 2 bits are 2 lines, unit u in line u / 4 and field u % 4; 8 bits
 * are 8 lines; a high bit is one line, unit u in bit u. Numbers of half precision are as they are. Nothing is requantized: codes and scales are
 * those of the file. Source of the formats: ggml's ggml-common.h and ggml-quants.c.
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
  Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS, BF16, F16, KINDS
} Kind;
/* Of blocks; BF16 and F16 are plain: a tile of them holds 16 outputs of each input. */
#define EACH_KIND(DO) \
  DO(Q4_0) DO(Q4_1) DO(Q5_0) DO(Q5_1) DO(Q8_0) DO(IQ4_NL) DO(MXFP4) \
  DO(Q2_K) DO(Q3_K) DO(Q4_K) DO(Q5_K) DO(Q6_K) DO(IQ4_XS)

typedef enum {
  SCALE_F16,  /* float16 of a run */
  SCALE_E8M0, /* a power of two of a run: half of 2^(byte - 127) */
  SCALE_U8,   /* an unsigned byte of a group, times a float16 of the block */
  SCALE_I8    /* a signed byte of a group, times a float16 of the block */
} ScaleForm;

typedef enum { NO_TABLE, TABLE_IQ4, TABLE_E2M1 } Table;

typedef struct {
  int low, high;   /* bits of the planes of a code */
  int zero;        /* what is taken from a code */
  Table table;     /* which numbers 4-bit codes stand for, `zero` added */
  int runs;        /* of a block */
  int group;       /* inputs of a scale: 32 or 16 */
  ScaleForm scale;
  int minimum;     /* 0: none; 1: a minimum is added; -1: it is taken away */
} Layout;

INLINE int is_plain(Kind kind) { return kind >= BF16; }

INLINE Layout layout_of(Kind kind) {
  switch (kind) {
    case Q4_0:   return (Layout){4, 0, 8, NO_TABLE, 1, 32, SCALE_F16, 0};
    case Q4_1:   return (Layout){4, 0, 0, NO_TABLE, 1, 32, SCALE_F16, 1};
    case Q5_0:   return (Layout){4, 1, 16, NO_TABLE, 1, 32, SCALE_F16, 0};
    case Q5_1:   return (Layout){4, 1, 0, NO_TABLE, 1, 32, SCALE_F16, 1};
    case Q8_0:   return (Layout){8, 0, 128, NO_TABLE, 1, 32, SCALE_F16, 0};
    case IQ4_NL: return (Layout){4, 0, 128, TABLE_IQ4, 1, 32, SCALE_F16, 0};
    case MXFP4:  return (Layout){4, 0, 12, TABLE_E2M1, 1, 32, SCALE_E8M0, 0};
    case Q2_K:   return (Layout){2, 0, 0, NO_TABLE, 8, 16, SCALE_U8, -1};
    case Q3_K:   return (Layout){2, 1, 4, NO_TABLE, 8, 16, SCALE_I8, 0};
    case Q4_K:   return (Layout){4, 0, 0, NO_TABLE, 8, 32, SCALE_U8, -1};
    case Q5_K:   return (Layout){4, 1, 0, NO_TABLE, 8, 32, SCALE_U8, -1};
    case Q6_K:   return (Layout){4, 2, 32, NO_TABLE, 8, 16, SCALE_I8, 0};
    default:     return (Layout){4, 0, 128, TABLE_IQ4, 8, 32, SCALE_I8, 0}; /* IQ4_XS */
  }
}

/* Bytes of the scales of a block: those of the block, then those of its groups, then the minima. */
INLINE int head_bytes(Layout about) {
  if (about.scale == SCALE_E8M0) return TILE;
  int floats = 2 * TILE * (about.minimum ? 2 : 1);
  if (about.scale == SCALE_F16) return floats;
  int groups = about.runs * RUN / about.group;
  return floats + groups * TILE * (about.minimum ? 2 : 1);
}

INLINE int run_bytes(Layout about) { return LINE * (about.low + about.high); }

INLINE int64_t aligned(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

INLINE int64_t heads_bytes(Layout about, int64_t inputs) {
  return aligned(inputs / (RUN * about.runs) * head_bytes(about));
}

INLINE int64_t tile_bytes(Kind kind, int64_t inputs) {
  if (is_plain(kind)) return aligned(2 * TILE * inputs);
  return heads_bytes(layout_of(kind), inputs) + inputs / RUN * run_bytes(layout_of(kind));
}

/* Tables, `zero` added. */
static const uint8_t IQ4_CODES[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t E2M1_CODES[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

#endif
