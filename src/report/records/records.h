/* records.h (private): a study's records (docs/RECORDS.md), for the report. */
#ifndef SR_REPORT_RECORDS_RECORDS_H
#define SR_REPORT_RECORDS_RECORDS_H

#include "base/status.h"
#include "report/records/curve.h"
#include "report/records/entry.h"

typedef struct sr_run_record {
    const json_t *plan;               /* its object in study.json */
    const sr_variant_record *variant; /* NULL: not a variant of the study */
    const char *task, *size;
    double learning_rate;
    const char *status; /* "finished", "diverged", "failed"; "" if it has not ended */
    json_t *result;     /* result.json; NULL: missing or unreadable */
    json_t *tests;      /* tests.json; NULL: as for the result */
    json_t *samples;    /* samples.json; NULL: as for the result */
    bool broken_result; /* it exists but cannot be read: the run counts as not ended */
    sr_curve curve;
} sr_run_record;

/* One task, size and learning rate; or one task and size, each variant at its best learning
 * rate. */
typedef struct sr_cell_record {
    const char *task, *size;
    char *title;  /* owned: the task's title, and what distinguishes the cell from others */
    bool at_best; /* each variant at its best learning rate; the cell's is then NAN */
    bool tuned;   /* each variant at the learning rate tuned for it */
    bool leads;   /* the main one among the cells of its task and size */
    double learning_rate, length;
    const char *data; /* the task's, "" if unknown */
    double pairs;     /* pairs of a recall task, from its data; NAN: none */
    bool accuracy;    /* the measure is accuracy (higher is better), else loss (lower is better) */
    double noise_deviation, noise_floor, noise_seeds;
    sr_entry *entries; /* (count), in the study's order */
    size_t count;
    const sr_entry **ranked;  /* (count), best first, unknown last */
    const sr_entry *baseline; /* NULL: none */
} sr_cell_record;

typedef struct sr_records {
    const char *folder;
    json_t *plan, *summary;
    json_t *tuning; /* tuning.json; NULL: the study does not tune */
    double confidence;
    sr_variant_record *variants; /* (variant_count) */
    size_t variant_count;
    sr_run_record *runs; /* (run_count) */
    size_t run_count;
    sr_cell_record *cells; /* (cell_count), one at best rates before those of single rates */
    size_t cell_count;
} sr_records;

/* Reads everything under `folder`, which must outlive the records. */
srnn_status sr_records_read(sr_records *records, const char *folder);
void sr_records_free(sr_records *records);

/* True if the runs of both have the same settings apart from their attention. */
bool sr_variant_same_settings(const sr_variant_record *a, const sr_variant_record *b);

/* The variant in the cell, or NULL. */
const sr_entry *sr_cell_entry(const sr_cell_record *cell, const sr_variant_record *variant);

/* The margin within which a difference counts as none: SR_MARGIN of the baseline's result, in the
 * unit of the entry's difference. NAN: no baseline. */
#define SR_MARGIN 0.02
double sr_cell_margin(const sr_cell_record *cell, const sr_entry *entry);

/* True if, by its interval, the variant costs no more than the margin. */
bool sr_cell_keeps_up(const sr_cell_record *cell, const sr_entry *entry);

#endif
