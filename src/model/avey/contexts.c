/* contexts.c: the rows that the blocks of an Avey model see instead of a batch's. */
#include "model/avey/contexts.h"

#include "base/memory.h"
#include "model/mixers.h"

#include <stdlib.h>

struct sr_contexts {
    sr_model *model;
    int B, T;
    int64_t N;         /* chunks of a sequence */
    int32_t *ids;      /* (B, N * chunk): -1 after the last token; device memory, as all of these */
    int32_t *row_of;   /* (B, T): the row of all contexts that a token stands in */
    int32_t *token_of; /* (rows of all contexts): the token that is read there, or -1 */
    float *embedded;   /* (B * N * chunk, C) */
    float *gradient;   /* the same */
    void *ranked;      /* what the ranker saves */
    size_t bytes;
};

static int64_t tokens(const sr_contexts *c) {
    return c->N * c->model->config.avey.chunk;
}

static sr_ranking ranking_of(const sr_contexts *c) {
    sr_ranking ranking = sr_avey_ranking(&c->model->config.avey, c->B, c->N, c->model->config.C);
    ranking.e = c->embedded;
    ranking.saved = c->ranked;
    return ranking;
}

int64_t sr_contexts_rows(const sr_contexts *c) {
    return c->B * c->N * sr_avey_rows(&c->model->config.avey);
}

/* ---- memory */

static srnn_status take(sr_contexts *c, void **out, size_t bytes) {
    SR_TRY(sr_device_allocate(c->model->backend->device, out, bytes));
    c->bytes += bytes;
    return SRNN_OK;
}

/* Integers that stay as they are. */
static srnn_status take_integers(sr_contexts *c, int32_t **out, const int32_t *host, int64_t n) {
    const size_t bytes = (size_t)n * sizeof *host;
    void *memory;
    SR_TRY(take(c, &memory, bytes));
    *out = memory;
    return sr_device_copy_in(c->model->backend->device, memory, host, bytes);
}

/* The row of all contexts that token t of sequence b stands in. */
static int64_t row_of(const sr_contexts *c, int64_t b, int64_t t) {
    const sr_avey *a = &c->model->config.avey;
    const int64_t context = b * c->N + t / a->chunk;
    return (context + 1) * sr_avey_rows(a) - a->chunk + t % a->chunk;
}

/* `integers`: a buffer for those of one array. */
static srnn_status place_tokens(sr_contexts *c, int32_t *integers) {
    const int64_t batch = (int64_t)c->B * c->T, rows = sr_contexts_rows(c);
    for (int64_t i = 0; i < c->B * tokens(c); i++)
        integers[i] = -1;
    SR_TRY(take_integers(c, &c->ids, integers, c->B * tokens(c)));
    for (int64_t i = 0; i < batch; i++)
        integers[i] = (int32_t)row_of(c, i / c->T, i % c->T);
    SR_TRY(take_integers(c, &c->row_of, integers, batch));
    for (int64_t i = 0; i < rows; i++)
        integers[i] = -1;
    for (int64_t i = 0; i < batch; i++)
        integers[row_of(c, i / c->T, i % c->T)] = (int32_t)i;
    return take_integers(c, &c->token_of, integers, rows);
}

static srnn_status take_all(sr_contexts *c) {
    const size_t numbers = (size_t)(c->B * tokens(c)) * (size_t)c->model->config.C;
    const sr_ranking ranking = ranking_of(c);
    void *memory;
    SR_TRY(take(c, &memory, numbers * sizeof *c->embedded));
    c->embedded = memory;
    SR_TRY(take(c, &memory, numbers * sizeof *c->gradient));
    c->gradient = memory;
    SR_TRY(take(c, &c->ranked, c->model->backend->rank_bytes(c->model->backend, &ranking)));
    SR_TRY(sr_alloc(&memory, (size_t)sr_contexts_rows(c), sizeof *c->token_of));
    const srnn_status status = place_tokens(c, memory);
    free(memory);
    return status;
}

srnn_status sr_contexts_create(sr_contexts **contexts, sr_model *model, int B, int T) {
    const int chunk = model->config.avey.chunk;
    void *memory;
    *contexts = NULL;
    if (!sr_mixer_row_of(&model->config)->contexts)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **contexts));
    sr_contexts *created = memory;
    *created = (sr_contexts){.model = model, .B = B, .T = T, .N = (T + chunk - 1) / chunk};
    const srnn_status status =
        sr_contexts_rows(created) <= INT32_MAX
            ? take_all(created)
            : SR_FAIL(SRNN_ERR_ARGUMENT, "a batch of %d x %d tokens makes too many contexts", B, T);
    if (status != SRNN_OK) {
        sr_contexts_free(created);
        return status;
    }
    *contexts = created;
    return SRNN_OK;
}

void sr_contexts_free(sr_contexts *c) {
    if (!c)
        return;
    void *const memory[] = {c->ids, c->row_of, c->token_of, c->embedded, c->gradient, c->ranked};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        sr_device_release(c->model->backend->device, memory[i]);
    free(c);
}

srnn_status sr_contexts_check_documents(const sr_contexts *c, const int64_t *offsets,
                                        int64_t documents) {
    for (int64_t n = 0; offsets && n < documents; n++)
        if (offsets[n] % c->T != 0)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                           "avey takes rows of one document each; use another layout of the data");
    return SRNN_OK;
}

size_t sr_contexts_bytes(const sr_contexts *c) {
    return c->bytes;
}

/* ---- from tokens to contexts and back */

static sr_matrix rows_of(const sr_contexts *c, float *data, int64_t rows) {
    return sr_matrix_of(data, rows, c->model->config.C, SRNN_F32);
}

srnn_status sr_contexts_make(sr_contexts *c, float *x, const int32_t *ids) {
    sr_backend *backend = c->model->backend;
    const sr_ranking ranking = ranking_of(c);
    for (int64_t b = 0; b < c->B; b++)
        SR_TRY(sr_device_copy(backend->device, c->ids + b * tokens(c), ids + b * c->T,
                              (size_t)c->T * sizeof *ids));
    SR_TRY(backend->embed_forward(backend, rows_of(c, c->embedded, c->B * tokens(c)),
                                  sr_model_embedding(c->model), c->ids));
    return backend->rank_forward(backend, x, &ranking);
}

srnn_status sr_contexts_read(const sr_contexts *c, float *out, const float *x) {
    sr_backend *backend = c->model->backend;
    return backend->embed_forward(backend, rows_of(c, out, (int64_t)c->B * c->T),
                                  rows_of(c, (float *)x, sr_contexts_rows(c)), c->row_of);
}

srnn_status sr_contexts_read_back(const sr_contexts *c, float *d_x, const float *d_out) {
    sr_backend *backend = c->model->backend;
    return backend->embed_forward(backend, rows_of(c, d_x, sr_contexts_rows(c)),
                                  rows_of(c, (float *)d_out, (int64_t)c->B * c->T), c->token_of);
}

srnn_status sr_contexts_make_back(sr_contexts *c, float *d_embedding, const float *d_x) {
    sr_backend *backend = c->model->backend;
    const sr_ranking ranking = ranking_of(c);
    SR_TRY(backend->rank_backward(backend, c->gradient, d_x, &ranking));
    return backend->embed_backward(backend, d_embedding, rows_of(c, c->gradient, c->B * tokens(c)),
                                   c->ids);
}
