/* muon.c: Muon for the matrices of a model's layers. */
#include "train/muon.h"

#include "base/memory.h"
#include "train/parallel/shares.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Five steps of X = (a I + b X X^T + c (X X^T)^2) X bring all singular values near 1. */
enum { STEPS = 5 };
static const float factors[3] = {3.4445F, -4.7750F, 2.0315F};
static const double step_size = 0.2;

struct sr_muon {
    const sr_model *model;
    sr_muon_settings settings;
    sr_learning others;
    int64_t *bounds;         /* (ranks + 1) */
    size_t numbers, squares; /* elements of the largest matrix, and of its shorter side squared */
    /* Device memory. In the number type: X, its successor (numbers), X X^T, the polynomial
     * (squares); in float: its square (squares). The stats hold a matrix's sum of squares. */
    void *x, *next, *product, *polynomial;
    float *square;
    sr_step_stats *norm;
};

/* The biases of a mixture's experts lie side by side, which makes no matrix of them. */
static bool is_bias(const sr_tensor_spec *spec) {
    static const char end[] = ".bias";
    const size_t length = strlen(spec->name);
    return length > strlen(end) && strcmp(spec->name + length - strlen(end), end) == 0;
}

/* Embedding and head use AdamW, as in the authors' code. */
static bool takes(const sr_tensor_spec *spec) {
    return spec->rank == 2 && !is_bias(spec) &&
           (strncmp(spec->name, "model.layers.", 13) == 0 ||
            strncmp(spec->name, "model.blocks.", 13) == 0);
}

static int64_t shorter_side(const sr_tensor_spec *spec) {
    return spec->shape[0] < spec->shape[1] ? spec->shape[0] : spec->shape[1];
}

static int64_t longer_side(const sr_tensor_spec *spec) {
    return spec->shape[0] < spec->shape[1] ? spec->shape[1] : spec->shape[0];
}

/* Gaps between tensors belong to the tensor before them. */
static void find_others(sr_learning *others, const sr_tensor_table *table) {
    int64_t from = 0;
    for (size_t i = 0; i <= table->count; i++) {
        const bool last = i == table->count;
        if (!last && !takes(&table->specs[i]))
            continue;
        const int64_t end = (int64_t)(last ? table->numbers : table->specs[i].start);
        if (end > from)
            others->learns[others->learns_count++] = (sr_share){from, from, end - from};
        if (!last)
            from = (int64_t)(table->specs[i].start + table->specs[i].count);
    }
}

/* ---- which rank makes which matrices orthogonal */

/* Multiplications of one step of the iteration. */
static double cost_of(const sr_tensor_spec *spec) {
    const double side = (double)shorter_side(spec);
    return takes(spec) ? side * side * (2 * (double)longer_side(spec) + side) : 0;
}

/* Consecutive matrices of about the same cost for each rank: a matrix belongs to the rank in whose
 * part of the whole its middle lies. */
static void divide(sr_muon *muon, const sr_tensor_table *table) {
    const int ranks = muon->settings.ranks;
    double all = 0, before = 0;
    int next = 1;
    for (size_t i = 0; i < table->count; i++)
        all += cost_of(&table->specs[i]);
    for (size_t i = 0; i < table->count; i++) {
        const double cost = cost_of(&table->specs[i]);
        const int rank = cost > 0 ? (int)((before + cost / 2) / all * ranks) : 0;
        for (; next <= rank; next++)
            muon->bounds[next] = (int64_t)table->specs[i].start;
        before += cost;
    }
    for (; next <= ranks; next++)
        muon->bounds[next] = (int64_t)table->numbers;
}

/* ---- making */

static srnn_status take_device(const sr_muon *muon, void *out, size_t bytes) {
    void *memory;
    SR_TRY(sr_device_allocate(muon->model->backend->device, &memory, bytes));
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

static srnn_status take_lists(sr_muon *muon, const sr_tensor_table *table) {
    void *memory;
    SR_TRY(sr_alloc(&memory, table->count + 1, sizeof *muon->others.learns));
    muon->others.learns = memory;
    find_others(&muon->others, table);
    SR_TRY(sr_alloc_zero(&memory, (size_t)muon->settings.ranks + 1, sizeof *muon->bounds));
    muon->bounds = memory;
    divide(muon, table);
    return SRNN_OK;
}

static srnn_status fill(sr_muon *muon) {
    const sr_tensor_table *table = &muon->model->table;
    const size_t bytes = sr_element_bytes(muon->model->backend->number);
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        const size_t squares = takes(spec) ? (size_t)(shorter_side(spec) * shorter_side(spec)) : 0;
        if (takes(spec) && spec->count > muon->numbers)
            muon->numbers = spec->count;
        muon->squares = squares > muon->squares ? squares : muon->squares;
    }
    SR_TRY(take_lists(muon, table));
    SR_TRY(take_device(muon, &muon->x, muon->numbers * bytes));
    SR_TRY(take_device(muon, &muon->next, muon->numbers * bytes));
    SR_TRY(take_device(muon, &muon->product, muon->squares * bytes));
    SR_TRY(take_device(muon, &muon->polynomial, muon->squares * bytes));
    SR_TRY(take_device(muon, &muon->square, muon->squares * sizeof(float)));
    return take_device(muon, &muon->norm, sizeof *muon->norm);
}

srnn_status sr_muon_create(sr_muon **muon, const sr_model *model,
                           const sr_muon_settings *settings) {
    void *memory;
    *muon = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **muon));
    sr_muon *created = memory;
    created->model = model;
    created->settings = *settings;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_muon_free(created);
        return status;
    }
    *muon = created;
    return SRNN_OK;
}

void sr_muon_free(sr_muon *muon) {
    if (!muon)
        return;
    srnn_device *device = muon->model->backend->device;
    sr_learning_free(&muon->others);
    free(muon->bounds);
    sr_device_release(device, muon->x);
    sr_device_release(device, muon->next);
    sr_device_release(device, muon->product);
    sr_device_release(device, muon->polynomial);
    sr_device_release(device, muon->square);
    sr_device_release(device, muon->norm);
    free(muon);
}

size_t sr_muon_bytes(const sr_muon *muon) {
    const size_t bytes = sr_element_bytes(muon->model->backend->number);
    return 2 * (muon->numbers + muon->squares) * bytes + muon->squares * sizeof(float);
}

const sr_learning *sr_muon_others(const sr_muon *muon) {
    return &muon->others;
}

const int64_t *sr_muon_bounds(const sr_muon *muon) {
    return muon->bounds;
}

/* ---- shards of matrices */

typedef srnn_status part_op(sr_backend *backend, const sr_step_stats *stats,
                            const sr_muon_part *part);

/* The part of a matrix that lies in a shard, if any. */
static srnn_status visit(const sr_muon *muon, const sr_muon_arrays *a, const sr_tensor_spec *spec,
                         const sr_share *share, part_op *op) {
    const sr_model *model = muon->model;
    const bool decays = muon->settings.decay_all || !spec->undecayed;
    const sr_share tensor = {.first = (int64_t)spec->start, .count = (int64_t)spec->count};
    const sr_share common = sr_share_common(&tensor, share);
    if (common.count == 0)
        return SRNN_OK;
    const int64_t first = tensor.first + common.first, at = common.at;
    return op(model->backend, a->stats,
              &(sr_muon_part){
                  .weight = a->weight ? a->weight + at : model->weights + first,
                  .mean = a->mean + at,
                  .gradient = a->gradient + at,
                  .direction = a->direction + first,
                  .working = sr_number_at(model->working, first, model->backend->number),
                  .n = common.count,
                  .momentum = muon->settings.momentum,
                  .weight_decay = decays ? muon->settings.weight_decay : 0,
                  .step_size = step_size * sqrt((double)longer_side(spec)),
              });
}

static srnn_status visit_all(const sr_muon *muon, const sr_muon_arrays *arrays, part_op *op) {
    const sr_tensor_table *table = &muon->model->table;
    for (size_t s = 0; s < arrays->share_count; s++)
        for (size_t i = 0; i < table->count; i++)
            if (takes(&table->specs[i]))
                SR_TRY(visit(muon, arrays, &table->specs[i], &arrays->shares[s], op));
    return SRNN_OK;
}

srnn_status sr_muon_directions(const sr_muon *muon, const sr_muon_arrays *arrays) {
    return visit_all(muon, arrays, muon->model->backend->muon_direction);
}

srnn_status sr_muon_update(const sr_muon *muon, const sr_muon_arrays *arrays) {
    return visit_all(muon, arrays, muon->model->backend->muon_update);
}

/* ---- Newton-Schulz */

/* The product of x (rows, columns) with itself over its longer side: x x^T, or x^T x. */
static srnn_status multiply_by_itself(sr_muon *muon, sr_matrix product, sr_matrix x) {
    sr_backend *backend = muon->model->backend;
    const int64_t n = product.rows;
    if (x.rows <= x.columns)
        return backend->linear_forward(backend, product, (sr_matrix){0}, x,
                                       &(sr_linear){.weight = x.data, .N = n}, 1);
    SR_TRY(sr_device_zero(backend->device, muon->square, (size_t)(n * n) * sizeof(float)));
    SR_TRY(backend->linear_backward_weight(backend,
                                           &(sr_linear_gradient){.weight = muon->square, .N = n}, 1,
                                           x, x));
    return backend->narrow(backend, product.data, muon->square, n * n);
}

/* next = polynomial x, or x polynomial, whichever fits. */
static srnn_status multiply_by_polynomial(sr_muon *muon, sr_matrix next, sr_matrix polynomial,
                                          sr_matrix x) {
    sr_backend *backend = muon->model->backend;
    if (x.rows <= x.columns)
        return backend->linear_backward_input(backend, next, polynomial,
                                              &(sr_linear){.weight = x.data, .N = x.rows}, 1);
    return backend->linear_forward(backend, next, (sr_matrix){0}, x,
                                   &(sr_linear){.weight = polynomial.data, .N = x.columns}, 1);
}

static srnn_status iterate(sr_muon *muon, sr_matrix *x, sr_matrix *next) {
    sr_backend *backend = muon->model->backend;
    const int64_t n = x->rows <= x->columns ? x->rows : x->columns;
    const sr_matrix product = sr_matrix_of(muon->product, n, n, backend->number);
    const sr_matrix polynomial = sr_matrix_of(muon->polynomial, n, n, backend->number);
    const sr_matrix square = sr_matrix_of(muon->square, n, n, SRNN_F32), out = *next;
    SR_TRY(multiply_by_itself(muon, product, *x));
    SR_TRY(backend->linear_forward(backend, square, (sr_matrix){0}, product,
                                   &(sr_linear){.weight = product.data, .N = n}, 1));
    SR_TRY(backend->muon_polynomial(backend, polynomial, product, muon->square, factors));
    SR_TRY(multiply_by_polynomial(muon, out, polynomial, *x));
    *next = *x;
    *x = out;
    return SRNN_OK;
}

/* The direction (the matrix's numbers) becomes nearly orthogonal. */
static srnn_status orthogonalise(sr_muon *muon, const sr_tensor_spec *spec, float *direction) {
    sr_backend *backend = muon->model->backend;
    const int64_t n = (int64_t)spec->count;
    sr_matrix x = sr_matrix_of(muon->x, spec->shape[0], spec->shape[1], backend->number);
    sr_matrix next = sr_matrix_of(muon->next, spec->shape[0], spec->shape[1], backend->number);
    SR_TRY(backend->stats_squares(backend, muon->norm, direction, n));
    SR_TRY(backend->muon_normalise(backend, x.data, muon->norm, direction, n));
    for (int step = 0; step < STEPS; step++)
        SR_TRY(iterate(muon, &x, &next));
    return backend->widen(backend, direction, x.data, n);
}

srnn_status sr_muon_orthogonalise(sr_muon *muon, float *direction) {
    const sr_tensor_table *table = &muon->model->table;
    const int64_t *bounds = muon->bounds + muon->settings.rank;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        const int64_t start = (int64_t)spec->start;
        if (takes(spec) && start >= bounds[0] && start < bounds[1])
            SR_TRY(orthogonalise(muon, spec, direction + start));
    }
    return SRNN_OK;
}
