/* mlp_activation.c: activations other than SwiGLU and the exact GELU, row by row. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>

/* xIELU's constants: its slope at 0, and the number above which e^x - 1 is not taken. */
static const float BETA = 0.5f, SMALL = -1e-6f;

typedef struct function {
    sr_activation which;
    float positive, negative; /* of XIELU: softplus(alpha_p), BETA + softplus(alpha_n) */
} function;

typedef struct activation_job {
    function f;
    bool gated;
    sr_matrix out, d_out, x;
} activation_job;

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static function function_of(const sr_mlp_activation *a) {
    function f = {.which = a->function};
    if (a->function == SR_ACTIVATION_XIELU) {
        f.positive = softplus(*a->alpha_p);
        f.negative = BETA + softplus(*a->alpha_n);
    }
    return f;
}

/* sqrt(2/pi) (x + 0.044715 x^3), whose tanh replaces erf. */
static float gelu_argument(float x) {
    return 0.7978845608f * (x + 0.044715f * x * x * x);
}

static float value(const function *f, float x) {
    switch (f->which) {
    case SR_ACTIVATION_SILU:
        return x * sigmoid(x);
    case SR_ACTIVATION_GELU:
        return 0.5f * x * (1.0f + erff(x * (float)M_SQRT1_2));
    case SR_ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(gelu_argument(x)));
    case SR_ACTIVATION_RELU:
        return x > 0 ? x : 0;
    case SR_ACTIVATION_RELU_SQUARE:
        return x > 0 ? x * x : 0;
    case SR_ACTIVATION_XIELU:
        return x > 0 ? f->positive * x * x + BETA * x
                     : (expm1f(fminf(x, SMALL)) - x) * f->negative + BETA * x;
    }
    return 0;
}

static float slope(const function *f, float x) {
    switch (f->which) {
    case SR_ACTIVATION_SILU: {
        const float s = sigmoid(x);
        return s * (1.0f + x * (1.0f - s));
    }
    case SR_ACTIVATION_GELU:
        return 0.5f * (1.0f + erff(x * (float)M_SQRT1_2)) + x * 0.398942280f * expf(-0.5f * x * x);
    case SR_ACTIVATION_GELU_TANH: {
        const float t = tanhf(gelu_argument(x));
        const float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
    case SR_ACTIVATION_RELU:
        return x > 0 ? 1.0f : 0.0f;
    case SR_ACTIVATION_RELU_SQUARE:
        return x > 0 ? 2.0f * x : 0.0f;
    case SR_ACTIVATION_XIELU:
        return x > 0 ? 2.0f * f->positive * x + BETA : expm1f(fminf(x, SMALL)) * f->negative + BETA;
    }
    return 0;
}

static void activate_row(void *context, int64_t row, int worker) {
    (void)worker;
    const activation_job *job = context;
    const int64_t F = job->out.columns;
    const float *x = sr_cpu_row(job->x, row);
    float *out = sr_cpu_row(job->out, row);
    for (int64_t i = 0; i < F; i++)
        out[i] = value(&job->f, x[i]) * (job->gated ? x[F + i] : 1.0f);
}

static void activate_row_back(void *context, int64_t row, int worker) {
    (void)worker;
    const activation_job *job = context;
    const int64_t F = job->d_out.columns;
    const float *x = sr_cpu_row(job->x, row), *d_out = sr_cpu_row(job->d_out, row);
    float *d_x = sr_cpu_row(job->out, row);
    for (int64_t i = 0; i < F; i++) {
        const float d = d_out[i];
        if (job->gated)
            d_x[F + i] = d * value(&job->f, x[i]);
        d_x[i] = d * slope(&job->f, x[i]) * (job->gated ? x[F + i] : 1.0f);
    }
}

srnn_status sr_cpu_activation_forward(sr_backend *backend, sr_matrix out, sr_matrix x,
                                      const sr_mlp_activation *activation) {
    activation_job job = {
        .f = function_of(activation), .gated = activation->gated, .out = out, .x = x};
    sr_parallel(activate_row, &job, x.rows, backend->threads);
    return SRNN_OK;
}

/* The two numbers that XIELU learns: sums over everything, in order. */
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
                negative += (double)(d_out[i] * gate * (expm1f(fminf(x[i], SMALL)) - x[i]));
        }
    }
    *d_alpha[0] += (float)positive * sigmoid(*a->alpha_p);
    *d_alpha[1] += (float)negative * sigmoid(*a->alpha_n);
}

srnn_status sr_cpu_activation_backward(sr_backend *backend, sr_matrix d_x, float *const d_alpha[2],
                                       sr_matrix d_out, sr_matrix x,
                                       const sr_mlp_activation *activation) {
    activation_job job = {.f = function_of(activation),
                          .gated = activation->gated,
                          .out = d_x,
                          .d_out = d_out,
                          .x = x};
    if (activation->function == SR_ACTIVATION_XIELU)
        add_alpha_gradients(d_alpha, &job, activation);
    sr_parallel(activate_row_back, &job, x.rows, backend->threads);
    return SRNN_OK;
}
