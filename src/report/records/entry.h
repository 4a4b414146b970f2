/* entry.h (private): one variant in one cell of a study, from summary.json. */
#ifndef SR_REPORT_RECORDS_ENTRY_H
#define SR_REPORT_RECORDS_ENTRY_H

#include "base/status.h"

#include <jansson.h>

/* Texts of all records belong to the files they were read from. Unknown numbers are NAN. */

typedef struct sr_variant_record {
    const char *name, *attention, *text;
    const json_t *settings;    /* of its runs alone; NULL: none */
    bool trained_alike;        /* these are the baseline's: attention is all that differs */
    bool by_layers;            /* the text form gives variants by layers */
    bool known;                /* this program can parse the text form as one variant */
    srnn_attention descriptor; /* if known */
    int style;                 /* in charts; 0 is the baseline */
    bool used;                 /* in a cell: one of its runs was requested, or has ended */
} sr_variant_record;

/* The verdict of summary.json on a variant. */
typedef enum sr_effect {
    SR_EFFECT_UNKNOWN = 0, /* nothing to compare */
    SR_EFFECT_BASELINE,
    SR_EFFECT_TOO_FEW, /* a difference without an interval: too few runs to judge it */
    SR_EFFECT_UNCLEAR, /* the interval includes zero */
    SR_EFFECT_BETTER,
    SR_EFFECT_WORSE,
    SR_EFFECT_UNSTABLE, /* a seed diverged, or ended without a finite result */
} sr_effect;

const char *sr_effect_word(sr_effect effect);

/* A variant's cost relative to the baseline: above 0 is worse, for every measure. */
typedef struct sr_cost {
    double mean, low, high;
} sr_cost;

struct sr_run_record;

typedef struct sr_entry {
    const sr_variant_record *variant;
    double learning_rate;                 /* of its runs */
    const struct sr_run_record **members; /* (member_count), owned: its runs */
    size_t member_count;
    double mean, deviation; /* of the cell's measure over seeds */
    double loss, best_loss; /* means over seeds */
    bool of_accuracy;       /* the difference is one of accuracy (more is better), else of loss */
    double difference, low, high;
    double *seeds; /* (seed_count), owned: the difference at each seed */
    size_t seed_count;
    const char *method; /* how the interval was computed */
    sr_effect effect;
    bool contradicts; /* the verdict says better or worse, and the interval includes zero */
    double runs, finished, diverged, failed, skipped;
    double not_finite;      /* finished runs without a finite result */
    bool apart;             /* its speed was measured under other conditions than the baseline's */
    double more_parameters; /* relative to the baseline's; NAN: within the margin */
    double tokens_per_second, memory_bytes, parameters, state_bytes, cache_bytes;
} sr_entry;

/* `object` is the variant's in summary.json; `accuracy`: the measure of its cell. */
srnn_status sr_entry_read(sr_entry *entry, const sr_variant_record *variant, const json_t *object,
                          bool accuracy);
void sr_entry_free(sr_entry *entry);

sr_cost sr_entry_cost(const sr_entry *entry);

/* Bytes of its state, else of its KV cache. */
double sr_entry_memory(const sr_entry *entry);

/* True if the variant is compared with the baseline, whether or not there are enough runs for a
 * verdict. */
bool sr_entry_compared(const sr_entry *entry);

/* True if there are enough runs for a verdict. */
bool sr_entry_judged(const sr_entry *entry);

/* "12 % more parameters" than the baseline, if beyond the margin; else "". */
void sr_entry_write_parameters(char words[48], const sr_entry *entry);

/* True if it is worse, or unstable. */
bool sr_entry_falls_short(const sr_entry *entry);

/* "diverged in 2 of 3 seeds, failed in 1", for an unstable variant. */
void sr_entry_write_broken(char *words, size_t size, const sr_entry *entry);

#endif
