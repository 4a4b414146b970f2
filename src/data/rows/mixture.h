/* mixture.h (private): rows of several tasks in one source: "5*mqar:pairs=4 + mqar:pairs=8". */
#ifndef SR_DATA_ROWS_MIXTURE_H
#define SR_DATA_ROWS_MIXTURE_H

#include "data/rows/source.h"

/* True if the text has this form and its first part names a task. */
bool sr_mixture_is(const char *text);

typedef srnn_status sr_mixture_part(sr_source **source, const char *text, uint64_t seed);

/* `create` creates the parts. A row comes from part n with a probability proportional to its weight
 * (default 1), and has the same number there. */
srnn_status sr_mixture_create(sr_source **source, const char *text, uint64_t seed,
                              sr_mixture_part *create);

/* The mean over the targets, which parts have different numbers of. NaN: no memory. */
double sr_mixture_chance(const sr_source *source);

#endif
