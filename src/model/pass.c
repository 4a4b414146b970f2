/* pass.c: a whole model over a batch: logits, losses, gradients. */
#include "model/pass_parts.h"

#include "base/memory.h"
#include "model/ends.h"

#include <stdlib.h>

/* Logits exist for one tile of rows at a time: as many numbers as the backend likes, at least so
 * many rows. */
enum { LOGIT_ROWS = 128 };

static srnn_status take(sr_pass *pass, void **out, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return SR_FAIL(SRNN_ERR_MEMORY, "a batch of %d x %d tokens does not fit memory",
                       pass->setup.B, pass->setup.T);
    SR_TRY(sr_device_allocate(pass->backend->device, out, bytes));
    pass->memory[pass->memories++] = *out;
    pass->bytes += bytes;
    return SRNN_OK;
}

static srnn_status take_floats(sr_pass *pass, float **out, size_t count) {
    void *memory;
    SR_TRY(take(pass, &memory, count, sizeof(float)));
    *out = memory;
    return SRNN_OK;
}

static srnn_status take_tokens(sr_pass *pass, int32_t **out) {
    void *memory;
    SR_TRY(take(pass, &memory, (size_t)pass->rows, sizeof(int32_t)));
    *out = memory;
    return SRNN_OK;
}

static srnn_status make_blocks(sr_pass *pass) {
    const sr_model *model = pass->model;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)model->config.L, sizeof *pass->blocks));
    pass->blocks = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)model->config.L, sizeof *pass->saved));
    pass->saved = memory;
    for (int layer = 0; layer < model->config.L; layer++)
        pass->blocks[layer] = (sr_block){.backend = pass->backend,
                                         .config = &model->config,
                                         .mixer = pass->kinds.of_layer[layer],
                                         .master = &model->master.block[layer],
                                         .worker = &model->worker.block[layer],
                                         .rows = pass->block_rows,
                                         .layer = layer,
                                         .observer = pass->setup.observer};
    return SRNN_OK;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Each layer keeps its input; what lies between has memory of its own only if backward will read
 * it where forward left it. */
static srnn_status take_activations(sr_pass *pass) {
    const int L = pass->model->config.L;
    const size_t C = (size_t)pass->model->config.C, rows = (size_t)pass->block_rows;
    const bool layerwise = sr_lesson_is_layerwise(pass);
    const bool keep_mlp =
        pass->setup.train && !layerwise && pass->setup.recompute != SR_RECOMPUTE_BLOCK;
    const bool keep_mixer = keep_mlp && pass->setup.recompute == SR_RECOMPUTE_NONE;
    size_t mixer_bytes = 0, mlp_bytes = 0, scratch = 0;
    void *mixer = NULL, *mlp = NULL;
    for (int layer = 0; layer < L; layer++) {
        mixer_bytes = larger(mixer_bytes, sr_block_mixer_half_bytes(&pass->blocks[layer]));
        mlp_bytes = larger(mlp_bytes, sr_block_mlp_half_bytes(&pass->blocks[layer]));
        scratch = larger(scratch, sr_block_scratch_bytes(&pass->blocks[layer]));
    }
    for (int layer = 0; layer < L; layer++) {
        const sr_block *block = &pass->blocks[layer];
        sr_block_saved *saved = &pass->saved[layer];
        if (keep_mixer || layer == 0)
            SR_TRY(
                take(pass, &mixer, keep_mixer ? sr_block_mixer_half_bytes(block) : mixer_bytes, 1));
        if (mlp_bytes && (keep_mlp || layer == 0))
            SR_TRY(take(pass, &mlp, keep_mlp ? sr_block_mlp_half_bytes(block) : mlp_bytes, 1));
        *saved = sr_block_saved_apart(block, mixer, mlp);
        if ((pass->setup.train && !layerwise) || layer < 2)
            SR_TRY(take_floats(pass, &saved->x, rows * C));
        else
            saved->x = pass->saved[layer % 2].x; /* two buffers alternate */
    }
    if (!pass->setup.train)
        return SRNN_OK;
    SR_TRY(take(pass, &pass->scratch, scratch, 1));
    const size_t number = sr_element_bytes(pass->backend->number);
    SR_TRY(take(pass, &pass->d_normed, (size_t)pass->rows * C, number));
    SR_TRY(take_floats(pass, &pass->d.wide, rows * C));
    pass->d_x = pass->d.wide;
    if (pass->contexts)
        SR_TRY(take_floats(pass, &pass->d_x, (size_t)pass->rows * C));
    pass->d.narrow = pass->d.wide;
    if (pass->backend->number != SRNN_F32)
        SR_TRY(take(pass, &pass->d.narrow, rows * C, number));
    SR_TRY(take_floats(pass, &pass->gradients, pass->model->table.numbers));
    SR_TRY(sr_model_pointers_make(&pass->gradient, pass->model, pass->gradients, SRNN_F32));
    return sr_pass_zero_gradient(pass);
}

static srnn_status take_ends(sr_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const size_t rows = (size_t)pass->rows, C = (size_t)c->C;
    const size_t number = sr_element_bytes(pass->backend->number);
    pass->logit_rows = pass->backend->logit_numbers / c->V / LOGIT_ROWS * LOGIT_ROWS;
    if (pass->logit_rows < LOGIT_ROWS)
        pass->logit_rows = LOGIT_ROWS;
    if (pass->logit_rows > pass->rows)
        pass->logit_rows = pass->rows;
    SR_TRY(take_tokens(pass, &pass->ids));
    SR_TRY(take_tokens(pass, &pass->targets));
    SR_TRY(take_tokens(pass, &pass->hits));
    SR_TRY(take_floats(pass, &pass->losses, rows));
    SR_TRY(take_floats(pass, &pass->x, rows * C));
    pass->last = pass->x;
    if (pass->contexts)
        SR_TRY(take_floats(pass, &pass->last, (size_t)pass->block_rows * C));
    SR_TRY(take(pass, &pass->normed, rows * C, number));
    SR_TRY(take_floats(pass, &pass->rstd, rows));
    const size_t logits = (size_t)pass->logit_rows * (size_t)c->V;
    if (c->logit_cap > 0 && pass->setup.train)
        SR_TRY(take(pass, &pass->capped, logits, number));
    return take(pass, &pass->logits, logits, number);
}

static srnn_status place_tokens(sr_pass *pass, const int64_t *offsets, int64_t documents) {
    sr_layer_positions(pass->host_positions, pass->rows, pass->setup.T, offsets, documents);
    return sr_device_copy_in(pass->backend->device, pass->positions, pass->host_positions,
                             (size_t)pass->rows * sizeof *pass->host_positions);
}

static srnn_status take_positions(sr_pass *pass) {
    void *memory;
    SR_TRY(take_tokens(pass, &pass->positions));
    SR_TRY(sr_alloc(&memory, (size_t)pass->rows, sizeof *pass->host_positions));
    pass->host_positions = memory;
    SR_TRY(sr_alloc(&memory, (size_t)pass->rows, sizeof *pass->host_hits));
    pass->host_hits = memory;
    return place_tokens(pass, pass->setup.offsets, pass->setup.documents);
}

static srnn_status make_contexts(sr_pass *pass) {
    pass->block_rows = pass->rows;
    SR_TRY(sr_contexts_create(&pass->contexts, pass->model, pass->setup.B, pass->setup.T));
    if (!pass->contexts)
        return SRNN_OK;
    SR_TRY(sr_contexts_check_documents(pass->contexts, pass->setup.offsets, pass->setup.documents));
    pass->block_rows = sr_contexts_rows(pass->contexts);
    return SRNN_OK;
}

/* Where a layer's values are kept for later ones that mix them in. */
static srnn_status take_first_values(sr_pass *pass, int64_t columns) {
    const size_t numbers = (size_t)pass->rows * (size_t)columns;
    if (!columns)
        return SRNN_OK;
    SR_TRY(take_floats(pass, &pass->first_values, numbers));
    if (!pass->setup.train)
        return SRNN_OK;
    SR_TRY(take_floats(pass, &pass->d_first_values, numbers));
    return sr_device_zero(pass->backend->device, pass->d_first_values, numbers * sizeof(float));
}

static srnn_status fill(sr_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const int64_t values = sr_layer_kinds_first_values(c);
    void *memory;
    if (pass->setup.B < 1 || pass->setup.T < 1 ||
        (int64_t)pass->setup.B * pass->setup.T > INT32_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a batch of %d x %d tokens makes no sense", pass->setup.B,
                       pass->setup.T);
    pass->rows = (int64_t)pass->setup.B * pass->setup.T;
    SR_TRY(sr_alloc_zero(&memory, (size_t)(3 * c->L + 22), sizeof *pass->memory));
    pass->memory = memory;
    SR_TRY(take_positions(pass));
    SR_TRY(make_contexts(pass));
    SR_TRY(take_first_values(pass, values));
    const sr_layer_setup layer = {.B = pass->contexts ? 1 : pass->setup.B,
                                  .T = pass->contexts ? (int)pass->block_rows : pass->setup.T,
                                  .positions = pass->positions,
                                  .offsets = pass->setup.offsets,
                                  .documents = pass->setup.documents,
                                  .first_values = pass->first_values,
                                  .d_first_values = pass->d_first_values,
                                  .first_columns = values,
                                  .form = pass->setup.form};
    SR_TRY(sr_layer_kinds_create(&pass->kinds, pass->model, &layer));
    pass->setup.offsets = NULL;
    SR_TRY(make_blocks(pass));
    SR_TRY(take_ends(pass));
    SR_TRY(take_activations(pass));
    return sr_lesson_begin(pass);
}

srnn_status sr_pass_create(sr_pass **pass, sr_model *model, const sr_pass_setup *setup) {
    void *memory;
    *pass = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **pass));
    sr_pass *created = memory;
    created->model = model;
    created->backend = model->backend;
    created->setup = *setup;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_pass_free(created);
        return status;
    }
    *pass = created;
    return SRNN_OK;
}

void sr_pass_free(sr_pass *pass) {
    if (!pass)
        return;
    sr_device_forget(pass->backend->device, &pass->step);
    sr_pass_free(pass->teacher);
    for (size_t i = 0; i < pass->memories; i++)
        sr_device_release(pass->backend->device, pass->memory[i]);
    free(pass->memory);
    free(pass->host_positions);
    free(pass->host_hits);
    sr_model_pointers_free(&pass->gradient);
    sr_layer_kinds_free(&pass->kinds);
    sr_contexts_free(pass->contexts);
    free(pass->blocks);
    free(pass->saved);
    free(pass);
}

srnn_status sr_pass_documents(sr_pass *pass, const int64_t *offsets, int64_t documents) {
    if (pass->contexts)
        SR_TRY(sr_contexts_check_documents(pass->contexts, offsets, documents));
    if (pass->teacher)
        SR_TRY(sr_pass_documents(pass->teacher, offsets, documents));
    for (int i = 0; i < pass->kinds.count; i++)
        SR_TRY(sr_mixer_documents(&pass->kinds.kinds[i], offsets, documents));
    return place_tokens(pass, offsets, documents);
}

size_t sr_pass_bytes(const sr_pass *pass) {
    const size_t contexts = pass->contexts ? sr_contexts_bytes(pass->contexts) : 0;
    const size_t teacher = pass->teacher ? sr_pass_bytes(pass->teacher) : 0;
    return pass->bytes + contexts + sr_layer_kinds_bytes(&pass->kinds) + teacher;
}

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
    return sr_ends_embed(
        model, sr_matrix_of(pass->saved[0].x, pass->rows, model->config.C, SRNN_F32), pass->ids);
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
    return (sr_linear){pass->model->worker.head, NULL, pass->model->config.V};
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

srnn_status sr_pass_logits(sr_pass *pass, float *out, const int32_t *ids) {
    sr_matrix logits, normed;
    SR_TRY(sr_pass_load(pass, ids, NULL));
    SR_TRY(sr_pass_forward(pass));
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(sr_pass_logits_tile(pass, &logits, &normed, first));
        SR_TRY(sr_matrix_fetch(out + first * logits.columns, pass->backend->device, logits));
    }
    return SRNN_OK;
}

/* Losses and hits of all rows. */
static srnn_status head_losses(sr_pass *pass) {
    sr_matrix logits, normed;
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(sr_pass_logits_tile(pass, &logits, &normed, first));
        SR_TRY(pass->backend->cross_entropy(pass->backend, pass->losses + first, pass->hits + first,
                                            logits, pass->targets + first, 0.0f));
    }
    return SRNN_OK;
}

/* Losses of the rows of a tile from `first` on, whose logits become the gradient of the head's
 * product. */
static srnn_status logits_gradient(sr_pass *pass, sr_matrix logits, int64_t first) {
    sr_backend *backend = pass->backend;
    const sr_matrix capped = sr_matrix_of(pass->capped, logits.rows, logits.columns, logits.dtype);
    if (pass->capped)
        SR_TRY(sr_device_copy(backend->device, capped.data, logits.data,
                              (size_t)(logits.rows * logits.columns) *
                                  sr_element_bytes(logits.dtype)));
    if (pass->setup.lesson.objective == SR_OBJECTIVE_TEXT)
        SR_TRY(backend->cross_entropy(backend, pass->losses + first, NULL, logits,
                                      pass->targets + first, pass->scale));
    else
        SR_TRY(sr_lesson_diverge(pass, logits, first, pass->scale));
    return sr_ends_logits_back(pass->model, logits, capped);
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
        SR_TRY(logits_gradient(pass, logits, first));
        SR_TRY(backend->linear_backward_input(backend, sr_matrix_rows(d_normed, first, logits.rows),
                                              logits, &head, 1));
        SR_TRY(backend->linear_backward_weight(backend, &d_head, 1, logits, normed));
    }
    return SRNN_OK;
}

static srnn_status losses_out(sr_pass *pass, float *losses) {
    return sr_device_copy_out(pass->backend->device, losses, pass->losses,
                              (size_t)pass->rows * sizeof *losses);
}

srnn_status sr_pass_losses(sr_pass *pass, float *losses, const int32_t *ids,
                           const int32_t *targets) {
    SR_TRY(sr_pass_load(pass, ids, targets));
    SR_TRY(sr_pass_forward(pass));
    SR_TRY(head_losses(pass));
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

static srnn_status tell_ready(const sr_pass *pass, int layer) {
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
        const sr_rmsnorm_gradient d_norm = {pass->d_x, pass->contexts ? pass->d_x : pass->d.narrow,
                                            pass->gradient.norm, scratch.parts};
        if (layer == L - 1) {
            SR_TRY(sr_ends_norm_back(pass->model, &d_norm, pass->gradient.norm_bias, pass->d_normed,
                                     &norm));
            if (pass->contexts)
                SR_TRY(contexts_back(pass));
            SR_TRY(tell_ready(pass, L));
        }
        if (layer < L - 1) /* forward ended with the last layer: all of it is still there */
            SR_TRY(sr_block_recompute(block, &pass->saved[layer], pass->setup.recompute));
        SR_TRY(sr_block_backward(block, pass->d, &pass->gradient.block[layer], &pass->saved[layer],
                                 &scratch));
        SR_TRY(tell_ready(pass, layer));
    }
    return SRNN_OK;
}

/* From the gradient of what the first block read to that of the embedding. */
static srnn_status embed_back(sr_pass *pass) {
    if (pass->contexts)
        return sr_contexts_make_back(pass->contexts, pass->gradient.embedding, pass->d.wide);
    return sr_ends_embed_back(
        pass->model, pass->gradient.embedding,
        sr_matrix_of(pass->d.wide, pass->rows, pass->model->config.C, SRNN_F32), pass->ids);
}

static srnn_status count_losses(sr_pass *pass) {
    return pass->stats ? pass->backend->stats_losses(pass->backend, pass->stats, pass->losses, NULL,
                                                     pass->targets, pass->rows)
                       : SRNN_OK;
}

/* Of the whole model, from its logits down. */
static srnn_status whole_gradients(sr_pass *pass) {
    sr_backend *backend = pass->backend;
    const int C = pass->model->config.C;
    if (pass->setup.lesson.objective != SR_OBJECTIVE_TEXT)
        SR_TRY(sr_pass_forward(pass->teacher));
    SR_TRY(sr_pass_forward(pass));
    SR_TRY(head_gradients(pass));
    SR_TRY(count_losses(pass));
    SR_TRY(
        sr_device_zero(backend->device, pass->d_x, (size_t)pass->rows * (size_t)C * sizeof(float)));
    SR_TRY(layers_backward(pass));
    SR_TRY(embed_back(pass));
    return tell_ready(pass, -1);
}

/* Everything between a loaded batch and its gradients; what is recorded. */
static srnn_status gradients(void *context) {
    sr_pass *pass = context;
    if (!sr_lesson_is_layerwise(pass))
        return whole_gradients(pass);
    SR_TRY(sr_lesson_layers(pass));
    return count_losses(pass);
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
