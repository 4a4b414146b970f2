/* feed.c: an Avey model fed token by token. */
#include "model/avey/feed.h"

#include "base/memory.h"
#include "model/layer/block/block.h"

#include <stdlib.h>

struct sr_avey_feed {
    sr_model *model;
    int B;
    int64_t fed;      /* tokens of each sequence */
    int64_t capacity; /* in chunks */
    float *embedded;  /* (B, capacity * chunk, C); zeros after the last token; device memory, as all
                         arrays here */
    void *ranked;     /* what the ranker saves of that many */
    sr_layer_kinds kinds;
    float *in, *out; /* (B * context, C) */
    void *saved;     /* of one block */
};

static srnn_device *device_of(const sr_avey_feed *f) {
    return f->model->backend->device;
}

static const sr_avey *avey_of(const sr_avey_feed *f) {
    return &f->model->config.avey;
}

static int64_t context_rows(const sr_avey_feed *f) {
    return f->B * sr_avey_rows(avey_of(f));
}

static sr_block block_of(const sr_avey_feed *f, int layer) {
    return (sr_block){.backend = f->model->backend,
                      .config = &f->model->config,
                      .mixer = f->kinds.of_layer[layer],
                      .master = &f->model->master.block[layer],
                      .worker = &f->model->worker.block[layer],
                      .rows = context_rows(f)};
}

static srnn_status take_floats(sr_avey_feed *f, float **out, size_t count) {
    void *memory;
    SR_TRY(sr_device_allocate(device_of(f), &memory, count * sizeof **out));
    *out = memory;
    return SRNN_OK;
}

static srnn_status take(sr_avey_feed *f) {
    const size_t numbers = (size_t)context_rows(f) * (size_t)f->model->config.C;
    SR_TRY(sr_layer_kinds_create(&f->kinds, f->model,
                                 &(sr_layer_setup){.B = f->B, .T = (int)sr_avey_rows(avey_of(f))}));
    const sr_block block = block_of(f, 0);
    SR_TRY(sr_device_allocate(device_of(f), &f->saved, sr_block_saved_bytes(&block)));
    SR_TRY(take_floats(f, &f->in, numbers));
    return take_floats(f, &f->out, numbers);
}

srnn_status sr_avey_feed_create(sr_avey_feed **feed, sr_model *model, int B) {
    void *memory;
    *feed = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **feed));
    sr_avey_feed *created = memory;
    created->model = model;
    created->B = B;
    const srnn_status status = take(created);
    if (status != SRNN_OK) {
        sr_avey_feed_free(created);
        return status;
    }
    *feed = created;
    return SRNN_OK;
}

void sr_avey_feed_free(sr_avey_feed *feed) {
    if (!feed)
        return;
    void *const memory[] = {feed->saved, feed->in, feed->out, feed->embedded, feed->ranked};
    sr_layer_kinds_free(&feed->kinds);
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        sr_device_release(device_of(feed), memory[i]);
    free(feed);
}

/* Numbers in `chunks` chunks of one sequence. */
static size_t numbers_of(const sr_avey_feed *f, int64_t chunks) {
    return (size_t)(chunks * avey_of(f)->chunk) * (size_t)f->model->config.C;
}

srnn_status sr_avey_feed_reset(sr_avey_feed *feed) {
    feed->fed = 0;
    return feed->embedded
               ? sr_device_zero(device_of(feed), feed->embedded,
                                (size_t)feed->B * numbers_of(feed, feed->capacity) * sizeof(float))
               : SRNN_OK;
}

size_t sr_avey_feed_bytes(const sr_avey_feed *feed) {
    return (size_t)(feed->B * feed->fed) * (size_t)feed->model->config.C * sizeof(float);
}

/* The chunks that are begun, of which the last has a context. */
static sr_ranking ranking_of(const sr_avey_feed *f, int64_t chunks) {
    sr_ranking ranking = sr_avey_ranking(avey_of(f), f->B, chunks, f->model->config.C);
    ranking.e = f->embedded;
    ranking.stride = f->capacity * avey_of(f)->chunk;
    ranking.first = chunks - 1;
    ranking.saved = f->ranked;
    return ranking;
}

/* embedded = what was embedded so far, then zeros. */
static srnn_status fill_grown(const sr_avey_feed *f, const float *before, int64_t chunks) {
    const size_t from = numbers_of(f, chunks), to = numbers_of(f, f->capacity);
    SR_TRY(sr_device_zero(device_of(f), f->embedded, (size_t)f->B * to * sizeof(float)));
    for (size_t b = 0; b < (size_t)f->B && before; b++)
        SR_TRY(sr_device_copy(device_of(f), f->embedded + b * to, before + b * from,
                              from * sizeof(float)));
    return SRNN_OK;
}

/* Room for twice as many chunks. */
static srnn_status grow(sr_avey_feed *f) {
    sr_backend *backend = f->model->backend;
    const int64_t chunks = f->capacity, capacity = chunks ? 2 * chunks : 8;
    float *before = f->embedded, *more;
    SR_TRY(take_floats(f, &more, (size_t)f->B * numbers_of(f, capacity)));
    f->embedded = more;
    f->capacity = capacity;
    const sr_ranking ranking = ranking_of(f, capacity);
    const srnn_status status = fill_grown(f, before, chunks);
    sr_device_release(backend->device, before);
    sr_device_release(backend->device, f->ranked);
    f->ranked = NULL;
    SR_TRY(status);
    return sr_device_allocate(backend->device, &f->ranked, backend->rank_bytes(backend, &ranking));
}

/* The context of the chunk that the last token stands in, for every sequence. */
static srnn_status make_context(sr_avey_feed *f) {
    const int64_t N = (f->fed + avey_of(f)->chunk - 1) / avey_of(f)->chunk;
    const sr_ranking ranking = ranking_of(f, N);
    return f->model->backend->rank_forward(f->model->backend, f->in, &ranking);
}

static srnn_status run_blocks(sr_avey_feed *f) {
    for (int layer = 0; layer < f->model->config.L; layer++) {
        const sr_block block = block_of(f, layer);
        sr_block_saved saved = sr_block_saved_at(&block, f->saved);
        float *made = f->out;
        saved.x = f->in;
        SR_TRY(sr_block_forward(&block, made, &saved));
        f->out = f->in;
        f->in = made;
    }
    return SRNN_OK;
}

/* A negative id embeds as zeros. */
static srnn_status embed(sr_avey_feed *f, const int32_t *ids, int64_t id_stride) {
    sr_backend *backend = f->model->backend;
    const int64_t C = f->model->config.C;
    const sr_matrix table = sr_model_embedding(f->model);
    for (int b = 0; b < f->B; b++) {
        float *row = f->embedded + (b * f->capacity * avey_of(f)->chunk + f->fed) * C;
        const sr_matrix x = sr_matrix_of(row, 1, C, SRNN_F32);
        SR_TRY(backend->embed_forward(backend, x, table, ids + b * id_stride));
    }
    return SRNN_OK;
}

srnn_status sr_avey_feed_token(sr_avey_feed *f, float *x, int64_t stride, const int32_t *ids,
                               int64_t id_stride) {
    const int64_t C = f->model->config.C, chunk = avey_of(f)->chunk;
    if (f->fed == f->capacity * chunk)
        SR_TRY(grow(f));
    SR_TRY(embed(f, ids, id_stride));
    const int64_t place = f->fed % chunk;
    f->fed++;
    SR_TRY(make_context(f));
    SR_TRY(run_blocks(f));
    for (int b = 0; b < f->B; b++)
        SR_TRY(sr_device_copy(device_of(f), x + b * stride,
                              f->in + ((b + 1) * sr_avey_rows(avey_of(f)) - chunk + place) * C,
                              (size_t)C * sizeof *x));
    return SRNN_OK;
}
