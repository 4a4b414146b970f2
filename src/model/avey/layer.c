/* layer.c: the mixer of an Avey block: rows made wider, some of their channels mixed between the
 * rows of a context, and made narrow again. */
#include "base/memory.h"
#include "base/threads.h"
#include "model/avey/avey.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

struct sr_avey_layer {
    sr_backend *backend;
    sr_avey avey;
    int64_t C, rows;
    int64_t wide, mixed, joined; /* channels: fE, of x0 and of x1, of what is joined */
};

/* What forward leaves and backward reads, or their gradients; all (rows, ..). */
typedef struct arrays {
    float *wide;    /* before the activation */
    float *active;  /* its square where it is positive: x0 | x1 | tail */
    float *unit;    /* x0 over its length */
    float *lengths; /* one number */
    float *sums;    /* of x0 over the rows of a context */
    float *joined;  /* sums x1 | tail */
} arrays;

enum { ARRAYS = 6 };

/* Where each array stands; returns the bytes of all. */
static size_t lay_out(size_t starts[ARRAYS], const sr_avey_layer *l) {
    const int64_t columns[ARRAYS] = {l->wide, l->wide, l->mixed, 1, l->mixed, l->joined};
    size_t bytes = 0;
    for (int i = 0; i < ARRAYS; i++) {
        const size_t size = (size_t)(l->rows * columns[i]) * sizeof(float);
        starts[i] = bytes;
        bytes += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return bytes;
}

static arrays arrays_at(const sr_avey_layer *l, void *base) {
    size_t starts[ARRAYS];
    float *at[ARRAYS];
    lay_out(starts, l);
    for (int i = 0; i < ARRAYS; i++)
        at[i] = (float *)(void *)((char *)base + starts[i]);
    return (arrays){at[0], at[1], at[2], at[3], at[4], at[5]};
}

srnn_status sr_avey_layer_create(sr_avey_layer **layer, sr_backend *backend, const sr_avey *avey,
                                 int C, int64_t rows) {
    void *memory;
    *layer = NULL;
    if (backend->number != SRNN_F32 || !sr_device_is_host(backend->device))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "avey is computed on the CPU, in float");
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **layer));
    *layer = memory;
    **layer = (sr_avey_layer){.backend = backend,
                              .avey = *avey,
                              .C = C,
                              .rows = rows,
                              .wide = (int64_t)avey->expansion * C,
                              .mixed = sr_avey_mixed(avey, C),
                              .joined = sr_avey_joined(avey, C)};
    return SRNN_OK;
}

void sr_avey_layer_free(sr_avey_layer *layer) {
    free(layer);
}

size_t sr_avey_layer_saved_bytes(const sr_avey_layer *layer) {
    size_t starts[ARRAYS];
    return lay_out(starts, layer);
}

size_t sr_avey_layer_scratch_bytes(const sr_avey_layer *layer) {
    return sr_avey_layer_saved_bytes(layer);
}

/* ---- forward */

typedef struct job {
    const sr_avey_layer *l;
    arrays in, d;
    const float *weight; /* (context, context) */
    float *d_weight;
} job;

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

static void activate(void *context, int64_t row, int worker) {
    (void)worker;
    static const double SMALL = 1e-8;
    const job *j = context;
    const sr_avey_layer *l = j->l;
    const float *wide = j->in.wide + row * l->wide;
    float *active = j->in.active + row * l->wide, *unit = j->in.unit + row * l->mixed;
    for (int64_t c = 0; c < l->wide; c++)
        active[c] = wide[c] > 0 ? wide[c] * wide[c] : 0;
    const double length = sqrt(dot(active, active, l->mixed) + SMALL);
    j->in.lengths[row] = (float)length;
    for (int64_t c = 0; c < l->mixed; c++)
        unit[c] = (float)((double)active[c] / length);
}

/* How much row i takes of row j of its context. */
static float weight_of(const job *j, int64_t first, int64_t i, int64_t other) {
    const sr_avey_layer *l = j->l;
    return j->weight[i * sr_avey_rows(&l->avey) + other] *
           (float)dot(j->in.unit + (first + i) * l->mixed, j->in.unit + (first + other) * l->mixed,
                      l->mixed);
}

static void mix(void *context, int64_t row, int worker) {
    (void)worker;
    const job *j = context;
    const sr_avey_layer *l = j->l;
    const int64_t rows = sr_avey_rows(&l->avey), first = row / rows * rows, i = row - first;
    const float *active = j->in.active + row * l->wide;
    float *sums = j->in.sums + row * l->mixed, *joined = j->in.joined + row * l->joined;
    memset(sums, 0, (size_t)l->mixed * sizeof *sums);
    for (int64_t other = 0; other <= i; other++)
        add_times(sums, j->in.active + (first + other) * l->wide, weight_of(j, first, i, other),
                  l->mixed);
    for (int64_t c = 0; c < l->mixed; c++)
        joined[c] = sums[c] * active[l->mixed + c];
    memcpy(joined + l->mixed, active + 2 * l->mixed,
           (size_t)(l->wide - 2 * l->mixed) * sizeof *joined);
}

static sr_matrix matrix(const sr_avey_layer *l, float *data, int64_t columns) {
    return sr_matrix_of(data, l->rows, columns, SRNN_F32);
}

srnn_status sr_avey_layer_attend(sr_avey_layer *l, sr_matrix x, const sr_layer_weights *weights,
                                 void *saved) {
    const sr_linear enricher = {weights->working->slot[SR_LAYER_PROJECTIONS],
                                weights->master->slot[SR_LAYER_PROJECTIONS + 1], l->wide};
    job j = {.l = l, .in = arrays_at(l, saved), .weight = weights->master->slot[SR_LAYER_SPATIAL]};
    SR_TRY(l->backend->linear_forward(l->backend, matrix(l, j.in.wide, l->wide), (sr_matrix){0}, x,
                                      &enricher, 1));
    sr_parallel(activate, &j, l->rows, l->backend->threads);
    sr_parallel(mix, &j, l->rows, l->backend->threads);
    return SRNN_OK;
}

static sr_linear fuser_of(const sr_avey_layer *l, const sr_layer_weights *weights) {
    return (sr_linear){weights->working->slot[SR_LAYER_OUTPUT],
                       weights->master->slot[SR_LAYER_OUTPUT + 1], l->C};
}

srnn_status sr_avey_layer_finish(sr_avey_layer *l, sr_matrix y, sr_matrix addend,
                                 const sr_layer_weights *weights, void *saved) {
    const arrays in = arrays_at(l, saved);
    const sr_linear fuser = fuser_of(l, weights);
    return l->backend->linear_forward(l->backend, y, addend, matrix(l, in.joined, l->joined),
                                      &fuser, 1);
}

/* ---- backward */

/* From d_joined to d_sums and the gradients of x1 and of the tail; x0's starts at zero. */
static void split_back(void *context, int64_t row, int worker) {
    (void)worker;
    const job *j = context;
    const sr_avey_layer *l = j->l;
    const float *d_joined = j->d.joined + row * l->joined, *sums = j->in.sums + row * l->mixed;
    const float *x1 = j->in.active + row * l->wide + l->mixed;
    float *d_active = j->d.active + row * l->wide, *d_sums = j->d.sums + row * l->mixed;
    memset(d_active, 0, (size_t)l->mixed * sizeof *d_active);
    for (int64_t c = 0; c < l->mixed; c++) {
        d_sums[c] = d_joined[c] * x1[c];
        d_active[l->mixed + c] = d_joined[c] * sums[c];
    }
    memcpy(d_active + 2 * l->mixed, d_joined + l->mixed,
           (size_t)(l->wide - 2 * l->mixed) * sizeof *d_active);
}

/* One context: the gradients of x0 and of its unit vectors. */
static void mix_back(void *context, int64_t group, int worker) {
    (void)worker;
    const job *j = context;
    const sr_avey_layer *l = j->l;
    const int64_t rows = sr_avey_rows(&l->avey), first = group * rows, n = l->mixed;
    memset(j->d.unit + first * n, 0, (size_t)(rows * n) * sizeof *j->d.unit);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t other = 0; other <= i; other++) {
            const float *d_sums = j->d.sums + (first + i) * n;
            const float *x0 = j->in.active + (first + other) * l->wide;
            const float d_cosine = (float)dot(d_sums, x0, n) * j->weight[i * rows + other];
            add_times(j->d.active + (first + other) * l->wide, d_sums,
                      weight_of(j, first, i, other), n);
            add_times(j->d.unit + (first + i) * n, j->in.unit + (first + other) * n, d_cosine, n);
            add_times(j->d.unit + (first + other) * n, j->in.unit + (first + i) * n, d_cosine, n);
        }
}

/* One row of the gradient of the weights, summed over all contexts. */
static void weight_back(void *context, int64_t i, int worker) {
    (void)worker;
    const job *j = context;
    const sr_avey_layer *l = j->l;
    const int64_t rows = sr_avey_rows(&l->avey), n = l->mixed;
    for (int64_t first = 0; first < l->rows; first += rows)
        for (int64_t other = 0; other <= i; other++)
            j->d_weight[i * rows + other] +=
                (float)(dot(j->d.sums + (first + i) * n, j->in.active + (first + other) * l->wide,
                            n) *
                        dot(j->in.unit + (first + i) * n, j->in.unit + (first + other) * n, n));
}

/* From the gradients of the unit vectors and the activated rows to that before the activation. */
static void activate_back(void *context, int64_t row, int worker) {
    (void)worker;
    const job *j = context;
    const sr_avey_layer *l = j->l;
    const float *unit = j->in.unit + row * l->mixed, *wide = j->in.wide + row * l->wide;
    const float *d_unit = j->d.unit + row * l->mixed;
    float *d_active = j->d.active + row * l->wide, *d_wide = j->d.wide + row * l->wide;
    const double along = dot(unit, d_unit, l->mixed), length = (double)j->in.lengths[row];
    for (int64_t c = 0; c < l->mixed; c++)
        d_active[c] += (float)(((double)d_unit[c] - along * (double)unit[c]) / length);
    for (int64_t c = 0; c < l->wide; c++)
        d_wide[c] = wide[c] > 0 ? 2 * wide[c] * d_active[c] : 0;
}

/* Its parameters are forward's, and a gradient for each. */
srnn_status sr_avey_layer_backward(sr_avey_layer *l, sr_matrix d_x,
                                   const sr_layer_pointers *gradients, sr_matrix d_y, sr_matrix x,
                                   const sr_layer_weights *weights, void *saved, void *scratch) {
    sr_backend *backend = l->backend;
    const sr_linear fuser = fuser_of(l, weights);
    const sr_linear_gradient d_fuser = {gradients->slot[SR_LAYER_OUTPUT],
                                        gradients->slot[SR_LAYER_OUTPUT + 1], l->C};
    const sr_linear enricher = {weights->working->slot[SR_LAYER_PROJECTIONS],
                                weights->master->slot[SR_LAYER_PROJECTIONS + 1], l->wide};
    const sr_linear_gradient d_enricher = {gradients->slot[SR_LAYER_PROJECTIONS],
                                           gradients->slot[SR_LAYER_PROJECTIONS + 1], l->wide};
    job j = {.l = l,
             .in = arrays_at(l, saved),
             .d = arrays_at(l, scratch),
             .weight = weights->master->slot[SR_LAYER_SPATIAL],
             .d_weight = gradients->slot[SR_LAYER_SPATIAL]};
    const sr_matrix d_joined = matrix(l, j.d.joined, l->joined);
    SR_TRY(backend->linear_backward_input(backend, d_joined, d_y, &fuser, 1));
    SR_TRY(backend->linear_backward_weight(backend, &d_fuser, 1, d_y,
                                           matrix(l, j.in.joined, l->joined)));
    sr_parallel(split_back, &j, l->rows, backend->threads);
    sr_parallel(mix_back, &j, l->rows / sr_avey_rows(&l->avey), backend->threads);
    sr_parallel(weight_back, &j, sr_avey_rows(&l->avey), backend->threads);
    sr_parallel(activate_back, &j, l->rows, backend->threads);
    const sr_matrix d_wide = matrix(l, j.d.wide, l->wide);
    SR_TRY(backend->linear_backward_input(backend, d_x, d_wide, &enricher, 1));
    return backend->linear_backward_weight(backend, &d_enricher, 1, d_wide, x);
}
