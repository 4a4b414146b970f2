/* multipliers.c: constant factors and caps of activations and logits. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>

typedef struct multiply_job {
    sr_matrix out, x, y;
    float factor;
} multiply_job;

static void scale_row(void *context, int64_t row, int worker) {
    (void)worker;
    const multiply_job *job = context;
    float *x = sr_cpu_row(job->out, row);
    for (int64_t c = 0; c < job->out.columns; c++)
        x[c] *= job->factor;
}

static void add_scaled_row(void *context, int64_t row, int worker) {
    (void)worker;
    const multiply_job *job = context;
    float *out = sr_cpu_row(job->out, row);
    const float *x = sr_cpu_row(job->x, row), *y = sr_cpu_row(job->y, row);
    for (int64_t c = 0; c < job->out.columns; c++)
        out[c] = x[c] + job->factor * y[c];
}

static void cap_row(void *context, int64_t row, int worker) {
    (void)worker;
    const multiply_job *job = context;
    float *x = sr_cpu_row(job->out, row);
    for (int64_t c = 0; c < job->out.columns; c++)
        x[c] = job->factor * tanhf(x[c] / job->factor);
}

static void cap_row_back(void *context, int64_t row, int worker) {
    (void)worker;
    const multiply_job *job = context;
    float *d_x = sr_cpu_row(job->out, row);
    const float *capped = sr_cpu_row(job->x, row);
    for (int64_t c = 0; c < job->out.columns; c++) {
        const float t = capped[c] / job->factor;
        d_x[c] *= (1.0f - t) * (1.0f + t);
    }
}

static srnn_status run(sr_backend *backend, sr_task *task, multiply_job job) {
    sr_parallel(task, &job, job.out.rows, backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_scale(sr_backend *backend, sr_matrix x, float factor) {
    return run(backend, scale_row, (multiply_job){.out = x, .factor = factor});
}

srnn_status sr_cpu_add_scaled(sr_backend *backend, sr_matrix out, sr_matrix x, sr_matrix y,
                              float factor) {
    return run(backend, add_scaled_row, (multiply_job){out, x, y, factor});
}

srnn_status sr_cpu_cap_forward(sr_backend *backend, sr_matrix x, float cap) {
    return run(backend, cap_row, (multiply_job){.out = x, .factor = cap});
}

srnn_status sr_cpu_cap_backward(sr_backend *backend, sr_matrix d_x, sr_matrix capped, float cap) {
    return run(backend, cap_row_back, (multiply_job){.out = d_x, .x = capped, .factor = cap});
}
