/* model.c: a model's weights: one arena laid out by one table. */
#include "model/model.h"

#include "base/memory.h"
#include "model/tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensor lies at `at`. */
static void point(sr_model_pointers *pointers, const sr_tensor_spec *spec, void *at) {
    const int mixer = spec->slot / SR_LAYER_SLOTS;
    if (spec->slot < SR_MIXER_SLOTS)
        pointers->block[spec->layer].mixers[mixer].slot[spec->slot % SR_LAYER_SLOTS] = at;
    else if (spec->slot < SR_BLOCK_SLOTS)
        pointers->block[spec->layer].slot[spec->slot - SR_BLOCK_INPUT_NORM] = at;
    else if (spec->slot == SR_MODEL_EMBEDDING)
        pointers->embedding = pointers->head = at;
    else if (spec->slot == SR_MODEL_NORM)
        pointers->norm = at;
    else if (spec->slot == SR_MODEL_NORM_BIAS)
        pointers->norm_bias = at;
    else
        pointers->head = at;
}

srnn_status sr_model_pointers_make(sr_model_pointers *pointers, const sr_model *model, void *arena,
                                   srnn_dtype dtype) {
    void *blocks;
    *pointers = (sr_model_pointers){0};
    SR_TRY(sr_alloc_zero(&blocks, (size_t)model->config.L, sizeof *pointers->block));
    pointers->block = blocks;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        point(pointers, spec, sr_number_at(arena, (int64_t)spec->start, dtype));
    }
    return SRNN_OK;
}

void sr_model_pointers_free(sr_model_pointers *pointers) {
    free(pointers->block);
    *pointers = (sr_model_pointers){0};
}

/* By pieces, so that a long table is never in memory twice. */
static srnn_status fill_rope_table(const sr_model *model, int layer, float *piece,
                                   int64_t piece_rows) {
    const sr_model_config *c = &model->config;
    const sr_rope_angles_of angles = sr_model_config_rope(c, layer);
    const int D = angles.width;
    for (int64_t first = 0; first < c->positions; first += piece_rows) {
        const int64_t left = c->positions - first, count = left < piece_rows ? left : piece_rows;
        sr_rope_rows(piece, first, count, D, angles.theta, &angles.scaling);
        SR_TRY(sr_device_copy_in(model->backend->device, model->rope_tables[layer] + first * D,
                                 piece, (size_t)(count * D) * sizeof *piece));
    }
    return SRNN_OK;
}

static srnn_status make_rope_table(sr_model *model, int layer, size_t D) {
    enum { PIECE_ROWS = 1024 };
    void *memory, *piece;
    SR_TRY(sr_device_allocate(model->backend->device, &memory,
                              (size_t)model->config.positions * D * sizeof(float)));
    model->rope_tables[layer] = memory;
    SR_TRY(sr_alloc_zero(&piece, PIECE_ROWS * D, sizeof(float)));
    const srnn_status status = fill_rope_table(model, layer, piece, PIECE_ROWS);
    free(piece);
    return status;
}

static srnn_status make_rope_tables(sr_model *model) {
    const sr_model_config *c = &model->config;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)c->L, sizeof *model->rope_tables));
    model->rope_tables = memory;
    for (int layer = 0; layer < c->L; layer++) {
        const int width = sr_model_config_rope(c, layer).width;
        const int first = sr_model_config_rope_first(c, layer);
        if (first < layer)
            model->rope_tables[layer] = model->rope_tables[first];
        else if (width)
            SR_TRY(make_rope_table(model, layer, (size_t)width));
    }
    return SRNN_OK;
}

static void free_rope_tables(sr_model *model) {
    for (int layer = 0; model->rope_tables && layer < model->config.L; layer++)
        if (sr_model_config_rope_first(&model->config, layer) == layer)
            sr_device_release(model->backend->device, model->rope_tables[layer]);
    free(model->rope_tables);
}

size_t sr_model_rope_bytes(const sr_model_config *c) {
    size_t columns = 0;
    for (int layer = 0; layer < c->L; layer++)
        if (sr_model_config_rope_first(c, layer) == layer)
            columns += (size_t)sr_model_config_rope(c, layer).width;
    return columns * (size_t)c->positions * sizeof(float);
}

static srnn_status make_working(sr_model *model) {
    const srnn_dtype number = model->backend->number;
    model->working = model->weights;
    if (number != SRNN_F32) {
        model->working = NULL;
        SR_TRY(sr_device_allocate(model->backend->device, &model->working,
                                  model->table.numbers * sr_element_bytes(number)));
        SR_TRY(sr_model_narrow(model));
        SR_TRY(model->backend->hold_codes(model->backend, &model->code_bytes, model->working,
                                          (int64_t)model->table.numbers));
    }
    SR_TRY(sr_model_pointers_make(&model->master, model, model->weights, SRNN_F32));
    return sr_model_pointers_make(&model->worker, model, model->working, number);
}

srnn_status sr_model_narrow(sr_model *model) {
    return model->backend->narrow(model->backend, model->working, model->weights,
                                  (int64_t)model->table.numbers);
}

/* ---- a model without its masters */

/* Whether only products read the tensor, from the working copy. */
static bool only_enters_products(const sr_tensor_spec *spec) {
    const int slot = spec->slot < SR_MIXER_SLOTS ? spec->slot % SR_LAYER_SLOTS : spec->slot;
    const int projection = slot - SR_LAYER_PROJECTIONS;
    const bool projects = slot < SR_LAYER_CONVS && projection % 2 == 0; /* biases follow weights */
    return projects || slot == SR_LAYER_OUTPUT || slot == SR_BLOCK_GATE_WEIGHT ||
           slot == SR_BLOCK_UP_WEIGHT || slot == SR_BLOCK_DOWN_WEIGHT ||
           slot == SR_BLOCK_ROUTER_WEIGHT ||
           (slot >= SR_BLOCK_SHARED_ROUTER_WEIGHT && slot < SR_BLOCK_SLOTS) ||
           slot == SR_MODEL_HEAD;
}

/* Whether a model without masters has the tensor in its working copy alone. Where masters are only
 * stored elsewhere, the embedding is read as floats. */
static bool only_works(const sr_model *model, const sr_tensor_spec *spec) {
    return only_enters_products(spec) || (model->read_only && spec->slot == SR_MODEL_EMBEDDING);
}

static srnn_status lay_out_wide(sr_model *model) {
    enum { ALIGNED = 16 }; /* as in the arena */
    const sr_tensor_table *table = &model->table;
    void *memory;
    SR_TRY(sr_alloc(&memory, table->count, sizeof *model->wide_parts));
    model->wide_parts = memory;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        if (only_works(model, spec))
            continue;
        model->wide_parts[model->wide_count++] =
            (sr_share){(int64_t)spec->start, (int64_t)model->wide_numbers, (int64_t)spec->count};
        model->wide_numbers += (spec->count + ALIGNED - 1) / ALIGNED * ALIGNED;
    }
    return SRNN_OK;
}

static void point_to_wide(sr_model *model) {
    const sr_share *part = model->wide_parts;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const bool works = only_works(model, spec);
        point(&model->master, spec, works ? NULL : model->wide + (part++)->at);
    }
}

static srnn_status make_wide(sr_model *model) {
    srnn_device *device = model->backend->device;
    void *memory;
    SR_TRY(lay_out_wide(model));
    SR_TRY(sr_device_allocate(device, &memory, model->wide_numbers * sizeof *model->wide));
    model->wide = memory;
    point_to_wide(model);
    return sr_device_zero(device, memory, model->wide_numbers * sizeof *model->wide);
}

srnn_status sr_model_drop_masters(sr_model *model) {
    sr_device_release(model->backend->device, model->weights);
    model->weights = NULL;
    return make_wide(model);
}

/* The working copy and what is read as floats. */
static srnn_status make_read_only(sr_model *model) {
    const size_t bytes = model->table.numbers * sr_element_bytes(SRNN_BF16);
    SR_TRY(sr_device_allocate(model->backend->device, &model->working, bytes));
    SR_TRY(sr_device_zero(model->backend->device, model->working, bytes));
    SR_TRY(sr_model_pointers_make(&model->worker, model, model->working, SRNN_BF16));
    SR_TRY(sr_model_pointers_make(&model->master, model, NULL, SRNN_F32));
    return make_wide(model);
}

sr_matrix sr_model_place(const sr_model *model, const sr_tensor_spec *spec) {
    const srnn_dtype working = model->read_only ? SRNN_BF16 : model->backend->number;
    void *at = sr_number_at(model->working, (int64_t)spec->start, working);
    if (model->weights)
        return sr_matrix_of(model->weights + spec->start, 1, (int64_t)spec->count, SRNN_F32);
    for (size_t i = 0; i < model->wide_count; i++)
        if (model->wide_parts[i].first == (int64_t)spec->start)
            return sr_matrix_of(model->wide + model->wide_parts[i].at, 1, (int64_t)spec->count,
                                SRNN_F32);
    return sr_matrix_of(at, 1, (int64_t)spec->count, working);
}

sr_matrix sr_model_embedding(const sr_model *model) {
    const bool wide = model->master.embedding;
    return sr_matrix_of(wide ? model->master.embedding : model->worker.embedding, model->config.V,
                        model->config.C, wide ? SRNN_F32 : SRNN_BF16);
}

sr_linear sr_model_head(const sr_model *model) {
    return (sr_linear){model->worker.head, NULL, model->config.V, model->narrow,
                       model->backend->fp8_head};
}

static srnn_status fill(sr_model *model, const sr_model_config *config) {
    sr_backend *backend = model->backend;
    void *memory;
    SR_TRY(sr_model_config_check(config));
    SR_TRY(sr_model_config_copy(&model->config, config));
    SR_TRY(sr_model_tensors(&model->table, config));
    if (model->read_only) {
        SR_TRY(make_read_only(model));
        return make_rope_tables(model);
    }
    const size_t bytes = model->table.numbers * sizeof(float);
    SR_TRY(sr_device_allocate(backend->device, &memory, bytes));
    model->weights = memory;
    SR_TRY(sr_device_zero(backend->device, memory, bytes));
    SR_TRY(make_working(model));
    return make_rope_tables(model);
}

static srnn_status create(sr_model **model, sr_backend *backend, const sr_model_config *config,
                          bool read_only) {
    void *memory;
    *model = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **model));
    sr_model *created = memory;
    created->backend = backend;
    created->read_only = read_only;
    created->narrow = read_only && backend->number == SRNN_F32;
    const srnn_status status = fill(created, config);
    if (status != SRNN_OK) {
        sr_model_free(created);
        return status;
    }
    *model = created;
    return SRNN_OK;
}

srnn_status sr_model_create(sr_model **model, sr_backend *backend, const sr_model_config *config) {
    return create(model, backend, config, false);
}

srnn_status sr_model_create_read_only(sr_model **model, sr_backend *backend,
                                      const sr_model_config *config) {
    return create(model, backend, config, true);
}

void sr_model_free(sr_model *model) {
    if (!model)
        return;
    model->backend->drop_codes(model->backend, model->working);
    if (model->working != model->weights)
        sr_device_release(model->backend->device, model->working);
    if (!model->wide)
        sr_device_release(model->backend->device, model->weights);
    sr_device_release(model->backend->device, model->wide);
    free(model->wide_parts);
    free_rope_tables(model);
    sr_model_pointers_free(&model->master);
    sr_model_pointers_free(&model->worker);
    sr_tensor_table_free(&model->table);
    sr_model_config_free(&model->config);
    free(model);
}

srnn_status sr_model_initialise_tensor(sr_model *model, size_t index, double range, uint64_t seed) {
    const sr_tensor_spec *spec = &model->table.specs[index];
    void *host;
    SR_TRY(sr_alloc(&host, spec->count, sizeof(float)));
    sr_tensor_initialise(host, spec, range, seed, model->backend->threads);
    const srnn_status status =
        sr_device_copy_in(model->backend->device, model->weights + spec->start, host,
                          spec->count * sizeof(float));
    free(host);
    return status;
}

srnn_status sr_model_initialise(sr_model *model, double range, uint64_t seed) {
    for (size_t i = 0; i < model->table.count; i++)
        SR_TRY(sr_model_initialise_tensor(model, i, range, seed));
    return sr_model_narrow(model);
}

/* Of the experts that a token does not see. */
static size_t idle_numbers(const sr_model_config *c) {
    const sr_experts *e = &c->experts;
    const size_t one = 3 * (size_t)c->C * (size_t)e->width;
    size_t layers = 0;
    for (int layer = 0; layer < c->L; layer++)
        layers += sr_model_config_has_experts(c, layer);
    return layers * (size_t)(e->count - e->chosen) * one;
}

size_t sr_model_multiplying(const sr_model *model) {
    const sr_model_config *c = &model->config;
    const size_t embedding = (size_t)c->V * (size_t)c->C;
    return sr_tensor_table_learned(&model->table) - (c->tied ? 0 : embedding) - idle_numbers(c);
}
