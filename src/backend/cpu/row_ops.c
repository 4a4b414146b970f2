/* row_ops.c: the ops that work row by row (norm, position, loss), in fixed tiles of rows. */
#include "backend/cpu/cpu.h"
#include "base/threads.h"

enum { TILE_ROWS = 32 };

typedef struct row_job {
    const sr_cpu_rows *loops;
    sr_matrix x;
    float *out, *parts;
    const float *d_out;
    const sr_rmsnorm *norm;
    const sr_rope *rope;
    const int32_t *targets;
    float factor; /* the sign of rope, the scale of cross_entropy */
    int64_t rows;
} row_job;

static void norm_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    job->loops->rmsnorm_forward(job->out, job->norm, task * TILE_ROWS,
                                sr_min((task + 1) * TILE_ROWS, job->rows));
}

static void norm_rows_back(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    const int64_t tile = sr_tiles(job->rows, SR_ROW_PARTS);
    job->loops->rmsnorm_backward(job->out, job->parts + task * job->norm->C, job->d_out, job->norm,
                                 sr_min(task * tile, job->rows),
                                 sr_min((task + 1) * tile, job->rows));
}

static void turn_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    job->loops->rope(job->x, job->rope, job->factor, task * TILE_ROWS,
                     sr_min((task + 1) * TILE_ROWS, job->rows));
}

static void lose_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    job->loops->cross_entropy(job->out, job->x, job->targets, job->factor, task * TILE_ROWS,
                              sr_min((task + 1) * TILE_ROWS, job->rows));
}

static srnn_status run(sr_backend *backend, sr_task *task, row_job *job) {
    job->loops = sr_cpu_rows_of(backend);
    sr_parallel(task, job, sr_tiles(job->rows, TILE_ROWS), backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_rmsnorm_forward(sr_backend *backend, float *out, const sr_rmsnorm *norm) {
    row_job job = {.out = out, .norm = norm, .rows = norm->rows};
    return run(backend, norm_rows, &job);
}

srnn_status sr_cpu_rmsnorm_backward(sr_backend *backend, float *d_x, float *d_weight,
                                    const float *d_out, const sr_rmsnorm *norm, float *scratch) {
    row_job job = {.loops = sr_cpu_rows_of(backend),
                   .out = d_x,
                   .parts = scratch,
                   .d_out = d_out,
                   .norm = norm,
                   .rows = norm->rows};
    sr_parallel(norm_rows_back, &job, SR_ROW_PARTS, backend->threads);
    for (int part = 0; part < SR_ROW_PARTS; part++)
        job.loops->add(d_weight, d_weight, scratch + part * norm->C, norm->C);
    return SRNN_OK;
}

srnn_status sr_cpu_rope_forward(sr_backend *backend, sr_matrix x, const sr_rope *rope) {
    row_job job = {.x = x, .rope = rope, .factor = 1.0f, .rows = x.rows};
    return run(backend, turn_rows, &job);
}

srnn_status sr_cpu_rope_backward(sr_backend *backend, sr_matrix d_x, const sr_rope *rope) {
    row_job job = {.x = d_x, .rope = rope, .factor = -1.0f, .rows = d_x.rows};
    return run(backend, turn_rows, &job);
}

srnn_status sr_cpu_cross_entropy(sr_backend *backend, float *losses, sr_matrix logits,
                                 const int32_t *targets, float scale) {
    row_job job = {
        .x = logits, .out = losses, .targets = targets, .factor = scale, .rows = logits.rows};
    return run(backend, lose_rows, &job);
}
