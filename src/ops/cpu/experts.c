/* experts.c: routers of experts, and the rows that an expert sees. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>
#include <string.h>

typedef struct route_job {
    const sr_routing *routing;
    sr_matrix logits, d_logits;
    float *weights;
    const float *d_weights;
} route_job;

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* p (count) = softmax of z. */
static void softmax(float *p, const float *z, int count) {
    float most = z[0], sum = 0;
    for (int i = 1; i < count; i++)
        most = fmaxf(most, z[i]);
    for (int i = 0; i < count; i++)
        sum += p[i] = expf(z[i] - most);
    for (int i = 0; i < count; i++)
        p[i] /= sum;
}

/* The largest of p that is not taken, the first of equals. */
static int next_choice(const float *p, const bool *taken, int count) {
    int best = -1;
    for (int i = 0; i < count; i++)
        if (!taken[i] && (best < 0 || p[i] > p[best]))
            best = i;
    return best;
}

static void route_row(void *context, int64_t row, int worker) {
    (void)worker;
    const route_job *job = context;
    const sr_routing *r = job->routing;
    const float *z = sr_cpu_row(job->logits, row);
    float *weights = job->weights + row * job->logits.columns, sum = 0;
    bool taken[SR_EXPERTS_MAX] = {false};
    softmax(weights, z, r->count);
    for (int n = 0; n < r->chosen; n++) {
        const int expert = next_choice(weights, taken, r->count);
        taken[expert] = true;
        sum += weights[expert];
    }
    for (int i = 0; i < r->count; i++)
        weights[i] = !taken[i] ? 0.0f : r->renormalised ? weights[i] / sum : weights[i];
    if (r->shared)
        weights[r->count] = sigmoid(z[r->count]);
}

/* Of the softmax that remains: over the chosen logits if renormalised, else over all. */
static void route_row_back(void *context, int64_t row, int worker) {
    (void)worker;
    const route_job *job = context;
    const sr_routing *r = job->routing;
    const float *weights = job->weights + row * job->logits.columns;
    const float *d_weights = job->d_weights + row * job->logits.columns;
    float *d = sr_cpu_row(job->d_logits, row), sum = 0;
    if (r->renormalised)
        memcpy(d, weights, (size_t)r->count * sizeof *d);
    else
        softmax(d, sr_cpu_row(job->logits, row), r->count);
    for (int i = 0; i < r->count; i++)
        sum += weights[i] > 0 ? weights[i] * d_weights[i] : 0.0f;
    for (int i = 0; i < r->count; i++)
        d[i] *= (weights[i] > 0 ? d_weights[i] : 0.0f) - sum;
    if (r->shared) {
        const float w = weights[r->count];
        d[r->count] = w == 0 ? 0.0f : d_weights[r->count] * w * (1.0f - w); /* 0: no rows */
    }
}

srnn_status sr_cpu_route_forward(sr_backend *backend, float *weights, sr_matrix logits,
                                 const sr_routing *routing) {
    route_job job = {.routing = routing, .logits = logits, .weights = weights};
    sr_parallel(route_row, &job, logits.rows, backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_route_backward(sr_backend *backend, sr_matrix d_logits, const float *d_weights,
                                  const float *weights, sr_matrix logits,
                                  const sr_routing *routing) {
    route_job job = {.routing = routing,
                     .logits = logits,
                     .d_logits = d_logits,
                     .weights = (float *)weights,
                     .d_weights = d_weights};
    sr_parallel(route_row_back, &job, logits.rows, backend->threads);
    return SRNN_OK;
}

/* ---- rows of one expert */

typedef struct expert_job {
    const sr_expert_rows *of;
    sr_matrix x, rows, d_out, d_activated, activated;
    const float *bias;
    bool weighted;
} expert_job;

static float weight_of(const sr_expert_rows *of, int64_t row) {
    return of->weights[row * of->columns + of->expert];
}

static void gather_row(void *context, int64_t i, int worker) {
    (void)worker;
    const expert_job *job = context;
    memcpy(sr_cpu_row(job->rows, i), sr_cpu_row(job->x, job->of->places[i]),
           (size_t)job->x.columns * sizeof(float));
}

srnn_status sr_cpu_expert_gather(sr_backend *backend, sr_matrix *out, sr_matrix x,
                                 const sr_expert_rows *of) {
    out->rows = 0;
    for (int64_t row = 0; row < x.rows; row++)
        if (weight_of(of, row) != 0)
            of->places[out->rows++] = (int32_t)row;
    expert_job job = {.of = of, .x = x, .rows = *out};
    sr_parallel(gather_row, &job, out->rows, backend->threads);
    return SRNN_OK;
}

static void add_row(void *context, int64_t i, int worker) {
    (void)worker;
    const expert_job *job = context;
    const int64_t row = job->of->places[i];
    const float weight = job->weighted ? weight_of(job->of, row) : 1.0f;
    const float *from = sr_cpu_row(job->rows, i);
    float *y = sr_cpu_row(job->x, row);
    for (int64_t c = 0; c < job->x.columns; c++)
        y[c] += weight * from[c];
}

srnn_status sr_cpu_expert_add(sr_backend *backend, sr_matrix y, sr_matrix rows,
                              const sr_expert_rows *of, bool weighted) {
    expert_job job = {.of = of, .x = y, .rows = rows, .weighted = weighted};
    sr_parallel(add_row, &job, rows.rows, backend->threads);
    return SRNN_OK;
}

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)(a[i] * b[i]);
    return sum;
}

static void weigh_row_back(void *context, int64_t i, int worker) {
    (void)worker;
    const expert_job *job = context;
    const int64_t row = job->of->places[i], C = job->d_out.columns, F = job->activated.columns;
    const float weight = weight_of(job->of, row);
    float *d_out = sr_cpu_row(job->d_out, i), *d_activated = sr_cpu_row(job->d_activated, i);
    const double direct = dot(d_activated, sr_cpu_row(job->activated, i), F);
    const double biased = job->bias ? dot(d_out, job->bias, C) : 0;
    job->of->d_weights[row * job->of->columns + job->of->expert] = (float)(direct + biased);
    for (int64_t c = 0; c < C; c++)
        d_out[c] *= weight;
    for (int64_t f = 0; f < F; f++)
        d_activated[f] *= weight;
}

srnn_status sr_cpu_expert_weigh_backward(sr_backend *backend, sr_matrix d_out,
                                         sr_matrix d_activated, sr_matrix activated,
                                         const float *bias, const sr_expert_rows *of) {
    expert_job job = {
        .of = of, .d_out = d_out, .d_activated = d_activated, .activated = activated, .bias = bias};
    sr_parallel(weigh_row_back, &job, d_out.rows, backend->threads);
    return SRNN_OK;
}
