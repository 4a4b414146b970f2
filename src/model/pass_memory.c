/* pass_memory.c: how a pass over a batch is made: its layers, all of its memory, its documents. */
#include "model/pass_parts.h"

#include "base/memory.h"
#include "model/ends.h"

#include <stdlib.h>

/* Logits exist for one tile of rows at a time: what the backend prefers, at least this many. */
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
                                         .narrow = model->narrow,
                                         .rows = pass->block_rows,
                                         .layer = layer,
                                         .observer = pass->setup.observer};
    return SRNN_OK;
}

static size_t aligned(size_t bytes) {
    enum { ALIGNMENT = 256 };
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Kept in every layer, whatever is recomputed: ranks exchange it once. */
static srnn_status take_crossing(sr_pass *pass, sr_block_saved *saved, size_t bytes) {
    if (!bytes)
        return SRNN_OK;
    SR_TRY(take(pass, &saved->crossing.memory, bytes, 1));
    return sr_device_zero(pass->backend->device, saved->crossing.memory, bytes);
}

/* What the last norm and the head read, and the gradient that comes back. With gradients it lies in
 * backward's scratch, after the part that the last norm's own backward pass needs: no layer is
 * computed backward before all of it has been read. */
static srnn_status take_last(sr_pass *pass, size_t scratch) {
    const size_t numbers = (size_t)pass->rows * (size_t)pass->model->config.C;
    const size_t number = sr_element_bytes(pass->backend->number);
    const size_t wide = aligned(numbers * sizeof(float)), narrow = aligned(numbers * number);
    void *memory;
    char *at;
    if (pass->setup.train) {
        const size_t parts = sr_block_parts_bytes(&pass->blocks[0]);
        SR_TRY(take(pass, &pass->scratch, larger(scratch, parts + wide + 2 * narrow), 1));
        at = (char *)pass->scratch + parts;
        pass->d_normed = at + wide + narrow;
    } else {
        SR_TRY(take(pass, &memory, wide + narrow, 1));
        at = memory;
    }
    pass->x = (float *)(void *)at;
    pass->normed = at + wide;
    pass->last = pass->x;
    return pass->contexts ? take_floats(pass, &pass->last,
                                        (size_t)pass->block_rows * (size_t)pass->model->config.C)
                          : SRNN_OK;
}

/* The gradient of the residual stream is measured where layers multiply in 8 bits and nothing but
 * the gradients of RMS norms writes it. */
static srnn_status take_measure(sr_pass *pass) {
    void *memory;
    bool measured = !pass->contexts && !sr_lesson_has_streams(pass);
    for (int layer = 0; measured && layer < pass->model->config.L; layer++)
        measured = sr_block_takes_codes(&pass->blocks[layer]);
    if (!measured)
        return SRNN_OK;
    SR_TRY(take(pass, &memory, 1, sizeof *pass->d.measured));
    pass->d.measured = memory;
    pass->d.codes = true;
    for (int layer = 0; layer < pass->model->config.L; layer++)
        pass->d.codes = pass->d.codes && sr_block_takes_gradient_codes(&pass->blocks[layer]);
    return SRNN_OK;
}

/* Activations of a layer in 8 bits are expected to be as large as those of the layer before. */
static srnn_status take_notes(sr_pass *pass) {
    const int L = pass->model->config.L;
    void *memory;
    SR_TRY(take(pass, &memory, (size_t)L, sizeof(sr_matrix_note)));
    sr_matrix_note *notes = memory;
    for (int layer = 0; layer < L; layer++) {
        pass->blocks[layer].activated_note = notes + layer;
        pass->blocks[layer].activated_before = layer > 0 ? notes + layer - 1 : NULL;
    }
    return SRNN_OK;
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
    SR_TRY(take_notes(pass));
    for (int layer = 0; layer < L; layer++) {
        mixer_bytes = larger(mixer_bytes, sr_block_mixer_half_bytes(&pass->blocks[layer]));
        mlp_bytes = larger(mlp_bytes, sr_block_mlp_half_bytes(&pass->blocks[layer]));
        scratch = larger(scratch, sr_block_scratch_bytes(&pass->blocks[layer]));
    }
    for (int layer = 0; layer < L; layer++) {
        const sr_block *block = &pass->blocks[layer];
        sr_block_saved *saved = &pass->saved[layer];
        const size_t mixer_own = keep_mixer ? sr_block_mixer_half_bytes(block) : mixer_bytes;
        const size_t mlp_own = keep_mlp ? sr_block_mlp_half_bytes(block) : mlp_bytes;
        if (keep_mixer || layer == 0)
            SR_TRY(take(pass, &mixer, mixer_own, 1));
        if (mlp_bytes && (keep_mlp || layer == 0))
            SR_TRY(take(pass, &mlp, mlp_own, 1));
        *saved = sr_block_saved_split(block, mixer, mlp);
        saved->codes = true;
        SR_TRY(take_crossing(pass, saved, sr_mixer_crossing_bytes(block->mixer)));
        if ((pass->setup.train && !layerwise) || pass->setup.keep_inputs || layer < 2)
            SR_TRY(take_floats(pass, &saved->x, rows * C));
        else
            saved->x = pass->saved[layer % 2].x; /* two buffers alternate */
    }
    SR_TRY(take_last(pass, scratch));
    if (!pass->setup.train)
        return SRNN_OK;
    const size_t number = sr_element_bytes(pass->backend->number);
    SR_TRY(take_floats(pass, &pass->d.wide, rows * C));
    pass->d_x = pass->d.wide;
    if (pass->contexts)
        SR_TRY(take_floats(pass, &pass->d_x, (size_t)pass->rows * C));
    pass->d.narrow = pass->d.wide;
    if (pass->backend->number != SRNN_F32)
        SR_TRY(take(pass, &pass->d.narrow, rows * C, number));
    SR_TRY(take_measure(pass));
    SR_TRY(take_floats(pass, &pass->gradients, pass->model->table.numbers));
    SR_TRY(sr_model_pointers_make(&pass->gradient, pass->model, pass->gradients, SRNN_F32));
    return sr_pass_zero_gradient(pass);
}

/* The loss writes the gradient in 8 bits where no logits are scaled or capped after the head. */
static srnn_status take_d_logits(sr_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const sr_linear head = sr_model_head(pass->model);
    void *memory;
    if (!pass->setup.train || !pass->backend->fp8_head ||
        pass->setup.lesson.objective != SR_OBJECTIVE_TEXT || !sr_ends_are_plain(c) ||
        !pass->backend->takes_codes(pass->backend, &head, 1, pass->logit_rows, c->C))
        return SRNN_OK;
    SR_TRY(take(pass, &memory, 1, sizeof *pass->d_logits_note));
    pass->d_logits_note = memory;
    return take(pass, &pass->d_logits, (size_t)pass->logit_rows * (size_t)c->V, 2);
}

static srnn_status take_ends(sr_pass *pass) {
    const sr_model_config *c = &pass->model->config;
    const size_t rows = (size_t)pass->rows;
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
    if (pass->setup.lesson.hidden_weight > 0)
        SR_TRY(take_floats(pass, &pass->stream_errors, rows));
    SR_TRY(take_floats(pass, &pass->rstd, rows));
    const size_t logits = (size_t)pass->logit_rows * (size_t)c->V;
    if (c->logit_cap > 0 && pass->setup.train)
        SR_TRY(take(pass, &pass->capped, logits, number));
    SR_TRY(take_d_logits(pass));
    return take(pass, &pass->logits, logits, number);
}

/* Moves the tokens of each row's first document on by those before the part. */
static void place_after(sr_pass *pass, const int32_t *before) {
    for (int64_t b = 0; b < pass->setup.B; b++) {
        int32_t *row = pass->host_positions + b * pass->setup.T;
        for (int32_t t = 0; t < pass->setup.T && row[t] == t; t++)
            row[t] += before ? before[b] : pass->part.first;
    }
}

static srnn_status place_tokens(sr_pass *pass, const sr_documents *documents) {
    sr_layer_positions(pass->host_positions, pass->rows, pass->setup.T, documents->offsets,
                       documents->count);
    if (pass->part.count > 1)
        place_after(pass, documents->before);
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
    if (pass->part.count > 1) {
        SR_TRY(sr_alloc(&memory, (size_t)pass->rows + 1, sizeof *pass->offsets));
        pass->offsets = memory;
        SR_TRY(sr_alloc(&memory, (size_t)pass->setup.B, sizeof *pass->before));
        pass->before = memory;
    }
    return place_tokens(pass, &(sr_documents){.offsets = pass->setup.offsets,
                                              .count = pass->setup.documents});
}

static srnn_status make_contexts(sr_pass *pass) {
    pass->block_rows = pass->rows;
    SR_TRY(sr_contexts_create(&pass->contexts, pass->model, pass->setup.B, pass->setup.T));
    if (!pass->contexts)
        return SRNN_OK;
    if (pass->part.count > 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "avey has contexts of chunks of the whole row, which parts on context ranks "
                       "do not have: use data-parallel ranks");
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
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "a batch of %d rows of %d tokens: there must be one or more of each, and "
                       "at most %d tokens",
                       pass->setup.B, pass->setup.T, INT32_MAX);
    pass->rows = (int64_t)pass->setup.B * pass->setup.T;
    SR_TRY(sr_alloc_zero(&memory, (size_t)(4 * c->L + 24), sizeof *pass->memory));
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
                                  .part = pass->part.count > 1 ? &pass->part : NULL,
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
    created->setup.part = NULL;
    if (setup->part)
        created->part = *setup->part;
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
    free(pass->offsets);
    free(pass->before);
    sr_model_pointers_free(&pass->gradient);
    sr_layer_kinds_free(&pass->kinds);
    sr_contexts_free(pass->contexts);
    free(pass->blocks);
    free(pass->saved);
    free(pass);
}

/* As the layers take them. */
static sr_documents documents_of(const sr_pass *pass, const int64_t *offsets, int64_t count) {
    if (pass->part.count > 1)
        return sr_documents_of_part(&pass->part, pass->setup.B, pass->setup.T, offsets, count,
                                    pass->offsets, pass->before);
    return (sr_documents){.offsets = offsets, .count = count};
}

srnn_status sr_pass_documents(sr_pass *pass, const int64_t *offsets, int64_t documents) {
    const sr_documents own = documents_of(pass, offsets, documents);
    if (pass->contexts)
        SR_TRY(sr_contexts_check_documents(pass->contexts, offsets, documents));
    if (pass->teacher)
        SR_TRY(sr_pass_documents(pass->teacher, offsets, documents));
    for (int i = 0; i < pass->kinds.count; i++) {
        SR_TRY(sr_mixer_documents(&pass->kinds.kinds[i], &own));
        sr_mixer_place(&pass->kinds.kinds[i], pass->positions);
    }
    return place_tokens(pass, &own);
}

size_t sr_pass_bytes(const sr_pass *pass) {
    const size_t contexts = pass->contexts ? sr_contexts_bytes(pass->contexts) : 0;
    const size_t teacher = pass->teacher ? sr_pass_bytes(pass->teacher) : 0;
    return pass->bytes + contexts + sr_layer_kinds_bytes(&pass->kinds) + teacher;
}
