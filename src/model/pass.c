/* pass.c: a whole model over a batch: logits, losses, gradients. */
#include "model/pass_parts.h"

#include "model/ends.h"

float *sr_pass_gradient(sr_pass *pass) {
    return pass->gradients;
}

srnn_status sr_pass_zero_gradient(sr_pass *pass) {
    return sr_device_zero(pass->backend->device, pass->gradients,
                          pass->model->table.numbers * sizeof(float));
}

srnn_status sr_pass_load(sr_pass *pass, const int32_t *ids, const int32_t *targets) {
    srnn_device *device = pass->backend->device;
    const int V = pass->model->config.V;
    const size_t bytes = (size_t)pass->rows * sizeof *ids;
    for (int64_t row = 0; row < pass->rows; row++) {
        if (ids[row] >= V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "token %d: the model has only %d", ids[row], V);
        if (targets && targets[row] >= V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "target %d: the model has only %d tokens",
                           targets[row], V);
    }
    SR_TRY(sr_device_copy_in(device, pass->ids, ids, bytes));
    if (pass->teacher)
        SR_TRY(sr_device_copy_in(device, pass->teacher->ids, ids, bytes));
    return targets ? sr_device_copy_in(device, pass->targets, targets, bytes) : SRNN_OK;
}

static sr_rmsnorm last_norm(const sr_pass *pass) {
    return sr_ends_rmsnorm(pass->model, pass->x, pass->rstd, pass->rows);
}

srnn_status sr_pass_embed(sr_pass *pass) {
    const sr_model *model = pass->model;
    if (pass->contexts)
        return sr_contexts_make(pass->contexts, pass->saved[0].x, pass->ids);
    return sr_ends_embed(model,
                         sr_matrix_of(pass->saved[0].x, pass->rows, model->config.C, SRNN_F32),
                         pass->ids);
}

srnn_status sr_pass_forward(sr_pass *pass) {
    const int L = pass->model->config.L;
    SR_TRY(sr_pass_embed(pass));
    for (int layer = 0; layer < L; layer++)
        SR_TRY(sr_block_forward(&pass->blocks[layer],
                                layer + 1 < L ? pass->saved[layer + 1].x : pass->last,
                                &pass->saved[layer]));
    if (pass->contexts)
        SR_TRY(sr_contexts_read(pass->contexts, pass->x, pass->last));
    const sr_rmsnorm norm = last_norm(pass);
    return sr_ends_norm(pass->model, pass->normed, &norm);
}

static sr_linear head_of(const sr_pass *pass) {
    return sr_model_head(pass->model);
}

srnn_status sr_pass_logits_tile(sr_pass *pass, sr_matrix *logits, sr_matrix *normed,
                                int64_t first) {
    sr_backend *backend = pass->backend;
    const sr_model_config *c = &pass->model->config;
    const int64_t left = pass->rows - first;
    const int64_t rows = left < pass->logit_rows ? left : pass->logit_rows;
    const sr_linear head = head_of(pass);
    *logits = sr_matrix_of(pass->logits, rows, c->V, backend->number);
    *normed =
        sr_matrix_rows(sr_matrix_of(pass->normed, pass->rows, c->C, backend->number), first, rows);
    SR_TRY(backend->linear_forward(backend, *logits, (sr_matrix){0}, *normed, &head, 1));
    return sr_ends_logits(pass->model, *logits);
}

/* Nothing that was sent to other parts is read any longer. */
static srnn_status settle(const sr_pass *pass) {
    return pass->part.count > 1 ? pass->part.settle(pass->part.context, NULL) : SRNN_OK;
}

srnn_status sr_pass_logits(sr_pass *pass, float *out, const int32_t *ids) {
    sr_matrix logits, normed;
    SR_TRY(sr_pass_load(pass, ids, NULL));
    SR_TRY(sr_pass_forward(pass));
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(sr_pass_logits_tile(pass, &logits, &normed, first));
        SR_TRY(sr_matrix_fetch(out + first * logits.columns, pass->backend->device, logits));
    }
    return settle(pass);
}

/* Losses and hits of all rows. */
static srnn_status head_losses(sr_pass *pass) {
    sr_matrix logits, normed;
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(sr_pass_logits_tile(pass, &logits, &normed, first));
        SR_TRY(pass->backend->cross_entropy(pass->backend, pass->losses + first, pass->hits + first,
                                            logits,
                                            &(sr_cross_entropy){.targets = pass->targets + first}));
    }
    return SRNN_OK;
}

/* Losses of the rows of a tile from `first` on; the gradient of its product goes to `codes`, data
 * not NULL, or in the place of the logits. */
static srnn_status logits_gradient(sr_pass *pass, sr_matrix codes, sr_matrix logits,
                                   int64_t first) {
    sr_backend *backend = pass->backend;
    const sr_matrix capped = sr_matrix_of(pass->capped, logits.rows, logits.columns, logits.dtype);
    if (pass->capped)
        SR_TRY(sr_device_copy(backend->device, capped.data, logits.data,
                              (size_t)(logits.rows * logits.columns) *
                                  sr_element_bytes(logits.dtype)));
    if (pass->setup.lesson.objective == SR_OBJECTIVE_TEXT)
        SR_TRY(backend->cross_entropy(backend, pass->losses + first, NULL, logits,
                                      &(sr_cross_entropy){pass->targets + first, pass->scale,
                                                          pass->setup.lesson.z_loss, codes}));
    else
        SR_TRY(sr_lesson_diverge(pass, logits, first, pass->scale));
    return sr_ends_logits_back(pass->model, logits, capped);
}

/* Where the gradient of these logits goes in 8 bits; data NULL: nowhere. */
static sr_matrix codes_of_logits(const sr_pass *pass, const sr_linear *head, sr_matrix logits) {
    const sr_backend *backend = pass->backend;
    const bool taken = pass->d_logits &&
                       backend->takes_codes(backend, head, 1, logits.rows, pass->model->config.C);
    logits.data = taken ? pass->d_logits : NULL;
    return sr_matrix_handed(logits, SR_HANDED_CODES, pass->d_logits_note);
}

/* Losses of all rows, the gradient of the head's weights and of pass->normed. */
static srnn_status head_gradients(sr_pass *pass) {
    sr_backend *backend = pass->backend;
    const sr_linear head = head_of(pass);
    const sr_linear_gradient d_head = {pass->gradient.head, NULL, head.N};
    const sr_matrix d_normed =
        sr_matrix_of(pass->d_normed, pass->rows, pass->model->config.C, backend->number);
    sr_matrix logits, normed;
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(sr_pass_logits_tile(pass, &logits, &normed, first));
        const sr_matrix codes = codes_of_logits(pass, &head, logits);
        SR_TRY(logits_gradient(pass, codes, logits, first));
        const sr_matrix d_rows = sr_matrix_rows(d_normed, first, logits.rows);
        const sr_linear_backward call = {d_rows,  codes.data ? codes : logits,
                                         normed,  &head,
                                         &d_head, 1};
        SR_TRY(backend->linear_backward(backend, &call));
    }
    return SRNN_OK;
}

static srnn_status losses_out(sr_pass *pass, float *losses) {
    if (pass->part.wait)
        SR_TRY(pass->part.wait(pass->part.context));
    return sr_device_copy_out(pass->backend->device, losses, pass->losses,
                              (size_t)pass->rows * sizeof *losses);
}

srnn_status sr_pass_losses(sr_pass *pass, float *losses, const int32_t *ids,
                           const int32_t *targets) {
    SR_TRY(sr_pass_load(pass, ids, targets));
    SR_TRY(sr_pass_forward(pass));
    SR_TRY(head_losses(pass));
    SR_TRY(settle(pass));
    return losses_out(pass, losses);
}

srnn_status sr_pass_evaluate(sr_pass *pass, float *losses, int64_t *correct, const int32_t *ids,
                             const int32_t *targets) {
    SR_TRY(sr_pass_losses(pass, losses, ids, targets));
    SR_TRY(sr_device_copy_out(pass->backend->device, pass->host_hits, pass->hits,
                              (size_t)pass->rows * sizeof *pass->hits));
    for (int64_t row = 0; row < pass->rows; row++)
        *correct += pass->host_hits[row];
    return SRNN_OK;
}

static srnn_status report_ready(const sr_pass *pass, int layer) {
    return pass->setup.ready ? pass->setup.ready(pass->setup.ready_context, layer) : SRNN_OK;
}

/* From the gradient of the batch's rows to that of the last block's. */
static srnn_status contexts_back(sr_pass *pass) {
    sr_backend *backend = pass->backend;
    SR_TRY(sr_contexts_read_back(pass->contexts, pass->d.wide, pass->d_x));
    if (backend->number == SRNN_F32)
        return SRNN_OK;
    return backend->narrow(backend, pass->d.narrow, pass->d.wide,
                           pass->block_rows * pass->model->config.C);
}

static srnn_status layers_backward(sr_pass *pass) {
    const int L = pass->model->config.L;
    const sr_rmsnorm norm = last_norm(pass);
    for (int layer = L - 1; layer >= 0; layer--) {
        const sr_block *block = &pass->blocks[layer];
        const sr_block_scratch scratch = sr_block_scratch_at(block, pass->scratch);
        const sr_rmsnorm_gradient d_norm = {pass->d_x,
                                            pass->contexts ? pass->d_x : pass->d.narrow,
                                            pass->gradient.norm,
                                            scratch.parts,
                                            pass->d.measured,
                                            pass->d.codes};
        if (layer == L - 1) {
            if (pass->d.measured) /* no gradient came before */
                SR_TRY(sr_device_zero(pass->backend->device, pass->d.measured,
                                      sizeof *pass->d.measured));
            SR_TRY(sr_ends_norm_back(pass->model, &d_norm, pass->gradient.norm_bias, pass->d_normed,
                                     &norm));
            if (pass->contexts)
                SR_TRY(contexts_back(pass));
            SR_TRY(report_ready(pass, L));
        }
        if (sr_lesson_has_streams(pass))
            SR_TRY(sr_lesson_streams_back(pass, layer));
        if (layer < L - 1) /* forward ended with the last layer: all of it is still there */
            SR_TRY(sr_block_recompute(block, &pass->saved[layer], pass->setup.recompute));
        SR_TRY(sr_block_backward(block, pass->d, &pass->gradient.block[layer], &pass->saved[layer],
                                 &scratch));
        SR_TRY(report_ready(pass, layer));
    }
    return SRNN_OK;
}

/* From the gradient of what the first block read to that of the embedding. */
static srnn_status embed_back(sr_pass *pass) {
    if (pass->contexts)
        return sr_contexts_make_back(pass->contexts, pass->gradient.embedding, pass->d.wide);
    return sr_ends_embed_back(pass->model, pass->gradient.embedding,
                              sr_matrix_of(pass->d.wide, pass->rows, pass->model->config.C,
                                           SRNN_F32),
                              pass->ids);
}

static srnn_status count_losses(sr_pass *pass) {
    return pass->stats ? pass->backend->stats_losses(pass->backend, pass->stats, pass->losses, NULL,
                                                     pass->targets, pass->rows)
                       : SRNN_OK;
}

/* Of the whole model, from its logits down. */
static srnn_status whole_gradients(sr_pass *pass) {
    const size_t numbers = (size_t)pass->rows * (size_t)pass->model->config.C;
    if (pass->setup.lesson.objective != SR_OBJECTIVE_TEXT)
        SR_TRY(sr_pass_forward(pass->teacher));
    SR_TRY(sr_pass_forward(pass));
    SR_TRY(head_gradients(pass));
    if (sr_lesson_has_streams(pass))
        SR_TRY(sr_lesson_streams(pass));
    SR_TRY(count_losses(pass));
    SR_TRY(settle(pass));
    SR_TRY(sr_device_zero(pass->backend->device, pass->d_x, numbers * sizeof(float)));
    SR_TRY(layers_backward(pass));
    SR_TRY(embed_back(pass));
    SR_TRY(report_ready(pass, -1));
    return settle(pass);
}

/* Everything between a loaded batch and its gradients; what is recorded. */
static srnn_status gradients(void *context) {
    sr_pass *pass = context;
    sr_backend *backend = pass->backend;
    SR_TRY(backend->expect_gradients(backend, true));
    if (!sr_lesson_is_layerwise(pass)) {
        SR_TRY(whole_gradients(pass));
    } else {
        SR_TRY(sr_lesson_layers(pass));
        SR_TRY(count_losses(pass));
    }
    return backend->expect_gradients(backend, false);
}

static srnn_status check_train(const sr_pass *pass) {
    return pass->setup.train
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT, "this pass was created without gradients");
}

srnn_status sr_pass_gradients(sr_pass *pass, float *losses, const int32_t *ids,
                              const int32_t *targets, double scale) {
    SR_TRY(check_train(pass));
    SR_TRY(sr_pass_load(pass, ids, targets));
    pass->scale = (float)scale;
    pass->stats = NULL;
    SR_TRY(gradients(pass));
    return losses_out(pass, losses);
}

srnn_status sr_pass_step(sr_pass *pass, sr_step_stats *stats, const int32_t *ids,
                         const int32_t *targets, double scale) {
    SR_TRY(check_train(pass));
    SR_TRY(sr_pass_load(pass, ids, targets));
    pass->scale = (float)scale;
    pass->stats = stats;
    return sr_device_repeat(pass->backend->device, &pass->step, gradients, pass);
}
