/* pairs.h (private): products of tiles in bf16 where an instruction multiplies it. pairs.c is compiled
 * once per level that has one; each copy fills one table. */
#ifndef SR_OPS_CPU_PAIRS_H
#define SR_OPS_CPU_PAIRS_H

#include "ops/cpu/gemm.h"

typedef struct sr_cpu_pairs {
    /* Packs A or B of a tile, rounded to bf16; a NaN stays one, subnormal numbers become zero. A
     * pack is a sequence of panels, of 32 rows of A or columns of B times K rounded up to a multiple
     * of 32; the last is padded with zeros. */
    void (*pack_a)(uint16_t *out, const sr_product *tile);
    void (*pack_b)(uint32_t *out, const sr_product *tile);
    /* C of a tile whose operands are packed. */
    void (*multiply)(const sr_product *tile, const uint16_t *a, const uint32_t *b);
} sr_cpu_pairs;

/* The table of the level in use; NULL: none multiplies bf16. */
const sr_cpu_pairs *sr_cpu_pairs_best(void);

#endif
