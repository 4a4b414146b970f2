/* sums.h (private): what forward saves of one token, all heads, as numbers in a row: how it travels
 * between ranks. The same of its gradients. */
#ifndef SR_MODEL_LAYER_CONTEXT_SUMS_H
#define SR_MODEL_LAYER_CONTEXT_SUMS_H

#include "attention/kernel.h"

/* Numerators (H, Dv), row sums (H), maxima (H). */
static inline int64_t sr_sums_columns(const srnn_problem *p) {
    return (int64_t)p->H * (p->Dv + 2);
}

/* Of token t of row b: out of the arrays, into them (the maximum alone, and zeros, unless it
 * `counts`), and added to what is there. */
void sr_sums_out(float *row, const sr_saved *saved, const srnn_problem *p, int64_t b, int64_t t);
void sr_sums_in(const sr_saved *saved, const float *row, const srnn_problem *p, int64_t b,
                int64_t t, bool counts);
void sr_sums_add(const sr_saved *saved, const float *row, const srnn_problem *p, int64_t b,
                 int64_t t);

#endif
