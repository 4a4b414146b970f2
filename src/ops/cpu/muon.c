/* muon.c: the elementwise steps of Muon, in fixed tiles of numbers. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>

enum { TILE = 16384 };

typedef struct muon_job {
    const sr_muon_part *part;
    const float *in, *square;
    float *out;
    const float *factors; /* of the polynomial */
    float scale, keep;
    int64_t n; /* numbers; of the polynomial rows */
} muon_job;

static int64_t end_of(const muon_job *job, int64_t task) {
    return sr_min((task + 1) * TILE, job->n);
}

static void find_direction(void *context, int64_t task, int worker) {
    (void)worker;
    const muon_job *job = context;
    const sr_muon_part *part = job->part;
    const float momentum = (float)part->momentum, fresh = (float)(1 - part->momentum);
    for (int64_t i = task * TILE; i < end_of(job, task); i++) {
        const float added = fresh * (job->scale * part->gradient[i]);
        const float mean = momentum * part->mean[i] + added;
        part->mean[i] = mean;
        part->direction[i] = momentum * mean + added;
    }
}

srnn_status sr_cpu_muon_direction(sr_backend *backend, const sr_step_stats *stats,
                                  const sr_muon_part *part) {
    muon_job job = {.part = part, .scale = (float)stats->gradient_scale, .n = part->n};
    if (stats->applied)
        sr_parallel(find_direction, &job, sr_tiles(job.n, TILE), backend->threads);
    return SRNN_OK;
}

static void scale_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const muon_job *job = context;
    for (int64_t i = task * TILE; i < end_of(job, task); i++)
        job->out[i] = job->scale * job->in[i];
}

srnn_status sr_cpu_muon_normalise(sr_backend *backend, void *out, const sr_step_stats *stats,
                                  const float *x, int64_t n) {
    muon_job job = {.in = x,
                    .out = out,
                    .scale = (float)(1 / (sqrt(stats->squares) + 1e-7)),
                    .n = n};
    sr_parallel(scale_tile, &job, sr_tiles(n, TILE), backend->threads);
    return SRNN_OK;
}

static void combine_row(void *context, int64_t row, int worker) {
    (void)worker;
    const muon_job *job = context;
    const float *P = job->in + row * job->n, *Q = job->square + row * job->n;
    float *out = job->out + row * job->n;
    for (int64_t c = 0; c < job->n; c++)
        out[c] = job->factors[1] * P[c] + job->factors[2] * Q[c];
    out[row] += job->factors[0];
}

srnn_status sr_cpu_muon_polynomial(sr_backend *backend, sr_matrix out, sr_matrix P, const float *Q,
                                   const float factors[3]) {
    muon_job job = {.in = P.data, .square = Q, .out = out.data, .factors = factors, .n = out.rows};
    sr_parallel(combine_row, &job, out.rows, backend->threads);
    return SRNN_OK;
}

static void update_tile(void *context, int64_t task, int worker) {
    (void)worker;
    const muon_job *job = context;
    const sr_muon_part *part = job->part;
    for (int64_t i = task * TILE; i < end_of(job, task); i++)
        part->weight[i] = job->keep * part->weight[i] - job->scale * part->direction[i];
}

srnn_status sr_cpu_muon_update(sr_backend *backend, const sr_step_stats *stats,
                               const sr_muon_part *part) {
    muon_job job = {.part = part,
                    .keep = (float)(1 - stats->learning_rate * part->weight_decay),
                    .scale = (float)(stats->learning_rate * part->step_size),
                    .n = part->n};
    if (stats->applied)
        sr_parallel(update_tile, &job, sr_tiles(job.n, TILE), backend->threads);
    return SRNN_OK;
}
