/* pass.c: a whole model over a batch: logits, losses, gradients. */
#include "model/pass.h"

#include "base/memory.h"
#include "data/rows/source.h"
#include "model/block.h"
#include "model/layer_kinds.h"

#include <stdlib.h>

/* Logits exist for one tile of rows at a time: about this many numbers, at least so many rows. */
enum { LOGIT_NUMBERS = 1 << 20, LOGIT_ROWS = 128 };

struct sr_pass {
    sr_model *model;
    sr_backend *backend;
    sr_pass_setup setup;
    int64_t rows;
    sr_layer_kinds kinds;
    sr_block *blocks;      /* (L) */
    sr_block_saved *saved; /* (L); with recompute or without train all share one memory */
    void *scratch;         /* of backward; each layer's kind lays it out its own way */
    float *gradients;
    sr_model_pointers gradient;
    int32_t *ids, *targets; /* (rows), backend */
    float *losses;          /* (rows), backend */
    float *x;               /* (rows, C): the last layer's output */
    float *normed, *rstd;   /* (rows, C), (rows): the last norm's */
    float *d_normed, *d;    /* (rows, C) each */
    float *logits;          /* (logit_rows, V) */
    float *host;            /* (logit_rows, V), host memory: logits whose largest is looked for */
    int64_t logit_rows;
    void **memory; /* everything from the backend, for freeing */
    size_t memories, bytes;
};

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
                                         .attention = pass->kinds.of_layer[layer],
                                         .weight = &model->weight.block[layer],
                                         .rows = pass->rows,
                                         .layer = layer,
                                         .observer = pass->setup.observer};
    return SRNN_OK;
}

/* Each layer keeps its input; what lies between has memory of its own only if backward will read
 * it where forward left it. */
static srnn_status take_activations(sr_pass *pass) {
    const int L = pass->model->config.L;
    const size_t C = (size_t)pass->model->config.C, rows = (size_t)pass->rows;
    const bool keep = pass->setup.train && !pass->setup.recompute;
    size_t largest = 0, scratch = 0;
    void *shared = NULL;
    for (int layer = 0; layer < L; layer++) {
        const size_t saved = sr_block_saved_bytes(&pass->blocks[layer]);
        const size_t beside = sr_block_scratch_bytes(&pass->blocks[layer]);
        largest = saved > largest ? saved : largest;
        scratch = beside > scratch ? beside : scratch;
    }
    if (!keep)
        SR_TRY(take(pass, &shared, largest, 1));
    for (int layer = 0; layer < L; layer++) {
        sr_block_saved *saved = &pass->saved[layer];
        void *own = shared;
        if (keep)
            SR_TRY(take(pass, &own, sr_block_saved_bytes(&pass->blocks[layer]), 1));
        *saved = sr_block_saved_at(&pass->blocks[layer], own);
        if (pass->setup.train || layer < 2)
            SR_TRY(take_floats(pass, &saved->x, rows * C));
        else
            saved->x = pass->saved[layer % 2].x; /* two buffers take turns */
    }
    if (!pass->setup.train)
        return SRNN_OK;
    SR_TRY(take(pass, &pass->scratch, scratch, 1));
    SR_TRY(take_floats(pass, &pass->d_normed, rows * C));
    SR_TRY(take_floats(pass, &pass->d, rows * C));
    SR_TRY(take_floats(pass, &pass->gradients, pass->model->table.numbers));
    SR_TRY(sr_model_pointers_make(&pass->gradient, pass->model, pass->gradients));
    return sr_pass_zero_gradient(pass);
}

static srnn_status take_ends(sr_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const size_t rows = (size_t)pass->rows, C = (size_t)c->C;
    pass->logit_rows = LOGIT_NUMBERS / c->V / LOGIT_ROWS * LOGIT_ROWS;
    if (pass->logit_rows < LOGIT_ROWS)
        pass->logit_rows = LOGIT_ROWS;
    if (pass->logit_rows > pass->rows)
        pass->logit_rows = pass->rows;
    SR_TRY(take_tokens(pass, &pass->ids));
    SR_TRY(take_tokens(pass, &pass->targets));
    SR_TRY(take_floats(pass, &pass->losses, rows));
    SR_TRY(take_floats(pass, &pass->x, rows * C));
    SR_TRY(take_floats(pass, &pass->normed, rows * C));
    SR_TRY(take_floats(pass, &pass->rstd, rows));
    const size_t numbers = (size_t)pass->logit_rows * (size_t)c->V;
    SR_TRY(take_floats(pass, &pass->logits, numbers));
    void *memory;
    SR_TRY(sr_alloc(&memory, numbers, sizeof *pass->host));
    pass->host = memory;
    pass->bytes += numbers * sizeof *pass->host;
    return SRNN_OK;
}

static srnn_status fill(sr_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const sr_layer_setup layer = {.dims = sr_model_config_dims(c),
                                  .B = pass->setup.B,
                                  .T = pass->setup.T,
                                  .offsets = pass->setup.offsets,
                                  .documents = pass->setup.documents,
                                  .rope_table = pass->model->rope_table,
                                  .rope_positions = c->positions,
                                  .form = pass->setup.form};
    void *memory;
    if (pass->setup.B < 1 || pass->setup.T < 1 ||
        (int64_t)pass->setup.B * pass->setup.T > INT32_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a batch of %d x %d tokens makes no sense", pass->setup.B,
                       pass->setup.T);
    pass->rows = (int64_t)pass->setup.B * pass->setup.T;
    SR_TRY(sr_alloc_zero(&memory, (size_t)(2 * c->L + 16), sizeof *pass->memory));
    pass->memory = memory;
    SR_TRY(sr_layer_kinds_create(&pass->kinds, pass->backend, c, &layer));
    pass->setup.offsets = NULL;
    SR_TRY(make_blocks(pass));
    SR_TRY(take_ends(pass));
    return take_activations(pass);
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
    for (size_t i = 0; i < pass->memories; i++)
        sr_device_release(pass->backend->device, pass->memory[i]);
    free(pass->memory);
    free(pass->host);
    sr_model_pointers_free(&pass->gradient);
    sr_layer_kinds_free(&pass->kinds);
    free(pass->blocks);
    free(pass->saved);
    free(pass);
}

srnn_status sr_pass_documents(sr_pass *pass, const int64_t *offsets, int64_t documents) {
    for (int i = 0; i < pass->kinds.count; i++)
        SR_TRY(sr_attention_layer_documents(pass->kinds.kinds[i], offsets, documents));
    return SRNN_OK;
}

size_t sr_pass_bytes(const sr_pass *pass) {
    return pass->bytes + sr_layer_kinds_bytes(&pass->kinds);
}

float *sr_pass_gradient(sr_pass *pass) {
    return pass->gradients;
}

srnn_status sr_pass_zero_gradient(sr_pass *pass) {
    return sr_device_zero(pass->backend->device, pass->gradients,
                          pass->model->table.numbers * sizeof(float));
}

/* ids in, pass->normed out. */
static srnn_status forward(sr_pass *pass, const int32_t *ids) {
    sr_backend *backend = pass->backend;
    const sr_model *model = pass->model;
    const int L = model->config.L;
    for (int64_t row = 0; row < pass->rows; row++)
        if (ids[row] >= model->config.V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "token %d: the model has only %d", ids[row],
                           model->config.V);
    SR_TRY(sr_device_copy_in(backend->device, pass->ids, ids, (size_t)pass->rows * sizeof *ids));
    SR_TRY(backend->embed_forward(backend,
                                  sr_matrix_of(pass->saved[0].x, pass->rows, model->config.C),
                                  model->weight.embedding, pass->ids));
    for (int layer = 0; layer < L; layer++)
        SR_TRY(sr_block_forward(&pass->blocks[layer],
                                layer + 1 < L ? pass->saved[layer + 1].x : pass->x,
                                &pass->saved[layer]));
    const sr_rmsnorm norm = {pass->x,    model->weight.norm,
                             pass->rstd, (float)model->config.norm_epsilon,
                             pass->rows, model->config.C};
    return backend->rmsnorm_forward(backend, pass->normed, &norm);
}

/* pass->logits (rows of one tile, V). */
static srnn_status logits_tile(sr_pass *pass, sr_matrix *logits, sr_matrix *normed, int64_t first) {
    sr_backend *backend = pass->backend;
    const sr_model *model = pass->model;
    const int64_t left = pass->rows - first;
    const int64_t rows = left < pass->logit_rows ? left : pass->logit_rows;
    *logits = sr_matrix_of(pass->logits, rows, model->config.V);
    *normed = sr_matrix_rows(sr_matrix_of(pass->normed, pass->rows, model->config.C), first, rows);
    return backend->linear_forward(backend, *logits, *normed, model->weight.head, NULL, false);
}

srnn_status sr_pass_logits(sr_pass *pass, float *out, const int32_t *ids) {
    sr_matrix logits, normed;
    SR_TRY(forward(pass, ids));
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(logits_tile(pass, &logits, &normed, first));
        SR_TRY(sr_device_copy_out(pass->backend->device, out + first * logits.columns, logits.data,
                                  (size_t)(logits.rows * logits.columns) * sizeof *out));
    }
    return SRNN_OK;
}

static srnn_status copy_targets(sr_pass *pass, const int32_t *targets) {
    for (int64_t row = 0; row < pass->rows; row++)
        if (targets[row] >= pass->model->config.V)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "target %d: the model has only %d tokens",
                           targets[row], pass->model->config.V);
    return sr_device_copy_in(pass->backend->device, pass->targets, targets,
                             (size_t)pass->rows * sizeof *targets);
}

/* Counts on the host, before the loss turns logits into their gradient. */
static srnn_status count_correct(sr_pass *pass, int64_t *correct, sr_matrix logits,
                                 const int32_t *targets) {
    int64_t counted = 0;
    SR_TRY(sr_device_copy_out(pass->backend->device, pass->host, logits.data,
                              (size_t)(logits.rows * logits.columns) * sizeof *pass->host));
    sr_accuracy_add(correct, &counted, pass->host, targets, logits.rows, (int)logits.columns);
    return SRNN_OK;
}

/* Losses of all rows; adds to *correct unless it is NULL. */
static srnn_status head_losses(sr_pass *pass, int64_t *correct, const int32_t *targets) {
    sr_matrix logits, normed;
    SR_TRY(copy_targets(pass, targets));
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(logits_tile(pass, &logits, &normed, first));
        if (correct)
            SR_TRY(count_correct(pass, correct, logits, targets + first));
        SR_TRY(pass->backend->cross_entropy(pass->backend, pass->losses + first, logits,
                                            pass->targets + first, 1.0f));
    }
    return SRNN_OK;
}

/* Losses of all rows, the gradient of the head's weights and of pass->normed. */
static srnn_status head_gradients(sr_pass *pass, const int32_t *targets, float scale) {
    sr_backend *backend = pass->backend;
    const sr_matrix d_normed = sr_matrix_of(pass->d_normed, pass->rows, pass->model->config.C);
    sr_matrix logits, normed;
    SR_TRY(copy_targets(pass, targets));
    for (int64_t first = 0; first < pass->rows; first += pass->logit_rows) {
        SR_TRY(logits_tile(pass, &logits, &normed, first));
        SR_TRY(backend->cross_entropy(backend, pass->losses + first, logits, pass->targets + first,
                                      scale));
        SR_TRY(backend->linear_backward_input(backend, sr_matrix_rows(d_normed, first, logits.rows),
                                              logits, pass->model->weight.head, false));
        SR_TRY(backend->linear_backward_weight(backend, pass->gradient.head, NULL, logits, normed));
    }
    return SRNN_OK;
}

static srnn_status losses_out(sr_pass *pass, float *losses) {
    return sr_device_copy_out(pass->backend->device, losses, pass->losses,
                              (size_t)pass->rows * sizeof *losses);
}

srnn_status sr_pass_losses(sr_pass *pass, float *losses, const int32_t *ids,
                           const int32_t *targets) {
    SR_TRY(forward(pass, ids));
    SR_TRY(head_losses(pass, NULL, targets));
    return losses_out(pass, losses);
}

srnn_status sr_pass_evaluate(sr_pass *pass, float *losses, int64_t *correct, const int32_t *ids,
                             const int32_t *targets) {
    SR_TRY(forward(pass, ids));
    SR_TRY(head_losses(pass, correct, targets));
    return losses_out(pass, losses);
}

srnn_status sr_pass_gradients(sr_pass *pass, float *losses, const int32_t *ids,
                              const int32_t *targets, double scale) {
    sr_backend *backend = pass->backend;
    const sr_model *model = pass->model;
    const size_t bytes = (size_t)pass->rows * (size_t)model->config.C * sizeof(float);
    if (!pass->setup.train)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "this pass was created without gradients");
    SR_TRY(forward(pass, ids));
    SR_TRY(head_gradients(pass, targets, (float)scale));
    SR_TRY(losses_out(pass, losses));
    const sr_rmsnorm norm = {pass->x,    model->weight.norm,
                             pass->rstd, (float)model->config.norm_epsilon,
                             pass->rows, model->config.C};
    SR_TRY(sr_device_zero(backend->device, pass->d, bytes));
    for (int layer = model->config.L - 1; layer >= 0; layer--) {
        const sr_block *block = &pass->blocks[layer];
        const sr_block_scratch scratch = sr_block_scratch_at(block, pass->scratch);
        if (layer == model->config.L - 1)
            SR_TRY(backend->rmsnorm_backward(backend, pass->d, pass->gradient.norm, pass->d_normed,
                                             &norm, scratch.parts));
        if (pass->setup.recompute)
            SR_TRY(sr_block_forward(block, NULL, &pass->saved[layer]));
        SR_TRY(sr_block_backward(block, pass->d, &pass->gradient.block[layer], &pass->saved[layer],
                                 &scratch));
    }
    return backend->embed_backward(backend, pass->gradient.embedding,
                                   sr_matrix_of(pass->d, pass->rows, model->config.C), pass->ids);
}
