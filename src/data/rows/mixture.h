/* mixture.h (private): rows of several tasks in one source: "5*mqar:pairs=4 + mqar:pairs=8". */
#ifndef SR_DATA_ROWS_MIXTURE_H
#define SR_DATA_ROWS_MIXTURE_H

#include "data/rows/source.h"

/* True if the text is of this form and its first part the name of a task. */
bool sr_mixture_is(const char *text);

typedef srnn_status sr_mixture_part(sr_source **source, const char *text, uint64_t seed);

/* `create` makes the parts. A row is of part n with the probability of its weight (1 where none is
 * given), and has the number there that it has here. */
srnn_status sr_mixture_create(sr_source **source, const char *text, uint64_t seed,
                              sr_mixture_part *create);

/* The mean of the parts' by their weights. */
double sr_mixture_chance(const sr_source *source);

#endif
