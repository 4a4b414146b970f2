/* mlp_activation.c: activations other than SwiGLU and the exact GELU, row by row. */
#include "base/threads.h"
#include "ops/activation.h"
#include "ops/cpu/backend.h"

typedef struct activation_job {
    sr_activation_function f;
    bool gated;
    sr_matrix out, d_out, x;
} activation_job;

static void activate_row(void *context, int64_t row, int worker) {
    (void)worker;
    const activation_job *job = context;
    const int64_t F = job->out.columns;
    const float *x = sr_cpu_row(job->x, row);
    float *out = sr_cpu_row(job->out, row);
    for (int64_t i = 0; i < F; i++)
        out[i] = sr_activation_value(&job->f, x[i]) *
                 (job->gated ? sr_activation_gated(&job->f, x[F + i]) : 1.0f);
}

static void activate_row_back(void *context, int64_t row, int worker) {
    (void)worker;
    const activation_job *job = context;
    const int64_t F = job->d_out.columns;
    const float *x = sr_cpu_row(job->x, row), *d_out = sr_cpu_row(job->d_out, row);
    float *d_x = sr_cpu_row(job->out, row);
    for (int64_t i = 0; i < F; i++) {
        const float d = d_out[i];
        const float up = job->gated ? sr_activation_gated(&job->f, x[F + i]) : 1.0f;
        if (job->gated)
            d_x[F + i] = d * sr_activation_value(&job->f, x[i]) *
                         sr_activation_gated_slope(&job->f, x[F + i]);
        d_x[i] = d * sr_activation_slope(&job->f, x[i]) * up;
    }
}

srnn_status sr_cpu_activation_forward(sr_backend *backend, sr_matrix out, sr_matrix x,
                                      const sr_mlp_activation *activation) {
    activation_job job = {.f = sr_activation_of(activation),
                          .gated = activation->gated,
                          .out = out,
                          .x = x};
    sr_parallel(activate_row, &job, x.rows, backend->threads);
    return SRNN_OK;
}

/* The gradients of XIELU's two parameters: sums over all elements, in order. */
static void add_alpha_gradients(float *const d_alpha[2], const activation_job *job,
                                const sr_mlp_activation *a) {
    double positive = 0, negative = 0;
    for (int64_t row = 0; row < job->x.rows; row++) {
        const float *x = sr_cpu_row(job->x, row), *d_out = sr_cpu_row(job->d_out, row);
        for (int64_t i = 0; i < job->d_out.columns; i++) {
            const float gate = job->gated ? x[job->d_out.columns + i] : 1.0f;
            if (x[i] > 0)
                positive += (double)(d_out[i] * gate * x[i] * x[i]);
            else
                negative += (double)(d_out[i] * gate * (sr_xielu_below(x[i]) - x[i]));
        }
    }
    *d_alpha[0] += (float)positive * sr_activation_sigmoid(*a->alpha_p);
    *d_alpha[1] += (float)negative * sr_activation_sigmoid(*a->alpha_n);
}

srnn_status sr_cpu_activation_backward(sr_backend *backend, sr_matrix d_x, float *const d_alpha[2],
                                       sr_matrix d_out, sr_matrix x,
                                       const sr_mlp_activation *activation) {
    activation_job job = {.f = sr_activation_of(activation),
                          .gated = activation->gated,
                          .out = d_x,
                          .d_out = d_out,
                          .x = x};
    if (activation->function == SR_ACTIVATION_XIELU)
        add_alpha_gradients(d_alpha, &job, activation);
    sr_parallel(activate_row_back, &job, x.rows, backend->threads);
    return SRNN_OK;
}
