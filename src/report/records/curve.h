/* curve.h (private): what a run's metrics.jsonl says over its steps. */
#ifndef SR_REPORT_RECORDS_CURVE_H
#define SR_REPORT_RECORDS_CURVE_H

#include "base/status.h"

/* Steps in a row are averaged, so that a run of any length has at most this many. */
enum { SR_CURVE_BINS = 120 };

/* Sums over what was finite between two steps. */
typedef struct sr_curve_bin {
    double values, steps;
    size_t count;
} sr_curve_bin;

typedef struct sr_curve {
    double steps;                           /* of the whole run */
    sr_curve_bin loss[SR_CURVE_BINS];       /* of training */
    sr_curve_bin gradient[SR_CURVE_BINS];   /* its norm, before clipping */
    sr_curve_bin validation[SR_CURVE_BINS]; /* loss */
    sr_curve_bin accuracy[SR_CURVE_BINS];   /* of validation */
    double last_step;                       /* 0: the file says nothing */
    double skipped;                         /* steps */
    double last_loss, last_accuracy;        /* last validation; NAN: none */
    double best_loss;                       /* the least validation loss; NAN: none */
    size_t bad_lines;                       /* no JSON objects, and passed over */
} sr_curve;

/* Reads the file as far as its lines are whole: a run may be writing it. A file that is missing
 * leaves the curve empty; lines that are not JSON objects are counted and passed over. */
srnn_status sr_curve_read(sr_curve *curve, const char *path, double steps);

/* The mean of the values, and of their steps; NAN if nothing was finite. */
double sr_curve_bin_value(const sr_curve_bin *bin);
double sr_curve_bin_step(const sr_curve_bin *bin);

#endif
