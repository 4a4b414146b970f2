/* contexts.c: the rows that the blocks of an Avey model see instead of a batch's. */
#include "model/avey/contexts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

struct sr_contexts {
    sr_model *model;
    int B, T;
    int64_t N;       /* chunks of a sequence */
    int32_t *ids;    /* (B, N * chunk): -1 after the last token */
    float *embedded; /* (B * N * chunk, C) */
    float *gradient; /* the same */
};

static int64_t tokens(const sr_contexts *c) {
    return c->N * c->model->config.avey.chunk;
}

static srnn_status take(sr_contexts *c) {
    const size_t rows = (size_t)(c->B * tokens(c)), C = (size_t)c->model->config.C;
    void *memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof *c->ids));
    c->ids = memory;
    SR_TRY(sr_alloc(&memory, rows * C, sizeof *c->embedded));
    c->embedded = memory;
    SR_TRY(sr_alloc(&memory, rows * C, sizeof *c->gradient));
    c->gradient = memory;
    return SRNN_OK;
}

srnn_status sr_contexts_create(sr_contexts **contexts, sr_model *model, int B, int T) {
    const int chunk = model->config.avey.chunk;
    void *memory;
    *contexts = NULL;
    if (!model->config.is_avey)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **contexts));
    sr_contexts *created = memory;
    *created = (sr_contexts){.model = model, .B = B, .T = T, .N = (T + chunk - 1) / chunk};
    const srnn_status status = take(created);
    if (status != SRNN_OK) {
        sr_contexts_free(created);
        return status;
    }
    *contexts = created;
    return SRNN_OK;
}

void sr_contexts_free(sr_contexts *contexts) {
    if (!contexts)
        return;
    free(contexts->ids);
    free(contexts->embedded);
    free(contexts->gradient);
    free(contexts);
}

srnn_status sr_contexts_check_documents(const sr_contexts *c, const int64_t *offsets,
                                        int64_t documents) {
    for (int64_t n = 0; offsets && n < documents; n++)
        if (offsets[n] % c->T != 0)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                           "avey takes rows of one document each; use another layout of the data");
    return SRNN_OK;
}

int64_t sr_contexts_rows(const sr_contexts *c) {
    return c->B * c->N * sr_avey_rows(&c->model->config.avey);
}

size_t sr_contexts_bytes(const sr_contexts *c) {
    return (size_t)(c->B * tokens(c)) *
           (2 * (size_t)c->model->config.C * sizeof(float) + sizeof *c->ids);
}

static sr_avey_ranking ranking_of(const sr_contexts *c) {
    const sr_model *model = c->model;
    return (sr_avey_ranking){.avey = &model->config.avey,
                             .B = c->B,
                             .N = c->N,
                             .C = model->config.C,
                             .threads = model->backend->threads};
}

static sr_matrix embedded(const sr_contexts *c, float *data) {
    return sr_matrix_of(data, c->B * tokens(c), c->model->config.C, SRNN_F32);
}

srnn_status sr_contexts_make(sr_contexts *c, float *x, const int32_t *ids) {
    sr_backend *backend = c->model->backend;
    const sr_avey_ranking ranking = ranking_of(c);
    for (int b = 0; b < c->B; b++)
        for (int64_t t = 0; t < tokens(c); t++)
            c->ids[b * tokens(c) + t] = t < c->T ? ids[(int64_t)b * c->T + t] : -1;
    SR_TRY(backend->embed_forward(backend, embedded(c, c->embedded), c->model->master.embedding,
                                  c->ids));
    return sr_avey_rank(&ranking, x, c->embedded);
}

/* The row of all contexts that token t of a sequence stands in. */
static int64_t row_of(const sr_contexts *c, int b, int t) {
    const sr_avey *a = &c->model->config.avey;
    const int64_t context = b * c->N + t / a->chunk;
    return (context + 1) * sr_avey_rows(a) - a->chunk + t % a->chunk;
}

void sr_contexts_read(const sr_contexts *c, float *out, const float *x) {
    const int64_t C = c->model->config.C;
    for (int b = 0; b < c->B; b++)
        for (int t = 0; t < c->T; t++)
            memcpy(out + ((int64_t)b * c->T + t) * C, x + row_of(c, b, t) * C,
                   (size_t)C * sizeof *out);
}

void sr_contexts_read_back(const sr_contexts *c, float *d_x, const float *d_out) {
    const int64_t C = c->model->config.C;
    memset(d_x, 0, (size_t)(sr_contexts_rows(c) * C) * sizeof *d_x);
    for (int b = 0; b < c->B; b++)
        for (int t = 0; t < c->T; t++)
            memcpy(d_x + row_of(c, b, t) * C, d_out + ((int64_t)b * c->T + t) * C,
                   (size_t)C * sizeof *d_x);
}

srnn_status sr_contexts_make_back(sr_contexts *c, float *d_embedding, const float *d_x) {
    sr_backend *backend = c->model->backend;
    const sr_avey_ranking ranking = ranking_of(c);
    SR_TRY(sr_avey_rank_back(&ranking, c->gradient, d_x, c->embedded));
    return backend->embed_backward(backend, d_embedding, embedded(c, c->gradient), c->ids);
}
