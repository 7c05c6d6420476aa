/* Mixtures of experts: what layers.c needs of experts.c. */
#ifndef HEARTH_EXPERTS_H
#define HEARTH_EXPERTS_H

#include "packed.h"

typedef struct {
  int64_t count, active, hides; /* `active` of `count` are chosen for a token; each hides so many numbers; count 0: none */
  const float *router, *router_bias;     /* [count, width]; [count], or NULL */
  const Part *gate_up, *down;            /* [count, gate_up_parts], gate over up; [count, down_parts] */
  int64_t gate_up_parts, down_parts;
  const float *gate_up_bias, *down_bias; /* [count, 2 hides], [count, width]; or NULL */
  int32_t weighs_all;                    /* weights are shares among all experts, otherwise among those that are chosen */
} Experts;

/* out[tokens, width] = what the experts of each token make of x[tokens, width], weighed. `activation` and `is_wide`: see Layer.
 * Returns a fault.
 */
int32_t mix_experts(const Tiles *tiles, const Experts *about, int64_t width, int32_t activation, int32_t is_wide,
                    int64_t tokens, const float *x, float *out);

#endif
