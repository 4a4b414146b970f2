/* spearman.c: rank correlation with an interval. */
#include "distil/spearman.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Ranks from 1 on; equal values share the mean of theirs. */
static void rank_values(double *ranks, const double *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t below = 0, equal = 0;
        for (size_t j = 0; j < count; j++) {
            below += values[j] < values[i];
            equal += values[j] == values[i];
        }
        ranks[i] = (double)below + ((double)equal + 1) / 2;
    }
}

static double correlate(const double *x, const double *y, size_t count) {
    const double mean = ((double)count + 1) / 2;
    double xx = 0, yy = 0, xy = 0;
    for (size_t i = 0; i < count; i++) {
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
        xy += (x[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

/* Half way between 1 and the correlation of ranks of which two neighbours have changed places. */
static double largest_inside(size_t count) {
    const double n = (double)count;
    return 1 - 6 / (n * (n * n - 1));
}

srnn_status sr_spearman_of(sr_spearman *result, const double *x, const double *y, size_t count) {
    static const double normal = 1.959963984540054; /* 97.5 % of the standard normal */
    void *memory;
    *result = (sr_spearman){NAN, NAN, NAN};
    SR_TRY(sr_alloc(&memory, 2 * count, sizeof(double)));
    double *ranks = memory;
    rank_values(ranks, x, count);
    rank_values(ranks + count, y, count);
    const double rho = correlate(ranks, ranks + count, count);
    free(memory);
    result->rho = rho;
    if (count < 4 || isnan(rho))
        return SRNN_OK;
    const double width = normal * sqrt((1 + rho * rho / 2) / ((double)count - 3));
    const double inside = fmin(fmax(rho, -largest_inside(count)), largest_inside(count));
    result->low = rho > -1 ? tanh(atanh(inside) - width) : rho;
    result->high = rho < 1 ? tanh(atanh(inside) + width) : rho;
    return SRNN_OK;
}
