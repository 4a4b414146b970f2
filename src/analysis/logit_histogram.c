/* logit_histogram.c: a histogram of logits with logarithmic bins, in constant memory. */
#include "analysis/logit_histogram.h"

#include <math.h>
#include <string.h>

enum { MANTISSA_BITS = 52, PART_BITS = 5, BIAS = 1023 };

/* The bin is the exponent and the first mantissa bits of the stored number: no logarithm is
 * needed. */
static int bin_of(double x) {
    const int64_t first = (int64_t)(BIAS + SR_HISTOGRAM_LEAST) << PART_BITS;
    const double size = fabs(x);
    int64_t bits;
    memcpy(&bits, &size, sizeof bits);
    int64_t step = (bits >> (MANTISSA_BITS - PART_BITS)) - first + 1;
    step = step < 0 ? 0 : step > SR_HISTOGRAM_SIDE ? SR_HISTOGRAM_SIDE : step;
    return SR_HISTOGRAM_SIDE + (int)(x < 0 ? -step : step);
}

void sr_histogram_add(sr_histogram *histogram, const double *x, int count) {
    for (int i = 0; i < count; i++)
        histogram->counts[bin_of(x[i])]++;
}

/* The magnitude of the bin `step` steps away from zero, step >= 1. */
static double size_at(int step) {
    const int exponent = SR_HISTOGRAM_LEAST + (step - 1) / SR_HISTOGRAM_PARTS;
    return ldexp(1 + (double)((step - 1) % SR_HISTOGRAM_PARTS) / SR_HISTOGRAM_PARTS, exponent);
}

double sr_histogram_low(int bin) {
    const int step = bin - SR_HISTOGRAM_SIDE;
    return step > 0 ? size_at(step) : -size_at(1 - step);
}

double sr_histogram_high(int bin) {
    return -sr_histogram_low(SR_HISTOGRAM_BINS - 1 - bin);
}

double sr_histogram_quantile(const sr_histogram *histogram, double share) {
    int64_t all = 0, below = 0;
    for (int bin = 0; bin < SR_HISTOGRAM_BINS; bin++)
        all += histogram->counts[bin];
    const double wanted = share * (double)all;
    for (int bin = 0; bin < SR_HISTOGRAM_BINS; bin++) {
        const int64_t here = histogram->counts[bin];
        if (here > 0 && (double)(below + here) >= wanted) {
            const double part = (wanted - (double)below) / (double)here;
            const double low = sr_histogram_low(bin), high = sr_histogram_high(bin);
            return low + part * (high - low);
        }
        below += here;
    }
    return 0;
}
