/* ends.c: embedding, last norm and head of a model. */
#include "model/ends.h"

static float multiplier_of(double multiplier) {
    return multiplier == 0 ? 1.0f : (float)multiplier;
}

static srnn_status scale(const sr_model *model, sr_matrix x, double multiplier) {
    const float factor = multiplier_of(multiplier);
    return factor == 1.0f ? SRNN_OK : model->backend->scale(model->backend, x, factor);
}

srnn_status sr_ends_embed(const sr_model *model, sr_matrix x, const int32_t *ids) {
    sr_backend *backend = model->backend;
    SR_TRY(backend->embed_forward(backend, x, sr_model_embedding(model), ids));
    return scale(model, x, model->config.embedding_multiplier);
}

srnn_status sr_ends_embed_back(const sr_model *model, float *d_embedding, sr_matrix d_x,
                               const int32_t *ids) {
    SR_TRY(scale(model, d_x, model->config.embedding_multiplier));
    return model->backend->embed_backward(model->backend, d_embedding, d_x, ids);
}

static bool plain_norm(const sr_model_config *c) {
    return !c->layer_norm && !c->norm_is_minus_one;
}

bool sr_ends_are_plain(const sr_model_config *c) {
    return plain_norm(c) && multiplier_of(c->logit_multiplier) == 1.0f && c->logit_cap == 0;
}

sr_rmsnorm sr_ends_rmsnorm(const sr_model *model, const float *x, float *rstd, int64_t rows) {
    return (sr_rmsnorm){.x = x,
                        .weight = model->master.norm,
                        .rstd = rstd,
                        .epsilon = (float)model->config.norm_epsilon,
                        .rows = rows,
                        .C = model->config.C};
}

/* The same norm, whatever its kind. */
static sr_norm general_norm(const sr_model *model, const sr_rmsnorm *norm) {
    const sr_model_config *c = &model->config;
    return (sr_norm){.x = sr_matrix_of((void *)norm->x, norm->rows, norm->C, SRNN_F32),
                     .weight = norm->weight,
                     .bias = model->master.norm_bias,
                     .groups = 1,
                     .C = norm->C,
                     .subtract_mean = c->layer_norm,
                     .offset = c->norm_is_minus_one ? 1.0f : 0.0f,
                     .epsilon = norm->epsilon};
}

srnn_status sr_ends_norm(const sr_model *model, void *normed, const sr_rmsnorm *norm) {
    sr_backend *backend = model->backend;
    if (plain_norm(&model->config))
        return backend->rmsnorm_forward(backend, normed, norm);
    const sr_norm general = general_norm(model, norm);
    return backend->norm_forward(backend,
                                 sr_matrix_of(normed, norm->rows, norm->C, backend->number),
                                 &general);
}

srnn_status sr_ends_norm_back(const sr_model *model, const sr_rmsnorm_gradient *out, float *d_bias,
                              const void *d_normed, const sr_rmsnorm *norm) {
    sr_backend *backend = model->backend;
    if (plain_norm(&model->config))
        return backend->rmsnorm_backward(backend, out, d_normed, norm);
    const sr_norm general = general_norm(model, norm);
    const sr_norm_gradient gradient = {.d_x = sr_matrix_of(out->d_x, norm->rows, norm->C, SRNN_F32),
                                       .d_weight = out->d_weight,
                                       .d_bias = d_bias,
                                       .scratch = out->scratch,
                                       .adds = true};
    const sr_matrix d_y = sr_matrix_of((void *)d_normed, norm->rows, norm->C, backend->number);
    SR_TRY(backend->norm_backward(backend, &gradient, d_y, &general));
    return backend->narrow(backend, out->narrow, out->d_x, norm->rows * norm->C);
}

srnn_status sr_ends_logits(const sr_model *model, sr_matrix logits) {
    SR_TRY(scale(model, logits, model->config.logit_multiplier));
    return model->config.logit_cap > 0
               ? model->backend->cap_forward(model->backend, logits, (float)model->config.logit_cap)
               : SRNN_OK;
}

srnn_status sr_ends_logits_back(const sr_model *model, sr_matrix d_logits, sr_matrix logits) {
    if (model->config.logit_cap > 0)
        SR_TRY(model->backend->cap_backward(model->backend, d_logits, logits,
                                            (float)model->config.logit_cap));
    return scale(model, d_logits, model->config.logit_multiplier);
}
