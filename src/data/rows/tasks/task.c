/* task.c: code shared by the synthetic tasks, and their list. */
#include "data/rows/tasks/task.h"

#include "base/random.h"

sr_draws sr_draws_of(const sr_synthetic *self, sr_split split, int64_t number) {
    return (sr_draws){self->seed, (uint64_t)number * SR_SPLITS + (uint64_t)split, 0};
}

int32_t sr_draw_below(sr_draws *from, int64_t bound) {
    return (int32_t)sr_random_below(from->seed, from->stream, from->counter++, (uint64_t)bound);
}

double sr_draw_uniform(sr_draws *from) {
    return sr_random_uniform(from->seed, from->stream, from->counter++);
}

uint64_t sr_draw_bits(sr_draws *from) {
    return sr_random_bits(from->seed, from->stream, from->counter++);
}

int sr_task_setting(const sr_synthetic *self, int which) {
    return (int)self->values[which];
}

const sr_synthetic *sr_task_begin_row(const sr_source *source, sr_token_row *row) {
    row->starts[0] = 0;
    row->documents = 1;
    for (int t = 0; t < source->T; t++)
        row->targets[t] = -1;
    return (const sr_synthetic *)source;
}

void sr_task_pad(sr_token_row *row, int first, int T, int32_t id) {
    for (int t = first; t < T; t++)
        row->ids[t] = id;
}

srnn_status sr_task_set_size(sr_synthetic *self, int T, int vocab, int answers) {
    self->source.T = T;
    self->source.vocab = vocab;
    self->answers = answers;
    return SRNN_OK;
}

const sr_synthetic_task *sr_synthetic_task_at(size_t index) {
    static const sr_synthetic_task *const lists[] = {sr_tasks_recall, sr_tasks_copying,
                                                     sr_tasks_tracking, sr_tasks_mad,
                                                     sr_tasks_ruler};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (const sr_synthetic_task *task = lists[i]; task->entry.name; task++)
            if (index-- == 0)
                return task;
    return NULL;
}
