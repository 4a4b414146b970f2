/* permutation.h (private): a shuffle of 0 .. count-1 that is computed instead of stored. */
#ifndef SR_DATA_ROWS_PERMUTATION_H
#define SR_DATA_ROWS_PERMUTATION_H

#include <stdint.h>

/* The image of `index` (below count, count at least 1) under the shuffle of this `key`. Over all
 * indices every number below count occurs once. */
uint64_t sr_permutation_at(uint64_t key, uint64_t count, uint64_t index);

#endif
