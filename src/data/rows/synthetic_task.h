/* synthetic_task.h (private): the description of a synthetic task, shared by the tasks and their
 * parser. */
#ifndef SR_DATA_ROWS_SYNTHETIC_TASK_H
#define SR_DATA_ROWS_SYNTHETIC_TASK_H

#include "data/rows/synthetic.h"

enum { SR_SYNTHETIC_SETTINGS = 5 };

typedef struct sr_synthetic_setting {
    const char *name; /* NULL: no more settings */
    double standard, least, most;
    bool fraction; /* else an integer */
} sr_synthetic_setting;

typedef struct sr_synthetic sr_synthetic;

typedef struct sr_synthetic_task {
    sr_synthetic_entry entry;
    sr_synthetic_setting settings[SR_SYNTHETIC_SETTINGS];
    /* Checks that the settings are consistent, and sets source.vocab and source.T. */
    srnn_status (*prepare)(sr_synthetic *self);
    srnn_status (*fill)(const sr_source *source, sr_token_row *row, sr_split split, int64_t number);
} sr_synthetic_task;

struct sr_synthetic {
    sr_source source; /* first, so that a pointer to it is a pointer to the task */
    const sr_synthetic_task *task;
    double values[SR_SYNTHETIC_SETTINGS]; /* in the order of task->settings */
    uint64_t seed;
    double *gap_ends; /* mqar: (slots) cumulative probability of the slots; else NULL */
};

/* The table; NULL past the end. */
const sr_synthetic_task *sr_synthetic_task_at(size_t index);

#endif
