/* pipeline.h (private): read in order, work in any order on all cores, write in order. */
#ifndef SR_DATA_TEXT_PIPELINE_H
#define SR_DATA_TEXT_PIPELINE_H

#include "base/status.h"

#include <stdbool.h>

/* The stages of a pipeline over slots, whose content belongs to the caller. `read` and `write` are
 * called by one thread at a time and in the same order of slots; `work` is called concurrently. A
 * failure ends the pipeline once every earlier slot is written, so that the reported failure does
 * not depend on the number of threads. */
typedef struct sr_pipeline {
    srnn_status (*read)(void *context, int slot, bool *end); /* *end: nothing is left to read */
    srnn_status (*work)(void *context, int slot, int worker);
    srnn_status (*write)(void *context, int slot);
    void *context;
    int slots;   /* more than workers, so that a slow one does not stall the others */
    int workers; /* threads, including the caller's */
} sr_pipeline;

srnn_status sr_pipeline_run(const sr_pipeline *pipeline);

#endif
