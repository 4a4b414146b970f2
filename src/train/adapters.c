/* adapters.c: low-rank adapters of a model's matrices. */
#include "train/adapters.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which matrices */

static bool is_adapted(const sr_tensor_spec *spec, const bool *attention_of) {
    static const char end[] = ".weight";
    const size_t length = strlen(spec->name);
    if (spec->rank != 2 || spec->slot >= SR_BLOCK_SLOTS || length <= strlen(end) ||
        strcmp(spec->name + length - strlen(end), end) != 0)
        return false;
    return !attention_of || (spec->slot < SR_MIXER_SLOTS && attention_of[spec->layer]);
}

/* Adds "NAME.lora_A.weight" or B; *start: its first number. */
static srnn_status add_factor(sr_adapters *a, size_t *start, const sr_tensor_spec *of,
                              const char *name, int64_t rows) {
    sr_tensor_spec spec = {.rank = 2,
                           .shape = {rows, a->rank},
                           .initialiser = *name == 'A' ? SR_INIT_NORMAL : SR_INIT_CONSTANT};
    const int length = snprintf(spec.name, sizeof spec.name, "%.*s.lora_%s.weight",
                                (int)(strlen(of->name) - strlen(".weight")), of->name, name);
    if (length >= (int)sizeof spec.name)
        return SR_FAIL(SRNN_ERR_LIMIT, "%s: its name is too long for an adapter", of->name);
    SR_TRY(sr_tensor_table_add(&a->table, &spec));
    *start = a->table.specs[a->table.count - 1].start;
    return SRNN_OK;
}

static srnn_status add_matrix(sr_adapters *a, size_t index) {
    const sr_tensor_spec *spec = &a->model->table.specs[index];
    sr_adapted *m = &a->matrices[a->count++];
    *m = (sr_adapted){.matrix = index,
                      .base = a->base_numbers,
                      .rows = spec->shape[0],
                      .columns = spec->shape[1]};
    SR_TRY(add_factor(a, &m->a, spec, "A", m->columns));
    SR_TRY(add_factor(a, &m->b, spec, "B", m->rows));
    a->base_numbers += (spec->count + 15) / 16 * 16;
    return SRNN_OK;
}

static srnn_status take_floats(sr_adapters *a, float **out, size_t count) {
    void *memory;
    SR_TRY(sr_device_allocate(a->model->backend->device, &memory, count * sizeof(float)));
    *out = memory;
    return sr_device_zero(a->model->backend->device, memory, count * sizeof(float));
}

static srnn_status fill(sr_adapters *a, const sr_adapters_setup *setup) {
    const sr_tensor_table *table = &a->model->table;
    void *memory;
    if (a->model->backend->number != SRNN_F32)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "adapters are computed in float: leave precision bf16 "
                                             "out");
    SR_TRY(sr_alloc(&memory, table->count, sizeof *a->matrices));
    a->matrices = memory;
    for (size_t i = 0; i < table->count; i++)
        if (is_adapted(&table->specs[i], setup->attention_of))
            SR_TRY(add_matrix(a, i));
    if (!a->count)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "no matrix of a layer is left that could have an adapter");
    SR_TRY(take_floats(a, &a->weights, a->table.numbers));
    SR_TRY(take_floats(a, &a->gradient, a->table.numbers));
    return take_floats(a, &a->base, a->base_numbers);
}

srnn_status sr_adapters_create(sr_adapters **adapters, sr_model *model,
                               const sr_adapters_setup *setup) {
    void *memory;
    *adapters = NULL;
    if (setup->rank < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "adapters of rank %d: it is at least 1", setup->rank);
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **adapters));
    sr_adapters *created = memory;
    created->model = model;
    created->rank = setup->rank;
    const srnn_status status = fill(created, setup);
    if (status != SRNN_OK) {
        sr_adapters_free(created);
        return status;
    }
    *adapters = created;
    return SRNN_OK;
}

void sr_adapters_free(sr_adapters *a) {
    if (!a)
        return;
    srnn_device *device = a->model->backend->device;
    sr_device_release(device, a->weights);
    sr_device_release(device, a->gradient);
    sr_device_release(device, a->base);
    sr_tensor_table_free(&a->table);
    free(a->matrices);
    free(a);
}

size_t sr_adapters_bytes(const sr_adapters *a) {
    return (2 * a->table.numbers + a->base_numbers) * sizeof(float);
}

srnn_status sr_adapters_initialise(sr_adapters *a, double range, uint64_t seed) {
    void *memory;
    size_t most = 0;
    for (size_t i = 0; i < a->table.count; i++)
        most = a->table.specs[i].count > most ? a->table.specs[i].count : most;
    SR_TRY(sr_alloc(&memory, most, sizeof(float)));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < a->table.count && status == SRNN_OK; i++) {
        const sr_tensor_spec *spec = &a->table.specs[i];
        sr_tensor_initialise(memory, spec, range, seed, 1);
        status = sr_device_copy_in(a->model->backend->device, a->weights + spec->start, memory,
                                   spec->count * sizeof(float));
    }
    free(memory);
    return status;
}

/* ---- arithmetic: B is x, A^T the weight of a linear layer whose output is W - W0 */

typedef struct factors {
    sr_matrix w, base, b;
    float *a;
} factors;

static factors factors_of(const sr_adapters *a, const sr_adapted *m, float *w, float *arena) {
    return (factors){.w = sr_matrix_of(w, m->rows, m->columns, SRNN_F32),
                     .base = sr_matrix_of(a->base + m->base, m->rows, m->columns, SRNN_F32),
                     .b = sr_matrix_of(arena + m->b, m->rows, a->rank, SRNN_F32),
                     .a = arena + m->a};
}

static float *matrix_of(const sr_adapters *a, const sr_adapted *m, float *arena) {
    return arena + a->model->table.specs[m->matrix].start;
}

srnn_status sr_adapters_keep(sr_adapters *a) {
    for (size_t i = 0; i < a->count; i++) {
        const sr_adapted *m = &a->matrices[i];
        SR_TRY(sr_device_copy(a->model->backend->device, a->base + m->base,
                              matrix_of(a, m, a->model->weights),
                              (size_t)(m->rows * m->columns) * sizeof(float)));
    }
    return SRNN_OK;
}

srnn_status sr_adapters_gradient(sr_adapters *a, const float *gradient) {
    sr_backend *backend = a->model->backend;
    float *all = (float *)(uintptr_t)gradient; /* is read only */
    SR_TRY(sr_device_zero(backend->device, a->gradient, a->table.numbers * sizeof(float)));
    for (size_t i = 0; i < a->count; i++) {
        const sr_adapted *m = &a->matrices[i];
        const factors of = factors_of(a, m, matrix_of(a, m, all), a->weights);
        const factors d = factors_of(a, m, NULL, a->gradient);
        const sr_linear layer = {.weight = of.a, .N = m->columns};
        const sr_linear_gradient d_layer = {d.a, NULL, (int)m->columns};
        SR_TRY(backend->linear_backward_input(backend, d.b, of.w, &layer, 1));
        SR_TRY(backend->linear_backward_weight(backend, &d_layer, 1, of.w, of.b));
    }
    return SRNN_OK;
}

srnn_status sr_adapters_merge(sr_adapters *a) {
    sr_backend *backend = a->model->backend;
    for (size_t i = 0; i < a->count; i++) {
        const sr_adapted *m = &a->matrices[i];
        const factors of = factors_of(a, m, matrix_of(a, m, a->model->weights), a->weights);
        const sr_linear layer = {.weight = of.a, .N = m->columns};
        SR_TRY(backend->linear_forward(backend, of.w, of.base, of.b, &layer, 1));
    }
    return SRNN_OK;
}
