/* short_conv.c: depthwise causal convolution over the tokens of a document, then SiLU or the
 * identity. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <string.h>

enum { TILE_COLUMNS = 64, TILE_ROWS = 256 };

typedef struct conv_job {
    const sr_cpu_rows *loops;
    const sr_short_conv *conv;
    sr_matrix out, d_x;
    float *d_weight, *d_bias;
    int64_t row_tiles;
} conv_job;

/* Some channels of the convolution, its weights transposed so that the channels of a tap are
 * contiguous. */
typedef struct conv_tile {
    int64_t first, columns;
    float taps[SR_SHORT_CONV_MAX][TILE_COLUMNS]; /* taps[j] belongs to the token j before */
    float bias[TILE_COLUMNS];
} conv_tile;

static void tile_load(conv_tile *tile, const sr_short_conv *conv, int64_t index) {
    tile->first = index * TILE_COLUMNS;
    tile->columns = sr_min(TILE_COLUMNS, conv->x.columns - tile->first);
    for (int j = 0; j < conv->width; j++)
        for (int64_t c = 0; c < tile->columns; c++)
            tile->taps[j][c] = conv->weight[(tile->first + c) * conv->width + conv->width - 1 - j];
    for (int64_t c = 0; c < tile->columns; c++)
        tile->bias[c] = conv->bias ? conv->bias[tile->first + c] : 0.0f;
}

/* The token j before `row`, or NULL if its document has none. */
static const float *earlier(const sr_short_conv *conv, int64_t row, int j) {
    if (conv->positions[row] < j)
        return NULL;
    const int64_t batch = row / conv->T, token = row % conv->T - j;
    if (token >= 0)
        return sr_cpu_row(conv->x, row - j);
    if (!conv->history)
        return NULL;
    const int64_t past = conv->width - 1;
    return (const float *)conv->history + (batch * past + past + token) * conv->x.columns;
}

static void convolve_row(float *out, const conv_job *job, const conv_tile *tile, int64_t row) {
    memcpy(out, tile->bias, (size_t)tile->columns * sizeof *out);
    for (int j = 0; j < job->conv->width; j++) {
        const float *x = earlier(job->conv, row, j);
        if (x)
            job->loops->multiply_add(out, tile->taps[j], x + tile->first, tile->columns);
    }
}

static void convolve(void *context, int64_t task, int worker) {
    (void)worker;
    const conv_job *job = context;
    conv_tile tile;
    tile_load(&tile, job->conv, task / job->row_tiles);
    const int64_t first = task % job->row_tiles * TILE_ROWS;
    const int64_t end = sr_min(first + TILE_ROWS, job->out.rows);
    for (int64_t row = first; row < end; row++) {
        float *out = sr_cpu_row(job->out, row) + tile.first;
        convolve_row(out, job, &tile, row);
        if (!job->conv->plain)
            job->loops->silu_forward(out, tile.columns);
    }
}

/* Overwrites d_out with the gradient before SiLU, and sums the gradients of taps and bias. */
static void back_to_weights(const conv_job *job, const conv_tile *tile) {
    float d_taps[SR_SHORT_CONV_MAX][TILE_COLUMNS] = {{0}};
    float d_bias[TILE_COLUMNS] = {0}, before[TILE_COLUMNS];
    const int width = job->conv->width;
    for (int64_t row = 0; row < job->out.rows; row++) {
        float *d = sr_cpu_row(job->out, row) + tile->first;
        if (!job->conv->plain) {
            convolve_row(before, job, tile, row);
            job->loops->silu_backward(d, before, tile->columns);
        }
        job->loops->add(d_bias, d_bias, d, tile->columns);
        for (int j = 0; j < width; j++) {
            const float *x = earlier(job->conv, row, j);
            if (x)
                job->loops->multiply_add(d_taps[j], d, x + tile->first, tile->columns);
        }
    }
    for (int j = 0; j < width; j++)
        for (int64_t c = 0; c < tile->columns; c++)
            job->d_weight[(tile->first + c) * width + width - 1 - j] += d_taps[j][c];
    if (job->d_bias)
        job->loops->add(job->d_bias + tile->first, job->d_bias + tile->first, d_bias,
                        tile->columns);
}

static void convolve_back(void *context, int64_t task, int worker) {
    (void)worker;
    const conv_job *job = context;
    const sr_short_conv *conv = job->conv;
    conv_tile tile;
    tile_load(&tile, conv, task);
    back_to_weights(job, &tile);
    for (int64_t row = 0; row < job->out.rows; row++) {
        float *d_x = sr_cpu_row(job->d_x, row) + tile.first;
        memset(d_x, 0, (size_t)tile.columns * sizeof *d_x);
        for (int j = 0; j < conv->width && row % conv->T + j < conv->T; j++)
            if (conv->positions[row + j] >= j)
                job->loops->multiply_add(d_x, tile.taps[j],
                                         sr_cpu_row(job->out, row + j) + tile.first, tile.columns);
    }
}

srnn_status sr_cpu_short_conv_forward(sr_backend *backend, sr_matrix out,
                                      const sr_short_conv *conv) {
    conv_job job = {.loops = sr_cpu_rows_of(backend),
                    .conv = conv,
                    .out = out,
                    .row_tiles = sr_tiles(out.rows, TILE_ROWS)};
    const int64_t tiles = sr_tiles(out.columns, TILE_COLUMNS) * job.row_tiles;
    sr_parallel(convolve, &job, tiles, backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_short_conv_backward(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                       float *d_bias, sr_matrix d_out, const sr_short_conv *conv) {
    conv_job job = {.loops = sr_cpu_rows_of(backend),
                    .conv = conv,
                    .out = d_out,
                    .d_x = d_x,
                    .d_weight = d_weight,
                    .d_bias = d_bias};
    sr_parallel(convolve_back, &job, sr_tiles(d_x.columns, TILE_COLUMNS), backend->threads);
    return SRNN_OK;
}

/* Adds what one token read of the tokens before its batch row. */
static void history_back(float *d_history, const conv_job *job, const conv_tile *tile,
                         int64_t batch, int64_t token) {
    const sr_short_conv *conv = job->conv;
    const int64_t row = batch * conv->T + token, past = conv->width - 1;
    for (int64_t j = token + 1; j <= past && conv->positions[row] >= j; j++)
        job->loops->multiply_add(d_history + (batch * past + past + token - j) * conv->x.columns +
                                     tile->first,
                                 tile->taps[j], sr_cpu_row(job->out, row) + tile->first,
                                 tile->columns);
}

srnn_status sr_cpu_short_conv_history_backward(sr_backend *backend, void *d_history,
                                               sr_matrix d_out, const sr_short_conv *conv) {
    const conv_job job = {.loops = sr_cpu_rows_of(backend), .conv = conv, .out = d_out};
    const int64_t C = conv->x.columns, past = conv->width - 1;
    conv_tile tile;
    for (int64_t index = 0; index < sr_tiles(C, TILE_COLUMNS); index++) {
        tile_load(&tile, conv, index);
        for (int64_t b = 0; b < d_out.rows / conv->T; b++)
            for (int64_t token = 0; token < sr_min(past, conv->T); token++)
                history_back(d_history, &job, &tile, b, token);
    }
    return SRNN_OK;
}

srnn_status sr_cpu_short_conv_history(sr_backend *backend, void *history,
                                      const sr_short_conv *conv) {
    (void)backend;
    const int64_t C = conv->x.columns, keep = conv->width - 1;
    const int64_t fresh = sr_min(conv->T, keep), old = keep - fresh;
    for (int64_t b = 0; b < conv->x.rows / conv->T; b++) {
        float *to = (float *)history + b * keep * C;
        const float *from = (const float *)conv->history + (b * keep + fresh) * C;
        memcpy(to, from, (size_t)(old * C) * sizeof *to);
        for (int64_t row = 0; row < fresh; row++)
            memcpy(to + (old + row) * C, sr_cpu_row(conv->x, (b + 1) * conv->T - fresh + row),
                   (size_t)C * sizeof *to);
    }
    return SRNN_OK;
}
