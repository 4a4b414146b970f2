/* embed.c: embedding lookup, and its gradient. */
#include "base/bf16.h"
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <string.h>

enum { TILE_ROWS = 128, TILE_COLUMNS = 16 }; /* a cache line of columns: no two tasks share one */

typedef struct embedding {
    sr_matrix rows, weight;
    float *d_weight;
    const int32_t *ids;
} embedding;

static void copy_token(float *to, sr_matrix weight, int64_t token) {
    const int64_t C = weight.columns;
    const uint16_t *narrow = (const uint16_t *)weight.data + token * C;
    if (weight.dtype == SRNN_F32)
        memcpy(to, (const float *)weight.data + token * C, (size_t)C * sizeof *to);
    for (int64_t c = 0; weight.dtype != SRNN_F32 && c < C; c++)
        to[c] = sr_bf16_float(narrow[c]);
}

static void copy_rows(void *context, int64_t task, int worker) {
    (void)worker;
    const embedding *job = context;
    const int64_t C = job->rows.columns;
    const int64_t end = sr_min((task + 1) * TILE_ROWS, job->rows.rows);
    for (int64_t row = task * TILE_ROWS; row < end; row++) {
        float *to = sr_cpu_row(job->rows, row);
        if (job->ids[row] < 0)
            memset(to, 0, (size_t)C * sizeof *to);
        else
            copy_token(to, job->weight, job->ids[row]);
    }
}

/* A task owns some columns of every row, so that the order of summation is fixed and no two tasks
 * write the same number. */
static void add_columns(void *context, int64_t task, int worker) {
    (void)worker;
    const embedding *job = context;
    const int64_t C = job->rows.columns;
    const int64_t first = task * TILE_COLUMNS, end = sr_min(first + TILE_COLUMNS, C);
    for (int64_t row = 0; row < job->rows.rows; row++) {
        if (job->ids[row] < 0)
            continue;
        float *restrict to = job->d_weight + job->ids[row] * C;
        const float *restrict from = sr_cpu_row(job->rows, row);
        for (int64_t c = first; c < end; c++)
            to[c] += from[c];
    }
}

srnn_status sr_cpu_embed_forward(sr_backend *backend, sr_matrix out, sr_matrix weight,
                                 const int32_t *ids) {
    embedding job = {.rows = out, .weight = weight, .ids = ids};
    sr_parallel(copy_rows, &job, sr_tiles(out.rows, TILE_ROWS), backend->threads);
    return SRNN_OK;
}

srnn_status sr_cpu_embed_backward(sr_backend *backend, float *d_weight, sr_matrix d_out,
                                  const int32_t *ids) {
    embedding job = {.rows = d_out, .d_weight = d_weight, .ids = ids};
    sr_parallel(add_columns, &job, sr_tiles(d_out.columns, TILE_COLUMNS), backend->threads);
    return SRNN_OK;
}
