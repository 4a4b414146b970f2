/* pointwise.c: the ops over n numbers (activations, sums, AdamW), in fixed tiles. */
#include "backend/cpu/cpu.h"
#include "base/threads.h"

#include <math.h>

enum { TILE = 8192 };

typedef struct point_job {
    const sr_cpu_rows *loops;
    float *out, *out2, *out3;
    const float *in, *in2, *in3;
    const sr_adamw_factors *factors;
    double parts[SR_ROW_PARTS];
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

static void swiglu_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t i = task * TILE;
    job->loops->swiglu_forward(job->out + i, job->in + i, job->in2 + i, length(job, task));
}

static void swiglu_tile_back(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t i = task * TILE;
    job->loops->swiglu_backward(job->out + i, job->out2 + i, job->in + i, job->in2 + i,
                                job->in3 + i, length(job, task));
}

static void gelu_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    for (int64_t i = task * TILE, end = i + length(job, task); i < end; i++)
        job->out[i] = 0.5f * job->in[i] * (1.0f + erff(job->in[i] * (float)M_SQRT1_2));
}

static void gelu_tile_back(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    for (int64_t i = task * TILE, end = i + length(job, task); i < end; i++) {
        const float x = job->in2[i];
        const float below = 0.5f * (1.0f + erff(x * (float)M_SQRT1_2));
        const float density = 0.398942280f * expf(-0.5f * x * x);
        job->out[i] = job->in[i] * (below + x * density);
    }
}

static void add_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t i = task * TILE;
    job->loops->add(job->out + i, job->in + i, job->in2 + i, length(job, task));
}

static void adamw_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const point_job *job = context;
    const int64_t i = task * TILE;
    job->loops->adamw(job->out + i, job->out2 + i, job->out3 + i, job->in + i, length(job, task),
                      job->factors);
}

static void sum_part(void *context, int64_t task, int worker) {
    (void)worker;
    point_job *job = context;
    const int64_t tile = sr_tiles(job->n, SR_ROW_PARTS), first = sr_min(task * tile, job->n);
    job->parts[task] = job->loops->sum(job->in + first, sr_min(tile, job->n - first));
}

static void square_sum_part(void *context, int64_t task, int worker) {
    (void)worker;
    point_job *job = context;
    const int64_t tile = sr_tiles(job->n, SR_ROW_PARTS), first = sr_min(task * tile, job->n);
    job->parts[task] = job->loops->square_sum(job->in + first, sr_min(tile, job->n - first));
}

static srnn_status total(sr_backend *backend, double *out, sr_task *task, const float *x,
                         int64_t n) {
    point_job job = {.loops = sr_cpu_rows_of(backend), .in = x, .n = n};
    sr_parallel(task, &job, SR_ROW_PARTS, backend->threads);
    *out = 0;
    for (int part = 0; part < SR_ROW_PARTS; part++)
        *out += job.parts[part];
    return SRNN_OK;
}

srnn_status sr_cpu_swiglu_forward(sr_backend *backend, float *out, const float *gate,
                                  const float *up, int64_t n) {
    point_job job = {.out = out, .in = gate, .in2 = up, .n = n};
    return run(backend, swiglu_tile, &job);
}

srnn_status sr_cpu_swiglu_backward(sr_backend *backend, float *d_gate, float *d_up,
                                   const float *d_out, const float *gate, const float *up,
                                   int64_t n) {
    point_job job = {.out = d_gate, .out2 = d_up, .in = d_out, .in2 = gate, .in3 = up, .n = n};
    return run(backend, swiglu_tile_back, &job);
}

srnn_status sr_cpu_gelu_forward(sr_backend *backend, float *out, const float *x, int64_t n) {
    point_job job = {.out = out, .in = x, .n = n};
    return run(backend, gelu_tile, &job);
}

srnn_status sr_cpu_gelu_backward(sr_backend *backend, float *d_x, const float *d_out,
                                 const float *x, int64_t n) {
    point_job job = {.out = d_x, .in = d_out, .in2 = x, .n = n};
    return run(backend, gelu_tile_back, &job);
}

srnn_status sr_cpu_add(sr_backend *backend, float *out, const float *x, const float *y, int64_t n) {
    point_job job = {.out = out, .in = x, .in2 = y, .n = n};
    return run(backend, add_tile, &job);
}

/* torch.optim.AdamW: weight *= 1 - lr wd;  weight -= lr / (1 - beta1^t) * m / (sqrt(v / (1 -
 * beta2^t)) + eps). */
srnn_status sr_cpu_adamw(sr_backend *backend, float *weight, float *mean, float *square,
                         const float *gradient, int64_t n, const sr_adamw *s) {
    const double correction1 = 1.0 - pow(s->beta1, (double)s->step);
    const double correction2 = 1.0 - pow(s->beta2, (double)s->step);
    const sr_adamw_factors factors = {
        .gradient_scale = (float)s->gradient_scale,
        .keep = (float)(1.0 - s->learning_rate * s->weight_decay),
        .new1 = (float)(1.0 - s->beta1),
        .beta2 = (float)s->beta2,
        .new2 = (float)(1.0 - s->beta2),
        .step_size = (float)(s->learning_rate / correction1),
        .inverse_root_correction = (float)(1.0 / sqrt(correction2)),
        .epsilon = (float)s->epsilon,
    };
    point_job job = {
        .out = weight, .out2 = mean, .out3 = square, .in = gradient, .factors = &factors, .n = n};
    return run(backend, adamw_tile, &job);
}

srnn_status sr_cpu_sum(sr_backend *backend, double *sum, const float *x, int64_t n) {
    return total(backend, sum, sum_part, x, n);
}

srnn_status sr_cpu_square_sum(sr_backend *backend, double *sum, const float *x, int64_t n) {
    return total(backend, sum, square_sum_part, x, n);
}
