/* records.h: a study's records on disk (docs/RECORDS.md), as the report uses them. */
#ifndef SR_REPORT_RECORDS_H
#define SR_REPORT_RECORDS_H

#include "base/status.h"
#include "report/curve.h"

#include <jansson.h>

/* Texts of all records belong to the files they were read from. Numbers are NAN where a file does
 * not know. */

typedef struct sr_variant_record {
    const char *name, *attention, *text;
    bool known;                /* the text form is one that this program reads */
    srnn_attention descriptor; /* if known */
    int style;                 /* in charts; 0 is the baseline */
} sr_variant_record;

typedef struct sr_run_record {
    const json_t *plan;               /* its object in study.json */
    const sr_variant_record *variant; /* NULL: none that the study names */
    const char *task, *size;
    double learning_rate;
    const char *status; /* "finished", "diverged", "failed"; "" if it has not ended */
    json_t *result;     /* result.json; NULL: not there */
    sr_curve curve;
} sr_run_record;

/* What the interval of a difference to the baseline says. */
typedef enum sr_effect {
    SR_EFFECT_UNKNOWN = 0, /* nothing to compare */
    SR_EFFECT_BASELINE,
    SR_EFFECT_UNCLEAR, /* the interval includes zero */
    SR_EFFECT_BETTER,
    SR_EFFECT_WORSE,
} sr_effect;

/* One variant in one cell. */
typedef struct sr_entry {
    const sr_variant_record *variant;
    double mean, deviation; /* of the cell's measure over seeds */
    double loss, best_loss; /* means */
    double difference, low, high;
    const char *method; /* of the interval */
    sr_effect effect;
    double rank; /* sorts: least is best; NAN where nothing is known */
    double runs, finished, diverged, failed, skipped;
    double tokens_per_second, memory_bytes, parameters, state_bytes, cache_bytes;
} sr_entry;

/* One task, size and learning rate. */
typedef struct sr_cell {
    const char *task, *size;
    char *title; /* owned: the task's, with what else tells the cell from others */
    double learning_rate, length;
    bool accuracy; /* the measure is accuracy, and more is better; else loss, and less is */
    double noise_deviation, noise_floor, noise_seeds;
    sr_entry *entries; /* (count), in the study's order */
    size_t count;
    const sr_entry **ranked;  /* (count), best first; what is not known last */
    const sr_entry *baseline; /* NULL: it has none */
} sr_cell;

typedef struct sr_records {
    const char *folder;
    json_t *plan, *summary;
    double confidence;
    sr_variant_record *variants; /* (variant_count) */
    size_t variant_count;
    sr_run_record *runs; /* (run_count) */
    size_t run_count;
    sr_cell *cells; /* (cell_count) */
    size_t cell_count;
} sr_records;

/* Reads everything under `folder`, which must outlive the records. */
srnn_status sr_records_read(sr_records *records, const char *folder);
void sr_records_free(sr_records *records);

/* True if the run belongs to the cell. */
bool sr_run_in_cell(const sr_run_record *run, const sr_cell *cell);

#endif
