/* What packed.c offers the other files of the library. */
#ifndef HEARTH_PACKED_H
#define HEARTH_PACKED_H

#include "tiles_api.h"

typedef void (*Range)(int64_t begin, int64_t end, void *context);

enum { PLAIN, AVX2, AVX512, WITH_AMX }; /* instructions */
enum { OK, NO_MEMORY, NO_KIND, NO_SHAPE, NO_INSTRUCTIONS };

/* Some rows of a matrix. */
typedef struct {
  const uint8_t *packed;
  int64_t outputs;
  int32_t kind;
} Part;

/* `range` over 0 to `count`, on several threads if there is `grain` for each: in parts of at least `grain`, of which each thread
 * takes as many as it can.
 */
void in_parallel(int64_t count, int64_t grain, Range range, void *context);

/* The best set of instructions here. */
EXPORT int32_t hearth_instructions(void);

/* What `instructions` offer; nothing, not even `quantize`, where this processor lacks them. */
Tiles tiles_for(int32_t instructions);

/* See `hearth_multiply`. */
int32_t multiply_parts(Tiles tiles, const Part *parts, int64_t count, int64_t inputs, const float *x, int64_t rows, float *y,
                       int32_t is_wide);

/* See `hearth_multiply_groups`. */
int32_t multiply_groups(Tiles tiles, const Part *parts, int64_t count, int64_t groups, const int64_t *offsets, int64_t inputs,
                        const float *x, float *y, int32_t is_wide);

#endif
