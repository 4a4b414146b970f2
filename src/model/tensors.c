/* tensors.c: the learned tensors of a whole model. */
#include "model/tensors.h"

#include "model/conv/conv.h"
#include "model/mixers.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* A matrix of every expert, (count, rows, columns), and a bias of each where MLPs have one. */
static srnn_status add_stack(sr_tensor_table *table, const sr_model_config *c, int slot,
                             int layer) {
    const bool down = slot == SR_BLOCK_DOWN_WEIGHT;
    const int rows = down ? c->C : c->experts.width, columns = down ? c->experts.width : c->C;
    const char *name = down ? "down_proj" : slot == SR_BLOCK_UP_WEIGHT ? "up_proj" : "gate_proj";
    sr_tensor_spec weight = {.rank = 3,
                             .shape = {c->experts.count, rows, columns},
                             .initialiser = SR_INIT_NORMAL,
                             .slot = slot};
    sr_tensor_spec bias = {.rank = 2, .shape = {c->experts.count, rows}, .slot = slot + 1};
    snprintf(weight.name, sizeof weight.name, "model.layers.%d.mlp.experts.%s.weight", layer, name);
    snprintf(bias.name, sizeof bias.name, "model.layers.%d.mlp.experts.%s.bias", layer, name);
    SR_TRY(sr_tensor_table_add(table, &weight));
    return c->mlp_bias ? sr_tensor_table_add(table, &bias) : SRNN_OK;
}

static srnn_status add_experts(sr_tensor_table *table, const sr_model_config *c, int layer) {
    const sr_experts *e = &c->experts;
    const int C = c->C, shared = e->shared_width;
    SR_TRY(add(table, SR_BLOCK_ROUTER_WEIGHT, layer, "mlp.router.weight", e->count, C));
    if (e->router_bias)
        SR_TRY(add(table, SR_BLOCK_ROUTER_BIAS, layer, "mlp.router.bias", e->count, 0));
    SR_TRY(add_stack(table, c, SR_BLOCK_GATE_WEIGHT, layer));
    SR_TRY(add_stack(table, c, SR_BLOCK_UP_WEIGHT, layer));
    SR_TRY(add_stack(table, c, SR_BLOCK_DOWN_WEIGHT, layer));
    if (!shared)
        return SRNN_OK;
    SR_TRY(add(table, SR_BLOCK_SHARED_ROUTER_WEIGHT, layer, "mlp.shared_router.weight", 1, C));
    SR_TRY(add(table, SR_BLOCK_SHARED_GATE_WEIGHT, layer, "mlp.shared_expert.gate_proj.weight",
               shared, C));
    SR_TRY(add(table, SR_BLOCK_SHARED_UP_WEIGHT, layer, "mlp.shared_expert.up_proj.weight", shared,
               C));
    return add(table, SR_BLOCK_SHARED_DOWN_WEIGHT, layer, "mlp.shared_expert.down_proj.weight", C,
               shared);
}

static srnn_status add_mlp(sr_tensor_table *table, const sr_model_config *c, int layer) {
    if (sr_model_config_has_experts(c, layer))
        return add_experts(table, c, layer);
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
srnn_status sr_avey_model_tensors(sr_tensor_table *table, const sr_model_config *c) {
    sr_tensor_spec embedding = {.name = "model.wte.weight",
                                .rank = 2,
                                .shape = {c->V, c->C},
                                .initialiser = SR_INIT_NORMAL_OF,
                                .size = sqrt(2.0 / ((double)c->V + c->C)),
                                .slot = SR_MODEL_EMBEDDING};
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
    return add(table, SR_MODEL_NORM, -1, "model.ln_f.weight", c->C, 0);
}

static srnn_status add_mixer(sr_tensor_table *table, const char *prefix,
                             const srnn_attention *attention, const sr_layer_dims *dims) {
    return sr_layer_is_conv(attention) ? sr_conv_tensors(table, prefix, attention, dims)
                                       : sr_layer_tensors(table, prefix, attention, dims);
}

static srnn_status add_second_mixer(sr_tensor_table *table, const sr_model_config *c, int layer) {
    const sr_layer_dims dims = sr_model_config_parallel_dims(c, layer);
    const size_t first = table->count;
    char prefix[64];
    snprintf(prefix, sizeof prefix, "model.layers.%d.parallel_attn.", layer);
    SR_TRY(add_mixer(table, prefix, &c->parallel[layer], &dims));
    for (size_t i = first; i < table->count; i++)
        table->specs[i].slot += SR_LAYER_SLOTS;
    return SRNN_OK;
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
    SR_TRY(add_mixer(table, prefix, &c->attention[layer], &dims));
    if (c->parallel)
        SR_TRY(add_second_mixer(table, c, layer));
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

srnn_status sr_attention_model_tensors(sr_tensor_table *table, const sr_model_config *c) {
    SR_TRY(add(table, SR_MODEL_EMBEDDING, -1, "model.embed_tokens.weight", c->V, c->C));
    for (int layer = 0; layer < c->L; layer++)
        SR_TRY(add_block(table, c, layer));
    SR_TRY(add_norm(table, c, SR_MODEL_NORM, -1, "model.norm."));
    if (!c->tied)
        SR_TRY(add(table, SR_MODEL_HEAD, -1, "lm_head.weight", c->V, c->C));
    return SRNN_OK;
}

srnn_status sr_model_tensors(sr_tensor_table *table, const sr_model_config *config) {
    *table = (sr_tensor_table){0};
    const srnn_status status = sr_mixer_row_of(config)->tensors(table, config);
    if (status != SRNN_OK)
        sr_tensor_table_free(table);
    return status;
}
