/* pipeline.h (private): read in order, work in any order on all cores, write in order. */
#ifndef SR_DATA_TEXT_PIPELINE_H
#define SR_DATA_TEXT_PIPELINE_H

#include "base/status.h"

#include <stdbool.h>

/* What a pipeline does with its slots, whose content belongs to the caller. `read` and `write` are
 * never called by two threads at a time, and see the slots in the same order; `work` is called by
 * many. A failure ends the pipeline once every earlier slot is written, so that the failure that is
 * reported does not depend on the number of threads. */
typedef struct sr_pipeline {
    srnn_status (*read)(void *context, int slot, bool *end); /* *end: there was nothing to read */
    srnn_status (*work)(void *context, int slot, int worker);
    srnn_status (*write)(void *context, int slot);
    void *context;
    int slots;   /* more than workers, so that a slow one does not hold up the others at once */
    int workers; /* threads; the calling one is among them */
} sr_pipeline;

srnn_status sr_pipeline_run(const sr_pipeline *pipeline);

#endif
