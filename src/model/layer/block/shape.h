/* shape.h (private): what a block consists of. */
#ifndef SR_MODEL_LAYER_BLOCK_SHAPE_H
#define SR_MODEL_LAYER_BLOCK_SHAPE_H

#include "model/layer/block/block.h"

static inline bool has_mlp(const sr_block *b) {
    return sr_model_config_has_mlp(b->config);
}

static inline bool gated(const sr_block *b) {
    return has_mlp(b) && (b->config->mlp == SR_MLP_SWIGLU || b->config->mlp == SR_MLP_GATED);
}

static inline bool has_experts(const sr_block *b) {
    return sr_model_config_has_experts(b->config, b->layer);
}

/* Experts that a router gives weights, the shared one included. */
static inline int expert_columns(const sr_block *b) {
    return b->config->experts.count + (b->config->experts.shared_width > 0 ? 1 : 0);
}

/* Of the widest expert, if there are some. */
static inline int64_t mlp_width(const sr_block *b) {
    const sr_experts *e = &b->config->experts;
    if (has_experts(b))
        return e->width > e->shared_width ? e->width : e->shared_width;
    return has_mlp(b) ? b->config->F : 0;
}

/* Columns of what the MLP multiplies its input with first. */
static inline int64_t inner(const sr_block *b) {
    return (gated(b) ? 2 : 1) * mlp_width(b);
}

static inline srnn_block_norm norm_place(const sr_block *b) {
    return sr_model_config_block_norm(b->config, b->layer);
}

static inline bool norm_before(const sr_block *b) {
    return norm_place(b) != SRNN_BLOCK_NORM_AFTER;
}

static inline bool norm_after(const sr_block *b) {
    return norm_place(b) == SRNN_BLOCK_NORM_AFTER || norm_place(b) == SRNN_BLOCK_NORM_BOTH;
}

static inline bool parallel(const sr_block *b) {
    return has_mlp(b) && norm_place(b) == SRNN_BLOCK_NORM_PARALLEL;
}

/* Of what the mixer adds to the residual, and of what the MLP adds. */
static inline float mixer_multiplier(const sr_block *b) {
    const double multiplier = b->config->residual_multiplier;
    return multiplier == 0 ? 1.0f : (float)multiplier;
}

static inline float mlp_multiplier(const sr_block *b) {
    return mixer_multiplier(b) * sr_model_config_factor(b->config, SR_FACTOR_MLP);
}

/* Of the gate before its activation. */
static inline float gate_factor(const sr_block *b) {
    return gated(b) ? sr_model_config_factor(b->config, SR_FACTOR_GATE) : 1.0f;
}

/* Whether something happens to what mixer and MLP make before it is added to the residual. */
static inline bool has_branches(const sr_block *b) {
    return norm_after(b) || mixer_multiplier(b) != 1.0f || mlp_multiplier(b) != 1.0f;
}

/* Whether a norm is RMS norm with its weight as it is, of what mixer and MLP read. */
static inline bool plain_norms(const sr_block *b) {
    return norm_place(b) == SRNN_BLOCK_NORM_BEFORE && !b->config->layer_norm &&
           !b->config->norm_is_minus_one;
}

#endif
