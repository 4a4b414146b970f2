/* context_mix.c: Avey's contextualizer: mixes the rows of each context. */
#include "base/threads.h"
#include "ops/cpu/backend.h"

#include <math.h>
#include <string.h>

enum { ALIGNMENT = 64 };

/* Saved by forward for backward, or their gradients; all (rows, ..). */
typedef struct arrays {
    float *active;  /* relu(x)^2: x0 | x1 | tail */
    float *unit;    /* x0 over its length */
    float *lengths; /* one number */
    float *sums;    /* of x0 over the rows of a context */
} arrays;

enum { ARRAYS = 4 };

typedef struct mix_job {
    const sr_context_mix *mix;
    arrays in, d;
    sr_matrix out, d_x; /* or the gradient of out */
    float *d_weight;
} mix_job;

/* Sets the offset of each array; returns the total bytes. */
static size_t lay_out(size_t starts[ARRAYS], const sr_context_mix *mix) {
    const int64_t columns[ARRAYS] = {mix->x.columns, mix->mixed, 1, mix->mixed};
    size_t bytes = 0;
    for (int i = 0; i < ARRAYS; i++) {
        const size_t size = (size_t)(mix->x.rows * columns[i]) * sizeof(float);
        starts[i] = bytes;
        bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return bytes;
}

static arrays arrays_at(const sr_context_mix *mix, void *base) {
    size_t starts[ARRAYS];
    float *at[ARRAYS];
    lay_out(starts, mix);
    for (int i = 0; i < ARRAYS; i++)
        at[i] = (float *)(void *)((char *)base + starts[i]);
    return (arrays){at[0], at[1], at[2], at[3]};
}

size_t sr_cpu_context_mix_bytes(const sr_backend *backend, const sr_context_mix *mix) {
    (void)backend;
    size_t starts[ARRAYS];
    return lay_out(starts, mix);
}

static double dot(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += (double)x[c] * (double)y[c];
    return sum;
}

static void add_times(float *to, const float *x, float factor, int64_t n) {
    for (int64_t c = 0; c < n; c++)
        to[c] += factor * x[c];
}

/* ---- forward */

static void activate(void *context, int64_t row, int worker) {
    (void)worker;
    static const double SMALL = 1e-8;
    const mix_job *j = context;
    const int64_t wide = j->mix->x.columns, mixed = j->mix->mixed;
    const float *x = sr_cpu_row(j->mix->x, row);
    float *active = j->in.active + row * wide, *unit = j->in.unit + row * mixed;
    for (int64_t c = 0; c < wide; c++)
        active[c] = x[c] > 0 ? x[c] * x[c] : 0;
    const double length = sqrt(dot(active, active, mixed) + SMALL);
    j->in.lengths[row] = (float)length;
    for (int64_t c = 0; c < mixed; c++)
        unit[c] = (float)((double)active[c] / length);
}

/* The weight of row `other` in the sum of row i of its context. */
static float weight_of(const mix_job *j, int64_t first, int64_t i, int64_t other) {
    const int64_t mixed = j->mix->mixed;
    return j->mix->weight[i * j->mix->context + other] *
           (float)dot(j->in.unit + (first + i) * mixed, j->in.unit + (first + other) * mixed,
                      mixed);
}

static void mix_row(void *context, int64_t row, int worker) {
    (void)worker;
    const mix_job *j = context;
    const int64_t wide = j->mix->x.columns, mixed = j->mix->mixed;
    const int64_t first = row / j->mix->context * j->mix->context, i = row - first;
    const float *active = j->in.active + row * wide;
    float *sums = j->in.sums + row * mixed, *out = sr_cpu_row(j->out, row);
    memset(sums, 0, (size_t)mixed * sizeof *sums);
    for (int64_t other = 0; other <= i; other++)
        add_times(sums, j->in.active + (first + other) * wide, weight_of(j, first, i, other),
                  mixed);
    for (int64_t c = 0; c < mixed; c++)
        out[c] = sums[c] * active[mixed + c];
    memcpy(out + mixed, active + 2 * mixed, (size_t)(wide - 2 * mixed) * sizeof *out);
}

srnn_status sr_cpu_context_mix_forward(sr_backend *backend, sr_matrix out,
                                       const sr_context_mix *mix) {
    mix_job j = {.mix = mix, .in = arrays_at(mix, mix->saved), .out = out};
    sr_parallel(activate, &j, mix->x.rows, backend->threads);
    sr_parallel(mix_row, &j, mix->x.rows, backend->threads);
    return SRNN_OK;
}

/* ---- backward */

/* From the gradient of out to d_sums and the gradients of x1 and of the tail; x0's starts at
 * zero. */
static void split_back(void *context, int64_t row, int worker) {
    (void)worker;
    const mix_job *j = context;
    const int64_t wide = j->mix->x.columns, mixed = j->mix->mixed;
    const float *d_out = sr_cpu_row(j->out, row), *sums = j->in.sums + row * mixed;
    const float *x1 = j->in.active + row * wide + mixed;
    float *d_active = j->d.active + row * wide, *d_sums = j->d.sums + row * mixed;
    memset(d_active, 0, (size_t)mixed * sizeof *d_active);
    for (int64_t c = 0; c < mixed; c++) {
        d_sums[c] = d_out[c] * x1[c];
        d_active[mixed + c] = d_out[c] * sums[c];
    }
    memcpy(d_active + 2 * mixed, d_out + mixed, (size_t)(wide - 2 * mixed) * sizeof *d_active);
}

/* One context: the gradients of x0 and of its unit vectors. */
static void mix_back(void *context, int64_t group, int worker) {
    (void)worker;
    const mix_job *j = context;
    const int64_t wide = j->mix->x.columns, n = j->mix->mixed;
    const int64_t rows = j->mix->context, first = group * rows;
    memset(j->d.unit + first * n, 0, (size_t)(rows * n) * sizeof *j->d.unit);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t other = 0; other <= i; other++) {
            const float *d_sums = j->d.sums + (first + i) * n;
            const float *x0 = j->in.active + (first + other) * wide;
            const float d_cosine = (float)dot(d_sums, x0, n) * j->mix->weight[i * rows + other];
            add_times(j->d.active + (first + other) * wide, d_sums, weight_of(j, first, i, other),
                      n);
            add_times(j->d.unit + (first + i) * n, j->in.unit + (first + other) * n, d_cosine, n);
            add_times(j->d.unit + (first + other) * n, j->in.unit + (first + i) * n, d_cosine, n);
        }
}

/* One row of the gradient of the weights, summed over all contexts. */
static void weight_back(void *context, int64_t i, int worker) {
    (void)worker;
    const mix_job *j = context;
    const int64_t rows = j->mix->context, n = j->mix->mixed, wide = j->mix->x.columns;
    for (int64_t first = 0; first < j->mix->x.rows; first += rows)
        for (int64_t other = 0; other <= i; other++)
            j->d_weight[i * rows + other] +=
                (float)(dot(j->d.sums + (first + i) * n, j->in.active + (first + other) * wide, n) *
                        dot(j->in.unit + (first + i) * n, j->in.unit + (first + other) * n, n));
}

/* From the gradients of the unit vectors and the activated rows to that before the activation. */
static void activate_back(void *context, int64_t row, int worker) {
    (void)worker;
    const mix_job *j = context;
    const int64_t wide = j->mix->x.columns, mixed = j->mix->mixed;
    const float *unit = j->in.unit + row * mixed, *x = sr_cpu_row(j->mix->x, row);
    const float *d_unit = j->d.unit + row * mixed;
    float *d_active = j->d.active + row * wide, *d_x = sr_cpu_row(j->d_x, row);
    const double along = dot(unit, d_unit, mixed), length = (double)j->in.lengths[row];
    for (int64_t c = 0; c < mixed; c++)
        d_active[c] += (float)(((double)d_unit[c] - along * (double)unit[c]) / length);
    for (int64_t c = 0; c < wide; c++)
        d_x[c] = x[c] > 0 ? 2 * x[c] * d_active[c] : 0;
}

srnn_status sr_cpu_context_mix_backward(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                        sr_matrix d_out, const sr_context_mix *mix, void *scratch) {
    mix_job j = {.mix = mix,
                 .in = arrays_at(mix, mix->saved),
                 .d = arrays_at(mix, scratch),
                 .out = d_out,
                 .d_x = d_x,
                 .d_weight = d_weight};
    sr_parallel(split_back, &j, mix->x.rows, backend->threads);
    sr_parallel(mix_back, &j, mix->x.rows / mix->context, backend->threads);
    sr_parallel(weight_back, &j, mix->context, backend->threads);
    sr_parallel(activate_back, &j, mix->x.rows, backend->threads);
    return SRNN_OK;
}
