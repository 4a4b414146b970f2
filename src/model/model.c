/* model.c: a Llama's weights: one arena laid out by one table. */
#include "model/model.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a tensor outside the layers is; the slots of layers come before. */
enum { SLOT_EMBEDDING = SR_BLOCK_SLOTS, SLOT_NORM, SLOT_NORM_BIAS, SLOT_HEAD };

static srnn_status add(sr_tensor_table *table, int slot, int layer, const char *name, int rows,
                       int columns) {
    sr_tensor_spec spec = {.rank = columns ? 2 : 1, .shape = {rows, columns}, .slot = slot};
    if (layer < 0)
        snprintf(spec.name, sizeof spec.name, "%s", name);
    else
        snprintf(spec.name, sizeof spec.name, "model.layers.%d.%s", layer, name);
    const bool norm = strstr(name, "norm") || strstr(name, "ln_f");
    spec.initialiser = columns ? SR_INIT_NORMAL : SR_INIT_CONSTANT;
    spec.size = norm ? 1.0 : 0.0;
    return sr_tensor_table_add(table, &spec);
}

/* The weight of a norm, and its bias; `name` ends in a point. */
static srnn_status add_norm(sr_tensor_table *table, const sr_model_config *c, int slot, int layer,
                            const char *name) {
    char full[64];
    sr_tensor_spec *spec;
    snprintf(full, sizeof full, "%sweight", name);
    SR_TRY(add(table, slot, layer, full, c->C, 0));
    spec = &table->specs[table->count - 1];
    spec->size = c->norm_is_minus_one ? 0 : 1;
    if (!c->layer_norm)
        return SRNN_OK;
    snprintf(full, sizeof full, "%sbias", name);
    SR_TRY(add(table, slot + 1, layer, full, c->C, 0));
    spec = &table->specs[table->count - 1];
    spec->size = 0;
    return SRNN_OK;
}

/* softplus^-1 of the authors' 0.8, and of 0.8 - 0.5. */
static srnn_status add_alpha(sr_tensor_table *table, int layer) {
    SR_TRY(add(table, SR_BLOCK_ALPHA, layer, "mlp.act_fn.alpha_p", 1, 0));
    table->specs[table->count - 1].size = log(expm1(0.8));
    SR_TRY(add(table, SR_BLOCK_ALPHA + 1, layer, "mlp.act_fn.alpha_n", 1, 0));
    table->specs[table->count - 1].size = log(expm1(0.3));
    return SRNN_OK;
}

static srnn_status add_mlp(sr_tensor_table *table, const sr_model_config *c, int layer) {
    if (c->activation == SR_ACTIVATION_XIELU)
        SR_TRY(add_alpha(table, layer));
    if (c->mlp == SR_MLP_SWIGLU || c->mlp == SR_MLP_GATED) {
        SR_TRY(add(table, SR_BLOCK_GATE_WEIGHT, layer, "mlp.gate_proj.weight", c->F, c->C));
        if (c->mlp_bias)
            SR_TRY(add(table, SR_BLOCK_GATE_BIAS, layer, "mlp.gate_proj.bias", c->F, 0));
    }
    SR_TRY(add(table, SR_BLOCK_UP_WEIGHT, layer, "mlp.up_proj.weight", c->F, c->C));
    if (c->mlp_bias)
        SR_TRY(add(table, SR_BLOCK_UP_BIAS, layer, "mlp.up_proj.bias", c->F, 0));
    SR_TRY(add(table, SR_BLOCK_DOWN_WEIGHT, layer, "mlp.down_proj.weight", c->C, c->F));
    if (c->mlp_bias)
        SR_TRY(add(table, SR_BLOCK_DOWN_BIAS, layer, "mlp.down_proj.bias", c->C, 0));
    return SRNN_OK;
}

/* Xavier's normal numbers for an embedding that is also the head. */
static srnn_status add_avey(sr_tensor_table *table, const sr_model_config *c) {
    sr_tensor_spec embedding = {.name = "model.wte.weight",
                                .rank = 2,
                                .shape = {c->V, c->C},
                                .initialiser = SR_INIT_NORMAL_OF,
                                .size = sqrt(2.0 / ((double)c->V + c->C)),
                                .slot = SLOT_EMBEDDING};
    SR_TRY(sr_tensor_table_add(table, &embedding));
    for (int layer = 0; layer < c->L; layer++) {
        char name[64];
        snprintf(name, sizeof name, "model.blocks.%d.rms_norm.weight", layer);
        const size_t first = table->count;
        SR_TRY(add(table, SR_BLOCK_INPUT_NORM, -1, name, c->C, 0));
        snprintf(name, sizeof name, "model.blocks.%d.ctxt.", layer);
        SR_TRY(sr_avey_tensors(table, name, &c->avey, c->C));
        for (size_t i = first; i < table->count; i++)
            table->specs[i].layer = layer;
    }
    return add(table, SLOT_NORM, -1, "model.ln_f.weight", c->C, 0);
}

static srnn_status fill_block(sr_tensor_table *table, const sr_model_config *c, int layer) {
    const sr_layer_dims dims = sr_model_config_dims(c, layer);
    const srnn_block_norm place = c->attention[layer].wiring.block_norm;
    const bool before = place != SRNN_BLOCK_NORM_AFTER;
    const bool after = place == SRNN_BLOCK_NORM_AFTER || place == SRNN_BLOCK_NORM_BOTH;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.layers.%d.self_attn.", layer);
    if (before)
        SR_TRY(add_norm(table, c, SR_BLOCK_INPUT_NORM, layer, "input_layernorm."));
    SR_TRY(sr_layer_tensors(table, prefix, &c->attention[layer], &dims));
    if (after)
        SR_TRY(add_norm(table, c, SR_BLOCK_MIXER_POST_NORM, layer, "post_self_attn_layernorm."));
    if (!sr_model_config_has_mlp(c))
        return SRNN_OK;
    if (before && place != SRNN_BLOCK_NORM_PARALLEL)
        SR_TRY(add_norm(table, c, SR_BLOCK_MLP_NORM, layer, "post_attention_layernorm."));
    if (after)
        SR_TRY(add_norm(table, c, SR_BLOCK_MLP_POST_NORM, layer, "post_mlp_layernorm."));
    return add_mlp(table, c, layer);
}

static srnn_status add_block(sr_tensor_table *table, const sr_model_config *c, int layer) {
    const size_t first = table->count;
    SR_TRY(fill_block(table, c, layer));
    for (size_t i = first; i < table->count; i++)
        table->specs[i].layer = layer;
    return SRNN_OK;
}

static srnn_status add_all(sr_tensor_table *table, const sr_model_config *c) {
    if (c->is_avey)
        return add_avey(table, c);
    SR_TRY(add(table, SLOT_EMBEDDING, -1, "model.embed_tokens.weight", c->V, c->C));
    for (int layer = 0; layer < c->L; layer++)
        SR_TRY(add_block(table, c, layer));
    SR_TRY(add_norm(table, c, SLOT_NORM, -1, "model.norm."));
    if (!c->tied)
        SR_TRY(add(table, SLOT_HEAD, -1, "lm_head.weight", c->V, c->C));
    return SRNN_OK;
}

srnn_status sr_model_tensors(sr_tensor_table *table, const sr_model_config *config) {
    *table = (sr_tensor_table){0};
    const srnn_status status = add_all(table, config);
    if (status != SRNN_OK)
        sr_tensor_table_free(table);
    return status;
}

/* The tensor lies at `at`. */
static void point(sr_model_pointers *pointers, const sr_tensor_spec *spec, void *at) {
    if (spec->slot < SR_LAYER_SLOTS)
        pointers->block[spec->layer].attention.slot[spec->slot] = at;
    else if (spec->slot < SR_BLOCK_SLOTS)
        pointers->block[spec->layer].slot[spec->slot - SR_BLOCK_INPUT_NORM] = at;
    else if (spec->slot == SLOT_EMBEDDING)
        pointers->embedding = pointers->head = at;
    else if (spec->slot == SLOT_NORM)
        pointers->norm = at;
    else if (spec->slot == SLOT_NORM_BIAS)
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
    const int slot = spec->slot, projection = slot - SR_LAYER_PROJECTIONS;
    const bool projects = slot < SR_LAYER_CONVS && projection % 2 == 0; /* biases follow weights */
    return projects || slot == SR_LAYER_OUTPUT || slot == SR_BLOCK_GATE_WEIGHT ||
           slot == SR_BLOCK_UP_WEIGHT || slot == SR_BLOCK_DOWN_WEIGHT || slot == SLOT_HEAD;
}

static srnn_status lay_out_wide(sr_model *model) {
    enum { ALIGNED = 16 }; /* as in the arena */
    const sr_tensor_table *table = &model->table;
    void *memory;
    SR_TRY(sr_alloc(&memory, table->count, sizeof *model->wide_parts));
    model->wide_parts = memory;
    for (size_t i = 0; i < table->count; i++) {
        const sr_tensor_spec *spec = &table->specs[i];
        if (only_enters_products(spec))
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
        const bool product = only_enters_products(spec);
        point(&model->master, spec, product ? NULL : model->wide + (part++)->at);
    }
}

srnn_status sr_model_part_from_masters(sr_model *model) {
    srnn_device *device = model->backend->device;
    void *memory;
    SR_TRY(lay_out_wide(model));
    sr_device_release(device, model->weights);
    model->weights = NULL;
    SR_TRY(sr_device_allocate(device, &memory, model->wide_numbers * sizeof *model->wide));
    model->wide = memory;
    point_to_wide(model);
    return sr_device_zero(device, memory, model->wide_numbers * sizeof *model->wide);
}

static srnn_status fill(sr_model *model, const sr_model_config *config) {
    sr_backend *backend = model->backend;
    void *memory;
    SR_TRY(sr_model_config_check(config));
    SR_TRY(sr_model_config_copy(&model->config, config));
    SR_TRY(sr_model_tensors(&model->table, config));
    const size_t bytes = model->table.numbers * sizeof(float);
    SR_TRY(sr_device_allocate(backend->device, &memory, bytes));
    model->weights = memory;
    SR_TRY(sr_device_zero(backend->device, memory, bytes));
    SR_TRY(make_working(model));
    return make_rope_tables(model);
}

srnn_status sr_model_create(sr_model **model, sr_backend *backend, const sr_model_config *config) {
    void *memory;
    *model = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **model));
    sr_model *created = memory;
    created->backend = backend;
    const srnn_status status = fill(created, config);
    if (status != SRNN_OK) {
        sr_model_free(created);
        return status;
    }
    *model = created;
    return SRNN_OK;
}

void sr_model_free(sr_model *model) {
    if (!model)
        return;
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

srnn_status sr_model_initialise(sr_model *model, double range, uint64_t seed) {
    size_t largest = 0;
    void *host;
    for (size_t i = 0; i < model->table.count; i++)
        if (model->table.specs[i].count > largest)
            largest = model->table.specs[i].count;
    SR_TRY(sr_alloc(&host, largest, sizeof(float)));
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < model->table.count && status == SRNN_OK; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        sr_tensor_initialise(host, spec, range, seed, model->backend->threads);
        status = sr_device_copy_in(model->backend->device, model->weights + spec->start, host,
                                   spec->count * sizeof(float));
    }
    free(host);
    return status == SRNN_OK ? sr_model_narrow(model) : status;
}

size_t sr_model_multiplying(const sr_model *model) {
    const sr_model_config *c = &model->config;
    const size_t embedding = (size_t)c->V * (size_t)c->C;
    return sr_tensor_table_learned(&model->table) - (c->tied ? 0 : embedding);
}
