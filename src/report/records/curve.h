/* curve.h (private): the curves of a run's metrics.jsonl. */
#ifndef SR_REPORT_RECORDS_CURVE_H
#define SR_REPORT_RECORDS_CURVE_H

#include "base/status.h"

/* Consecutive steps are averaged into at most this many bins. */
enum { SR_CURVE_BINS = 120 };

/* Sums over the finite values of consecutive steps. */
typedef struct sr_curve_bin {
    double values, steps;
    size_t count;
} sr_curve_bin;

typedef struct sr_curve {
    double steps;                           /* of the whole run */
    sr_curve_bin loss[SR_CURVE_BINS];       /* of training */
    sr_curve_bin gradient[SR_CURVE_BINS];   /* gradient norm, before clipping */
    sr_curve_bin validation[SR_CURVE_BINS]; /* loss */
    sr_curve_bin accuracy[SR_CURVE_BINS];   /* of validation */
    double last_step;                       /* 0: no data */
    double skipped;                         /* steps */
    double last_loss, last_accuracy;        /* last validation; NAN: none */
    double best_loss;                       /* the lowest validation loss; NAN: none */
    size_t bad_lines;                       /* skipped: not JSON objects */
} sr_curve;

/* Reads the complete lines of the file, which a run may be writing. A missing file leaves the curve
 * empty; lines that are not JSON objects are counted and skipped. */
srnn_status sr_curve_read(sr_curve *curve, const char *path, double steps);

/* The mean of the values, and of their steps; NAN if no value was finite. */
double sr_curve_bin_value(const sr_curve_bin *bin);
double sr_curve_bin_step(const sr_curve_bin *bin);

#endif
