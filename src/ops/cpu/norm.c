/* norm.c: RMS norm and LayerNorm of groups of channels, in fixed tiles of rows. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 32 };

typedef struct norm_job {
    const sr_norm *norm;
    const sr_norm_gradient *gradient;
    sr_matrix out, d_out;
} norm_job;

/* Of one group: x_hat = (x - mean) * rstd. */
typedef struct piece_stats {
    float mean, rstd;
} piece_stats;

static piece_stats stats_of(const sr_norm *norm, const float *x) {
    float sum = 0, squares = 0;
    for (int64_t c = 0; norm->subtract_mean && c < norm->C; c++)
        sum += x[c];
    const float mean = sum / (float)norm->C;
    for (int64_t c = 0; c < norm->C; c++)
        squares += (x[c] - mean) * (x[c] - mean);
    return (piece_stats){mean, 1.0f / sqrtf(squares / (float)norm->C + norm->epsilon)};
}

static const float *weight_of(const sr_norm *norm, int64_t group) {
    return norm->weight + (norm->own_weights ? group * norm->C : 0);
}

static const float *bias_of(const sr_norm *norm, int64_t group) {
    return norm->bias ? norm->bias + (norm->own_weights ? group * norm->C : 0) : NULL;
}

static void norm_piece(float *out, const sr_norm *norm, const float *x, int64_t group) {
    const float *weight = weight_of(norm, group), *bias = bias_of(norm, group);
    const piece_stats s = stats_of(norm, x);
    for (int64_t c = 0; c < norm->C; c++)
        out[c] = (x[c] - s.mean) * s.rstd * (weight[c] + norm->offset) + (bias ? bias[c] : 0);
}

static void norm_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const norm_job *job = context;
    const sr_norm *norm = job->norm;
    for (int64_t row = task * TILE_ROWS; row < sr_min((task + 1) * TILE_ROWS, norm->x.rows); row++)
        for (int64_t g = 0; g < norm->groups; g++)
            norm_piece(sr_cpu_row(job->out, row) + g * norm->C, norm,
                       sr_cpu_row(norm->x, row) + g * norm->C, g);
}

srnn_status sr_cpu_norm_forward(sr_backend *backend, sr_matrix out, const sr_norm *norm) {
    norm_job job = {.norm = norm, .out = out};
    sr_parallel(norm_rows, &job, sr_tiles(norm->x.rows, TILE_ROWS), backend->threads);
    return SRNN_OK;
}

/* With n = x_hat and u = d_out w:  d_x = rstd (u - mean(u) - n mean(u n)), mean(u) only of
 * LayerNorm. */
static void norm_piece_back(float *d_x, const norm_job *job, piece_stats s, const float *d_out,
                            const float *x, int64_t group) {
    const sr_norm *norm = job->norm;
    const float *weight = weight_of(norm, group);
    float dot = 0, sum = 0;
    for (int64_t c = 0; c < norm->C; c++) {
        const float u = d_out[c] * (weight[c] + norm->offset);
        dot += u * (x[c] - s.mean);
        sum += u;
    }
    const float pull = dot * s.rstd * s.rstd / (float)norm->C;
    const float level = norm->subtract_mean ? sum / (float)norm->C : 0;
    for (int64_t c = 0; c < norm->C; c++) {
        const float u = d_out[c] * (weight[c] + norm->offset);
        const float d = s.rstd * (u - level - (x[c] - s.mean) * pull);
        d_x[c] = job->gradient->adds ? d_x[c] + d : d;
    }
}

/* d_weight and d_bias (C) of one group; d_x may be d_out, so they come first. */
static void weight_back(float *d_weight, float *d_bias, piece_stats s, const float *d_out,
                        const float *x, int64_t C) {
    for (int64_t c = 0; c < C; c++) {
        d_weight[c] += d_out[c] * (x[c] - s.mean) * s.rstd;
        d_bias[c] += d_out[c];
    }
}

static int64_t weights_of(const sr_norm *norm) {
    return norm->own_weights ? norm->groups * norm->C : norm->C;
}

/* A task has a fixed range of rows, and a buffer for their gradients of the weights. */
static void norm_part_back(void *context, int64_t task, int worker) {
    (void)worker;
    const norm_job *job = context;
    const sr_norm *norm = job->norm;
    const int64_t C = norm->C, weights = weights_of(norm);
    const int64_t tile = sr_tiles(norm->x.rows, SR_ROW_PARTS);
    float *d_weight = job->gradient->scratch + task * 2 * weights, *d_bias = d_weight + weights;
    memset(d_weight, 0, (size_t)(2 * weights) * sizeof *d_weight);
    for (int64_t row = task * tile; row < sr_min((task + 1) * tile, norm->x.rows); row++)
        for (int64_t g = 0; g < norm->groups; g++) {
            const float *x = sr_cpu_row(norm->x, row) + g * C;
            const float *d_out = sr_cpu_row(job->d_out, row) + g * C;
            const int64_t at = norm->own_weights ? g * C : 0;
            const piece_stats s = stats_of(norm, x);
            weight_back(d_weight + at, d_bias + at, s, d_out, x, C);
            norm_piece_back(sr_cpu_row(job->gradient->d_x, row) + g * C, job, s, d_out, x, g);
        }
}

srnn_status sr_cpu_norm_backward(sr_backend *backend, const sr_norm_gradient *gradient,
                                 sr_matrix d_out, const sr_norm *norm) {
    norm_job job = {.norm = norm, .gradient = gradient, .d_out = d_out};
    const sr_cpu_rows *loops = sr_cpu_rows_of(backend);
    const int64_t weights = weights_of(norm);
    sr_parallel(norm_part_back, &job, SR_ROW_PARTS, backend->threads);
    for (int64_t part = 0; part < SR_ROW_PARTS; part++) {
        const float *d_weight = gradient->scratch + part * 2 * weights;
        loops->add(gradient->d_weight, gradient->d_weight, d_weight, weights);
        if (gradient->d_bias)
            loops->add(gradient->d_bias, gradient->d_bias, d_weight + weights, weights);
    }
    return SRNN_OK;
}
