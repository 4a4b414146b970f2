/* spearman.h (private): how well one measure ranks what another does. */
#ifndef SR_DISTIL_SPEARMAN_H
#define SR_DISTIL_SPEARMAN_H

#include "base/status.h"

#include <stddef.h>

/* Spearman's rank correlation; equal values share the mean of their ranks. low and high: its 95 %
 * interval by Fisher's transformation with the variance (1 + rho^2 / 2) / (n - 3) of Bonett and
 * Wright (2000), NaN for fewer than 4 values. For equal or opposite ranks, of which few values say
 * little, the end that is not rho is that of a correlation half way to the next smaller one. rho
 * is NaN where one measure has a single value, or for fewer than 2. */
typedef struct sr_spearman {
    double rho, low, high;
} sr_spearman;

srnn_status sr_spearman_of(sr_spearman *result, const double *x, const double *y, size_t count);

#endif
