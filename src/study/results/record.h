/* record.h: reads the records of one run: metrics.jsonl, timings.jsonl, result.json. */
#ifndef SR_STUDY_RESULTS_RECORD_H
#define SR_STUDY_RESULTS_RECORD_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* How a run ended. */
typedef enum sr_ending {
    SR_ENDING_NONE = 0, /* it has not ended */
    SR_ENDING_FINISHED,
    SR_ENDING_DIVERGED, /* too many consecutive steps were not finite */
    SR_ENDING_FAILED,
} sr_ending;
const char *sr_ending_name(sr_ending ending); /* "finished"; static text */

/* result.json. */
typedef struct sr_result {
    sr_ending ending;
    char message[512];
    int64_t step, tokens, skipped;
    double parameters, memory_bytes, seconds, cpu_seconds;
    int threads;
    char host[64];         /* the machine of the process that ended it; "": not known */
    double started, ended; /* of that process, seconds since 1970; 0 or NaN: not known */
} sr_result;

/* One step. NaN: the loss was not finite, or the step had no validation. */
typedef struct sr_point {
    int64_t step;
    double loss, validation, accuracy;
} sr_point;

typedef struct sr_record {
    sr_result result;
    sr_point *points; /* (count), owned */
    size_t count;
    int64_t tokens, skipped; /* up to the last step */
    double last_loss;        /* of the last validation; NaN, here and below: none */
    double best_loss;        /* lowest */
    double last_accuracy;    /* of the last validation */
    double *batch_losses;    /* (batches), owned: of the last validation */
    size_t batches;
    double tokens_per_second; /* median over the steps */
    double seconds;           /* of all training steps */
} sr_record;

/* Reads the folder of a run; missing files leave it empty. An incomplete last line is ignored. Free
 * with sr_record_free in any case. */
srnn_status sr_record_read(sr_record *record, const char *folder);
void sr_record_free(sr_record *record);

/* The step of the last record that is complete; 0: none. */
int64_t sr_record_last_step(const char *folder);

/* result.json of a run's folder; the ending is NONE if there is none. */
srnn_status sr_result_read(sr_result *result, const char *folder);
srnn_status sr_result_write(const sr_result *result, const char *folder);

#endif
