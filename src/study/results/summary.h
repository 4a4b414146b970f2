/* summary.h: statistics of a study's runs: means, spreads, differences to the baseline. Pure
 * functions of the records. */
#ifndef SR_STUDY_RESULTS_SUMMARY_H
#define SR_STUDY_RESULTS_SUMMARY_H

#include "base/statistics.h"
#include "study/plan/study.h"
#include "study/results/record.h"

/* One number of every finished run of a variant. */
typedef struct sr_spread {
    double mean, standard_deviation; /* of the finite values */
    size_t count;                    /* number of finite values */
    double *values;                  /* (runs finished), owned */
} sr_spread;

typedef enum sr_verdict {
    SR_VERDICT_TOO_FEW = 0, /* there is no interval */
    SR_VERDICT_UNCLEAR,     /* the interval contains 0 */
    SR_VERDICT_BETTER,
    SR_VERDICT_WORSE,
    /* one of its runs diverged or ended without a result, regardless of the others */
    SR_VERDICT_UNSTABLE,
} sr_verdict;
const char *sr_verdict_name(sr_verdict verdict); /* "better"; static text */

/* A variant minus the baseline, on pairs of runs of the same seed. */
typedef struct sr_difference {
    sr_measure of;        /* the measure subtracted; loss if the cell has one seed */
    int64_t *seeds;       /* (pairs), owned */
    double *differences;  /* (pairs), owned */
    size_t pairs;         /* with a result */
    sr_interval interval; /* decides the verdict */
    sr_interval own;      /* from these pairs alone */
    /* how the interval was computed: "moderated", "seeds", "sequential", "batches", or "none" */
    const char *method;
    sr_verdict verdict;
} sr_difference;

/* A better variant is marked if its parameter count differs by more than this fraction. */
#define SR_PARAMETER_MARGIN 0.02

/* A variant in a cell. */
typedef struct sr_summary_variant {
    size_t variant; /* index in the study */
    double learning_rate;
    size_t runs, finished, diverged, failed;
    size_t not_finite; /* finished runs whose last loss or measure is not finite */
    int64_t skipped;
    int64_t *seeds; /* (finished), owned */
    sr_spread loss, best_loss, accuracy;
    sr_difference difference;               /* meaningless for the baseline */
    double tokens_per_second, memory_bytes; /* means */
    bool apart; /* its runs ran under other conditions than the baseline's: speeds cannot be
                 * compared */
    double parameters, state_bytes, cache_bytes;
    /* relative to the baseline's, negative: fewer; NaN: within SR_PARAMETER_MARGIN */
    double more_parameters;
} sr_summary_variant;

/* All runs of one task, size and learning rate; or of one task and size, with each variant at its
 * best learning rate, or at the one tuned for it. */
typedef struct sr_summary_cell {
    size_t task, size;
    double learning_rate; /* NaN: each variant has its own */
    sr_measure measure;
    size_t noise_seeds;
    double noise; /* standard deviation of the measure over the baseline's seeds; NaN: < 2 */
    sr_summary_variant *variants; /* (count), owned */
    size_t count;
} sr_summary_cell;

typedef struct sr_summary {
    sr_summary_cell *cells; /* (count), owned */
    size_t count;
    sr_summary_cell *best; /* (best_count), owned: one for each task and size with several rates */
    size_t best_count;
    size_t finished, diverged, failed, missing; /* counts of runs */
    size_t left_out;                            /* not ended and not requested */
} sr_summary;

/* `records` and `requested` (study->run_count), in the order of the plan; requested NULL: all runs.
 * Other runs count only if they have ended. Free with sr_summary_free in any case. */
srnn_status sr_summary_make(sr_summary *summary, const sr_study *study, const sr_record *records,
                            const bool *requested);
void sr_summary_free(sr_summary *summary);

/* True if more seeds are not needed: the interval shows better, worse or, within `margin` on both
 * sides, a difference that does not matter; or the variant is unstable. */
bool sr_difference_settled(const sr_difference *difference, double margin);

#endif
