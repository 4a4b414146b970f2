/* logit_histogram.h (private): a histogram of logits with logarithmic bins, in constant memory. */
#ifndef SR_ANALYSIS_LOGIT_HISTOGRAM_H
#define SR_ANALYSIS_LOGIT_HISTOGRAM_H

#include <stdint.h>

/* Bins are 1/32 of a power of two wide, from 2^-16 to 2^16 on both sides of zero; smaller
 * magnitudes count as zero, larger ones as 2^16. */
enum {
    SR_HISTOGRAM_LEAST = -16,
    SR_HISTOGRAM_MOST = 16,
    SR_HISTOGRAM_PARTS = 32,
    SR_HISTOGRAM_SIDE = (SR_HISTOGRAM_MOST - SR_HISTOGRAM_LEAST) * SR_HISTOGRAM_PARTS,
    SR_HISTOGRAM_BINS = 2 * SR_HISTOGRAM_SIDE + 1,
};

/* { 0 } is empty. */
typedef struct sr_histogram {
    int64_t counts[SR_HISTOGRAM_BINS];
} sr_histogram;

void sr_histogram_add(sr_histogram *histogram, const double *x, int count);

/* The edges of a bin: it holds x with low <= x < high (mirrored below zero). */
double sr_histogram_low(int bin);
double sr_histogram_high(int bin);

/* The quantile `share` (0 .. 1), accurate to the width of a bin; 0 if the histogram is empty. */
double sr_histogram_quantile(const sr_histogram *histogram, double share);

#endif
