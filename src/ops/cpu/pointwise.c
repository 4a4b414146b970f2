/* pointwise.c: the ops over n numbers (sums, step stats, AdamW), in fixed tiles. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>
#include <string.h>

enum { TILE = 8192 };

typedef struct point_job {
    const sr_cpu_rows *loops;
    float *out, *out2, *out3;
    const float *in;
    const sr_adamw_factors *factors;
    double *units; /* of squares */
    int64_t n;
} point_job;

static srnn_status run(sr_backend *backend, sr_task *task, point_job *job) {
    job->loops = sr_cpu_rows_of(backend);
    sr_parallel(task, job, sr_tiles(job->n, TILE), backend->threads);
    return SRNN_OK;
}

static int64_t length(const point_job *job, int64_t task) {
    return sr_min(TILE, job->n - task * TILE);
}

srnn_status sr_cpu_narrow(sr_backend *backend, void *out, const float *x, int64_t n) {
    (void)backend;
    if (out != x)
        memcpy(out, x, (size_t)n * sizeof *x);
    return SRNN_OK;
}

srnn_status sr_cpu_widen(sr_backend *backend, float *out, const void *x, int64_t n) {
    return sr_cpu_narrow(backend, out, x, n); /* both are float */
}

static void add_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t i = task * TILE;
    job->loops->add(job->out + i, job->out + i, job->in + i, length(job, task));
}

static void adamw_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t i = task * TILE;
    job->loops->adamw(job->out + i, job->out2 + i, job->out3 + i, job->in + i, length(job, task),
                      job->factors);
}

static void square_unit(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t first = task * SR_SQUARES_UNIT;
    job->units[task] =
        job->loops->square_sum(job->in + first, sr_min(SR_SQUARES_UNIT, job->n - first));
}

srnn_status sr_cpu_add(sr_backend *backend, float *y, const float *x, int64_t n) {
    point_job job = {.out = y, .in = x, .n = n};
    return run(backend, add_tile, &job);
}

typedef struct row_sum {
    const sr_cpu_rows *loops;
    sr_matrix y, x;
} row_sum;

static void add_row(void *context, int64_t row, int worker) {
    (void)worker;
    const row_sum *job = context;
    float *y = sr_cpu_row(job->y, row);
    job->loops->add(y, y, sr_cpu_row(job->x, row), job->y.columns);
}

srnn_status sr_cpu_add_rows(sr_backend *backend, sr_matrix y, sr_matrix x) {
    row_sum job = {sr_cpu_rows_of(backend), y, x};
    sr_parallel(add_row, &job, y.rows, backend->threads);
    return SRNN_OK;
}

static void copy_row(void *context, int64_t row, int worker) {
    (void)worker;
    const row_sum *job = context;
    memcpy(sr_cpu_row(job->y, row), sr_cpu_row(job->x, row),
           (size_t)job->y.columns * sizeof(float));
}

srnn_status sr_cpu_copy_rows(sr_backend *backend, sr_matrix out, sr_matrix x) {
    row_sum job = {sr_cpu_rows_of(backend), out, x};
    sr_parallel(copy_row, &job, out.rows, backend->threads);
    return SRNN_OK;
}

/* A batch is summed separately before it is added, as if it ran in another process. */
srnn_status sr_cpu_stats_losses(sr_backend *backend, sr_step_stats *stats, const float *losses,
                                const int32_t *hits, const int32_t *targets, int64_t rows) {
    (void)backend;
    double sum = 0;
    for (int64_t row = 0; row < rows; row++) {
        sum += (double)losses[row];
        stats->targets += targets[row] >= 0;
        stats->hits += hits ? hits[row] : 0;
    }
    stats->loss += sum;
    return SRNN_OK;
}

srnn_status sr_cpu_unit_squares(sr_backend *backend, double *units, const float *x, int64_t n) {
    point_job job = {.loops = sr_cpu_rows_of(backend), .in = x, .units = units, .n = n};
    sr_parallel(square_unit, &job, sr_tiles(n, SR_SQUARES_UNIT), backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_stats_squares(sr_backend *backend, sr_step_stats *stats, const float *x,
                                 int64_t n) {
    enum { UNITS = 512, GROUP = UNITS * SR_SQUARES_UNIT };
    double units[UNITS];
    stats->squares = 0;
    for (int64_t first = 0; first < n; first += GROUP) {
        const int64_t count = sr_min(GROUP, n - first);
        SR_TRY(sr_cpu_unit_squares(backend, units, x + first, count));
        for (int64_t unit = 0; unit < sr_tiles(count, SR_SQUARES_UNIT); unit++)
            stats->squares += units[unit];
    }
    return SRNN_OK;
}

static srnn_status update_range(sr_backend *backend, const sr_adamw *a, int64_t first, int64_t n,
                                const sr_adamw_factors *factors) {
    point_job job = {.out = a->weight + first,
                     .out2 = a->mean + first,
                     .out3 = a->square + first,
                     .in = a->gradient + first,
                     .factors = factors,
                     .n = n};
    return run(backend, adamw_tile, &job);
}

/* torch.optim.AdamW: weight *= 1 - lr wd;  weight -= lr / (1 - beta1^t) * m / (sqrt(v / (1 -
 * beta2^t)) + eps). */
static srnn_status update(sr_backend *backend, const sr_adamw *a, const sr_step_stats *stats) {
    const double correction1 = 1.0 - pow(a->beta1, (double)stats->updates);
    const double correction2 = 1.0 - pow(a->beta2, (double)stats->updates);
    const sr_adamw_factors factors = {
        .gradient_scale = (float)stats->gradient_scale,
        .keep = (float)(1.0 - stats->learning_rate * a->weight_decay),
        .new1 = (float)(1.0 - a->beta1),
        .beta2 = (float)a->beta2,
        .new2 = (float)(1.0 - a->beta2),
        .step_size = (float)(stats->learning_rate / correction1),
        .inverse_root_correction = (float)(1.0 / sqrt(correction2)),
        .epsilon = (float)a->epsilon,
    };
    sr_adamw_factors others = factors;
    others.keep = 1;
    for (int64_t first = 0, end; first < a->n; first = end) {
        bool decays;
        end = sr_adamw_piece(a, first, &decays);
        SR_TRY(update_range(backend, a, first, end - first, decays ? &factors : &others));
    }
    return SRNN_OK;
}

srnn_status sr_cpu_adamw(sr_backend *backend, sr_step_stats *stats, const sr_adamw *a) {
    const double targets = (double)(stats->targets > 0 ? stats->targets : 1);
    const double to_mean = a->nominal / targets;
    stats->gradient_norm = sqrt(stats->squares) * to_mean;
    stats->applied = isfinite(stats->loss / targets) && isfinite(stats->gradient_norm);
    if (!stats->applied)
        return SRNN_OK;
    stats->updates++;
    const bool clips = a->clip > 0 && stats->gradient_norm > a->clip;
    stats->gradient_scale = to_mean * (clips ? a->clip / stats->gradient_norm : 1.0);
    return update(backend, a, stats);
}

srnn_status sr_cpu_clear_starts(sr_backend *backend, sr_matrix states, const int32_t *positions,
                                int64_t T) {
    (void)backend;
    for (int64_t b = 0; b < states.rows; b++)
        if (positions[b * T] == 0)
            memset(sr_cpu_row(states, b), 0, (size_t)states.columns * sizeof(float));
    return SRNN_OK;
}
