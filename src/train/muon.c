/* muon.c: Muon for the matrices of a model's layers. */
#include "train/muon.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Five steps of X = a X + (b X X^T + c (X X^T)^2) X bring all singular values near 1. */
enum { STEPS = 5 };
static const float a = 3.4445F, b = -4.7750F, c = 2.0315F;
static const double tiny_norm = 1e-7, step_size = 0.2;

struct sr_muon {
    sr_muon_settings settings;
    sr_backend *backend; /* float, for products */
    bool owns_backend;
    sr_number_range *others; /* (other_count) */
    size_t other_count;
    size_t numbers, squares; /* elements of the largest matrix, and of its shorter side squared */
    float *x, *y;            /* (numbers) */
    float *product, *square; /* (squares) */
};

/* Embedding and head use AdamW, as in the authors' code. */
static bool takes(const sr_tensor_spec *spec) {
    return spec->rank == 2 && (strncmp(spec->name, "model.layers.", 13) == 0 ||
                               strncmp(spec->name, "model.blocks.", 13) == 0);
}

static int64_t shorter_side(const sr_tensor_spec *spec) {
    return spec->shape[0] < spec->shape[1] ? spec->shape[0] : spec->shape[1];
}

static int64_t longer_side(const sr_tensor_spec *spec) {
    return spec->shape[0] < spec->shape[1] ? spec->shape[1] : spec->shape[0];
}

/* Gaps between tensors belong to the tensor before them. */
static void find_others(sr_muon *muon, const sr_tensor_table *table) {
    int64_t from = 0;
    for (size_t i = 0; i <= table->count; i++) {
        const bool last = i == table->count;
        if (!last && !takes(&table->specs[i]))
            continue;
        const int64_t end = (int64_t)(last ? table->numbers : table->specs[i].start);
        if (end > from)
            muon->others[muon->other_count++] = (sr_number_range){from, end};
        if (!last)
            from = (int64_t)(table->specs[i].start + table->specs[i].count);
    }
}

static srnn_status take(float **out, size_t count) {
    void *memory;
    SR_TRY(sr_alloc(&memory, count, sizeof(float)));
    *out = memory;
    return SRNN_OK;
}

static srnn_status fill(sr_muon *muon, const sr_model *model) {
    const sr_tensor_table *table = &model->table;
    void *memory;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        const size_t squares = takes(spec) ? (size_t)(shorter_side(spec) * shorter_side(spec)) : 0;
        if (takes(spec) && spec->count > muon->numbers)
            muon->numbers = spec->count;
        muon->squares = squares > muon->squares ? squares : muon->squares;
    }
    SR_TRY(sr_alloc(&memory, table->count + 1, sizeof *muon->others));
    muon->others = memory;
    find_others(muon, table);
    SR_TRY(take(&muon->x, muon->numbers));
    SR_TRY(take(&muon->y, muon->numbers));
    SR_TRY(take(&muon->product, muon->squares));
    SR_TRY(take(&muon->square, muon->squares));
    muon->backend = model->backend;
    if (model->backend->number == SRNN_F32)
        return SRNN_OK;
    const sr_backend_settings numbers = {.threads = model->backend->threads};
    muon->owns_backend = true;
    return sr_backend_create(&muon->backend, &numbers);
}

srnn_status sr_muon_create(sr_muon **muon, const sr_model *model,
                           const sr_muon_settings *settings) {
    void *memory;
    *muon = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **muon));
    sr_muon *created = memory;
    created->settings = *settings;
    const srnn_status status = fill(created, model);
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
    if (muon->owns_backend)
        sr_backend_free(muon->backend);
    free(muon->others);
    free(muon->x);
    free(muon->y);
    free(muon->product);
    free(muon->square);
    free(muon);
}

size_t sr_muon_bytes(const sr_muon *muon) {
    return 2 * (muon->numbers + muon->squares) * sizeof(float);
}

const sr_number_range *sr_muon_others(const sr_muon *muon, size_t *count) {
    *count = muon->other_count;
    return muon->others;
}

/* The layout of x, whose rows are the shorter side, in a matrix: element (r, c) is at r * row + c *
 * column. */
typedef struct layout {
    int64_t row, column;
} layout;

static layout layout_of(const sr_tensor_spec *spec) {
    const int64_t rows = spec->shape[0], columns = spec->shape[1];
    return rows <= columns ? (layout){columns, 1} : (layout){1, rows};
}

/* Updates the momentum; x = its direction, divided by its norm. */
static void take_direction(sr_muon *muon, const sr_tensor_spec *spec, float *mean,
                           const float *gradient, double scale) {
    const float momentum = (float)muon->settings.momentum, scaled = (float)scale;
    const float fresh = (float)(1 - muon->settings.momentum);
    const layout at = layout_of(spec);
    double squares = 0;
    for (int64_t row = 0, i = 0; row < spec->shape[0]; row++)
        for (int64_t column = 0; column < spec->shape[1]; column++, i++) {
            const float g = scaled * gradient[i];
            mean[i] = momentum * mean[i] + fresh * g;
            const float u = momentum * mean[i] + fresh * g;
            muon->x[row * at.row + column * at.column] = u;
            squares += (double)u * (double)u;
        }
    const float inverse = (float)(1 / (sqrt(squares) + tiny_norm));
    for (size_t i = 0; i < spec->count; i++)
        muon->x[i] *= inverse;
}

/* x (rows, columns) becomes nearly orthogonal. */
static srnn_status orthogonalise(sr_muon *muon, int64_t rows, int64_t columns) {
    sr_backend *backend = muon->backend;
    const sr_matrix none = {0}, x = sr_matrix_of(muon->x, rows, columns, SRNN_F32);
    const sr_matrix y = sr_matrix_of(muon->y, rows, columns, SRNN_F32);
    const sr_matrix product = sr_matrix_of(muon->product, rows, rows, SRNN_F32);
    const sr_matrix square = sr_matrix_of(muon->square, rows, rows, SRNN_F32);
    const sr_linear by_x = {.weight = muon->x, .N = rows};
    const sr_linear by_product = {.weight = muon->product, .N = rows};
    for (int step = 0; step < STEPS; step++) {
        SR_TRY(backend->linear_forward(backend, product, none, x, &by_x, 1));
        SR_TRY(backend->linear_forward(backend, square, none, product, &by_product, 1));
        for (int64_t i = 0; i < rows * rows; i++)
            muon->square[i] = b * muon->product[i] + c * muon->square[i];
        SR_TRY(backend->linear_backward_input(backend, y, square, &by_x, 1));
        for (int64_t i = 0; i < rows * columns; i++)
            muon->x[i] = a * muon->x[i] + muon->y[i];
    }
    return SRNN_OK;
}

static srnn_status update(sr_muon *muon, sr_model *model, const sr_tensor_spec *spec,
                          double learning_rate) {
    const bool decays = muon->settings.decay_all || !spec->undecayed;
    const float keep = (float)(1 - learning_rate * (decays ? muon->settings.weight_decay : 0));
    const float by = (float)(learning_rate * step_size * sqrt((double)longer_side(spec)));
    const int64_t start = (int64_t)spec->start;
    const layout at = layout_of(spec);
    float *weight = model->weights + start;
    for (int64_t row = 0, i = 0; row < spec->shape[0]; row++)
        for (int64_t column = 0; column < spec->shape[1]; column++, i++)
            weight[i] = keep * weight[i] - by * muon->x[row * at.row + column * at.column];
    if (model->working == model->weights)
        return SRNN_OK;
    void *working = sr_number_at(model->working, start, model->backend->number);
    return model->backend->narrow(model->backend, working, weight, (int64_t)spec->count);
}

srnn_status sr_muon_update(sr_muon *muon, sr_model *model, float *mean, const float *gradient,
                           double scale, double learning_rate) {
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (!takes(spec))
            continue;
        take_direction(muon, spec, mean + spec->start, gradient + spec->start, scale);
        SR_TRY(orthogonalise(muon, shorter_side(spec), longer_side(spec)));
        SR_TRY(update(muon, model, spec, learning_rate));
    }
    return SRNN_OK;
}
