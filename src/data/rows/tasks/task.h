/* task.h (private): the description of a synthetic task, shared by the tasks and their parser. */
#ifndef SR_DATA_ROWS_TASKS_TASK_H
#define SR_DATA_ROWS_TASKS_TASK_H

#include "data/rows/synthetic.h"

enum { SR_SYNTHETIC_SETTINGS = 5 };

/* Settings that several tasks share have the same index in all of them. */
enum { SR_TASK_LENGTH, SR_TASK_VOCAB };

/* Bounds of settings. Tasks that search back in their row are limited to shorter rows. */
enum { SR_TASK_MOST_LENGTH = 1 << 20, SR_TASK_MOST_SEARCHED = 4096, SR_TASK_MOST_VOCAB = 1 << 24 };

typedef struct sr_synthetic_setting {
    const char *name; /* NULL: no more settings */
    double standard, least, most;
    bool fraction; /* else an integer */
} sr_synthetic_setting;

typedef struct sr_synthetic sr_synthetic;

typedef struct sr_synthetic_task {
    sr_synthetic_entry entry;
    sr_synthetic_setting settings[SR_SYNTHETIC_SETTINGS];
    /* Checks that the settings are consistent, and sets source.vocab, source.T and answers. */
    srnn_status (*prepare)(sr_synthetic *self);
    srnn_status (*fill)(const sr_source *source, sr_token_row *row, sr_split split, int64_t number);
} sr_synthetic_task;

struct sr_synthetic {
    sr_source source; /* first, so that a pointer to it is a pointer to the task */
    const sr_synthetic_task *task;
    double values[SR_SYNTHETIC_SETTINGS]; /* in the order of task->settings */
    uint64_t seed;
    int32_t answers; /* number of possible answers: a random guess is right in 1 of these */
    double *weights; /* mqar: (slots) cumulative weight of the slots; frequent-words: (ranks)
                        cumulative number of words; else NULL */
};

/* The tasks of one file, in the order of `softrnn data tasks`; each ends in a row without a
 * name. */
extern const sr_synthetic_task sr_tasks_recall[], sr_tasks_copying[], sr_tasks_tracking[],
    sr_tasks_mad[], sr_tasks_ruler[];

/* All of them; NULL past the end. */
const sr_synthetic_task *sr_synthetic_task_at(size_t index);

/* The random numbers of one row. */
typedef struct sr_draws {
    uint64_t seed, stream, counter;
} sr_draws;

/* One stream per row: even ones for training, odd ones for validation. */
sr_draws sr_draws_of(const sr_synthetic *self, sr_split split, int64_t number);
int32_t sr_draw_below(sr_draws *from, int64_t bound);
double sr_draw_uniform(sr_draws *from);
uint64_t sr_draw_bits(sr_draws *from);

/* An integer setting. */
int sr_task_setting(const sr_synthetic *self, int which);

/* A row of one document without targets; the ids are not set. */
const sr_synthetic *sr_task_begin_row(const sr_source *source, sr_token_row *row);

/* Ids `first` .. T-1 are `id`. */
void sr_task_pad(sr_token_row *row, int first, int T, int32_t id);

srnn_status sr_task_set_size(sr_synthetic *self, int T, int vocab, int answers);

#endif
