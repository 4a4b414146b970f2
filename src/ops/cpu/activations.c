/* activations.c: the MLP's activations, row by row in fixed tiles. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>

typedef struct activation_job {
    const sr_cpu_rows *loops;
    sr_matrix out, d_out, x;
    int64_t tile_rows;
} activation_job;

static int64_t end_of(const activation_job *job, int64_t task) {
    return sr_min((task + 1) * job->tile_rows, job->x.rows);
}

static srnn_status run(sr_backend *backend, sr_task *task, activation_job *job) {
    enum { TILE_NUMBERS = 8192 };
    job->loops = sr_cpu_rows_of(backend);
    job->tile_rows = sr_tiles(TILE_NUMBERS, job->x.columns);
    sr_parallel(task, job, sr_tiles(job->x.rows, job->tile_rows), backend->threads);
    return SRNN_OK;
}

static void swiglu_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const activation_job *job = context;
    const int64_t F = job->out.columns;
    for (int64_t row = task * job->tile_rows; row < end_of(job, task); row++) {
        const float *gate = sr_cpu_row(job->x, row);
        job->loops->swiglu_forward(sr_cpu_row(job->out, row), gate, gate + F, F);
    }
}

static void swiglu_rows_back(void *context, int64_t task, int worker) {
    (void)worker;
    const activation_job *job = context;
    const int64_t F = job->d_out.columns;
    for (int64_t row = task * job->tile_rows; row < end_of(job, task); row++) {
        const float *gate = sr_cpu_row(job->x, row);
        float *d_gate = sr_cpu_row(job->out, row);
        job->loops->swiglu_backward(d_gate, d_gate + F, sr_cpu_row(job->d_out, row), gate, gate + F,
                                    F);
    }
}

static void gelu_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const activation_job *job = context;
    for (int64_t row = task * job->tile_rows; row < end_of(job, task); row++) {
        const float *x = sr_cpu_row(job->x, row);
        float *out = sr_cpu_row(job->out, row);
        for (int64_t i = 0; i < job->x.columns; i++)
            out[i] = 0.5f * x[i] * (1.0f + erff(x[i] * (float)M_SQRT1_2));
    }
}

static void gelu_rows_back(void *context, int64_t task, int worker) {
    (void)worker;
    const activation_job *job = context;
    for (int64_t row = task * job->tile_rows; row < end_of(job, task); row++) {
        const float *at = sr_cpu_row(job->x, row), *d_out = sr_cpu_row(job->d_out, row);
        float *d_x = sr_cpu_row(job->out, row);
        for (int64_t i = 0; i < job->x.columns; i++) {
            const float x = at[i];
            const float below = 0.5f * (1.0f + erff(x * (float)M_SQRT1_2));
            const float density = 0.398942280f * expf(-0.5f * x * x);
            d_x[i] = d_out[i] * (below + x * density);
        }
    }
}

srnn_status sr_cpu_swiglu_forward(sr_backend *backend, sr_matrix out, sr_matrix x) {
    activation_job job = {.out = out, .x = x};
    return run(backend, swiglu_rows, &job);
}

srnn_status sr_cpu_swiglu_backward(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                   sr_matrix x) {
    activation_job job = {.out = d_x, .d_out = d_out, .x = x};
    return run(backend, swiglu_rows_back, &job);
}

srnn_status sr_cpu_gelu_forward(sr_backend *backend, sr_matrix out, sr_matrix x) {
    activation_job job = {.out = out, .x = x};
    return run(backend, gelu_rows, &job);
}

srnn_status sr_cpu_gelu_backward(sr_backend *backend, sr_matrix d_x, sr_matrix d_out, sr_matrix x) {
    activation_job job = {.out = d_x, .d_out = d_out, .x = x};
    return run(backend, gelu_rows_back, &job);
}
