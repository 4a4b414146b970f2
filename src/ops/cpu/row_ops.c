/* row_ops.c: ops that work row by row (norm, RoPE, loss), in fixed tiles of rows. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>

/* Rows of logits are long, and few are processed at a time. */
enum { TILE_ROWS = 32, LOSS_ROWS = 8 };

typedef struct row_job {
    const sr_divergence *divergence;
    const sr_square_error *error;
    const sr_cross_entropy *cross_entropy;
    const sr_cpu_rows *loops;
    sr_matrix x;
    float *out, *parts;
    int32_t *hits; /* of cross_entropy; the output of `largest` */
    const float *d_out;
    const sr_rmsnorm *norm;
    const sr_rope *rope;
    float factor; /* the sign of rope */
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

static void rope_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    job->loops->rope(job->x, job->rope, job->factor, task * TILE_ROWS,
                     sr_min((task + 1) * TILE_ROWS, job->rows));
}

/* True if the target has the largest number of the row, the first of equals. */
static bool is_hit(const float *logits, int64_t V, int32_t target) {
    if (target < 0 || isnan(logits[target]))
        return false;
    for (int64_t v = 0; v < V; v++)
        if (v < target ? logits[v] >= logits[target] : logits[v] > logits[target])
            return false;
    return true;
}

static void lose_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    const int64_t first = task * LOSS_ROWS, end = sr_min(first + LOSS_ROWS, job->rows);
    for (int64_t row = first; job->hits && row < end; row++)
        job->hits[row] =
            is_hit(sr_cpu_row(job->x, row), job->x.columns, job->cross_entropy->targets[row]);
    job->loops->cross_entropy(job->out, job->x, job->cross_entropy, first, end);
}

static void diverge_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    const int64_t first = task * LOSS_ROWS;
    job->loops->divergence(job->out, job->divergence, first, sr_min(first + LOSS_ROWS, job->rows));
}

static void error_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    job->loops->square_error(job->out, job->x, job->error, task * TILE_ROWS,
                             sr_min((task + 1) * TILE_ROWS, job->rows));
}

static void largest_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const row_job *job = context;
    for (int64_t row = task * TILE_ROWS; row < sr_min((task + 1) * TILE_ROWS, job->rows); row++) {
        const float *x = sr_cpu_row(job->x, row);
        int32_t best = 0;
        for (int32_t c = 1; c < job->x.columns; c++)
            if (x[c] > x[best] || isnan(x[best]))
                best = c;
        job->hits[row] = best;
    }
}

static srnn_status run(sr_backend *backend, sr_task *task, row_job *job) {
    job->loops = sr_cpu_rows_of(backend);
    sr_parallel(task, job, sr_tiles(job->rows, TILE_ROWS), backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_argmax(sr_backend *backend, int32_t *out, sr_matrix x) {
    row_job job = {.x = x, .hits = out, .rows = x.rows};
    return run(backend, largest_rows, &job);
}

srnn_status sr_cpu_next_inputs(sr_backend *backend, int32_t *ids, int32_t *positions,
                               const int32_t *chosen, int32_t position, int64_t rows) {
    (void)backend;
    for (int64_t r = 0; r < rows; r++) {
        ids[r] = chosen[r];
        positions[r] = position;
    }
    return SRNN_OK;
}

srnn_status sr_cpu_rmsnorm_forward(sr_backend *backend, void *out, const sr_rmsnorm *norm) {
    row_job job = {.out = out, .norm = norm, .rows = norm->rows};
    return run(backend, norm_rows, &job);
}

srnn_status sr_cpu_rmsnorm_backward(sr_backend *backend, const sr_rmsnorm_gradient *gradient,
                                    const void *d_out, const sr_rmsnorm *norm) {
    row_job job = {.loops = sr_cpu_rows_of(backend),
                   .out = gradient->d_x,
                   .parts = gradient->scratch,
                   .d_out = d_out,
                   .norm = norm,
                   .rows = norm->rows};
    sr_parallel(norm_rows_back, &job, SR_ROW_PARTS, backend->threads);
    for (int part = 0; part < SR_ROW_PARTS; part++)
        job.loops->add(gradient->d_weight, gradient->d_weight, gradient->scratch + part * norm->C,
                       norm->C);
    return SRNN_OK;
}

srnn_status sr_cpu_rope_forward(sr_backend *backend, sr_matrix x, const sr_rope *rope) {
    row_job job = {.x = x, .rope = rope, .factor = 1.0f, .rows = x.rows};
    return run(backend, rope_rows, &job);
}

srnn_status sr_cpu_rope_backward(sr_backend *backend, sr_matrix d_x, const sr_rope *rope) {
    row_job job = {.x = d_x, .rope = rope, .factor = -1.0f, .rows = d_x.rows};
    return run(backend, rope_rows, &job);
}

srnn_status sr_cpu_cross_entropy(sr_backend *backend, float *losses, int32_t *hits,
                                 sr_matrix logits, const sr_cross_entropy *of) {
    row_job job = {.x = logits,
                   .out = losses,
                   .hits = hits,
                   .cross_entropy = of,
                   .rows = logits.rows,
                   .loops = sr_cpu_rows_of(backend)};
    sr_parallel(lose_rows, &job, sr_tiles(job.rows, LOSS_ROWS), backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_divergence(sr_backend *backend, float *losses, const sr_divergence *of) {
    row_job job = {.out = losses,
                   .divergence = of,
                   .rows = of->student.rows,
                   .loops = sr_cpu_rows_of(backend)};
    sr_parallel(diverge_rows, &job, sr_tiles(job.rows, LOSS_ROWS), backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_square_error(sr_backend *backend, float *errors, sr_matrix d_x,
                                const sr_square_error *of) {
    row_job job = {.out = errors, .x = d_x, .error = of, .rows = of->rows};
    return run(backend, error_rows, &job);
}
