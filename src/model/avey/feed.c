/* feed.c: an Avey model fed token by token. */
#include "model/avey/feed.h"

#include "base/memory.h"
#include "model/layer/block.h"

#include <stdlib.h>
#include <string.h>

struct sr_avey_feed {
    sr_model *model;
    int B;
    int64_t fed;      /* tokens of each sequence */
    int64_t capacity; /* chunks that there is room for */
    float *embedded;  /* (B, capacity * chunk, C); zeros after the last token */
    float *packed;    /* the same with the chunks that are begun only */
    sr_layer_kinds kinds;
    float *in, *out; /* (B * context, C) */
    void *saved;     /* of one block */
};

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

static srnn_status take(sr_avey_feed *f) {
    const size_t numbers = (size_t)context_rows(f) * (size_t)f->model->config.C;
    void *memory;
    SR_TRY(sr_layer_kinds_create(&f->kinds, f->model,
                                 &(sr_layer_setup){.B = f->B, .T = (int)sr_avey_rows(avey_of(f))}));
    const sr_block block = block_of(f, 0);
    SR_TRY(sr_device_allocate(f->model->backend->device, &f->saved, sr_block_saved_bytes(&block)));
    SR_TRY(sr_alloc(&memory, numbers, sizeof *f->in));
    f->in = memory;
    SR_TRY(sr_alloc(&memory, numbers, sizeof *f->out));
    f->out = memory;
    return SRNN_OK;
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
    sr_layer_kinds_free(&feed->kinds);
    sr_device_release(feed->model->backend->device, feed->saved);
    free(feed->in);
    free(feed->out);
    free(feed->embedded);
    free(feed->packed);
    free(feed);
}

static size_t numbers_of(const sr_avey_feed *f, int64_t chunks) {
    return (size_t)(f->B * chunks * avey_of(f)->chunk) * (size_t)f->model->config.C;
}

void sr_avey_feed_reset(sr_avey_feed *feed) {
    feed->fed = 0;
    if (feed->embedded)
        memset(feed->embedded, 0, numbers_of(feed, feed->capacity) * sizeof *feed->embedded);
}

size_t sr_avey_feed_bytes(const sr_avey_feed *feed) {
    return (size_t)(feed->B * feed->fed) * (size_t)feed->model->config.C * sizeof(float);
}

/* Room for twice as many chunks. */
static srnn_status grow(sr_avey_feed *f) {
    const int64_t capacity = f->capacity ? 2 * f->capacity : 8;
    const size_t row = numbers_of(f, 1) / (size_t)f->B * (size_t)f->capacity;
    void *memory, *packed;
    SR_TRY(sr_alloc_zero(&memory, numbers_of(f, capacity), sizeof *f->embedded));
    const srnn_status status = sr_alloc(&packed, numbers_of(f, capacity), sizeof *f->packed);
    if (status != SRNN_OK) {
        free(memory);
        return status;
    }
    for (int b = 0; b < f->B && row; b++)
        memcpy((float *)memory + (size_t)b * numbers_of(f, capacity) / (size_t)f->B,
               f->embedded + (size_t)b * row, row * sizeof(float));
    free(f->embedded);
    free(f->packed);
    f->embedded = memory;
    f->packed = packed;
    f->capacity = capacity;
    return SRNN_OK;
}

/* The context of the chunk that the last token stands in, for every sequence. */
static srnn_status make_context(sr_avey_feed *f) {
    const int64_t N = (f->fed + avey_of(f)->chunk - 1) / avey_of(f)->chunk;
    const size_t row = numbers_of(f, N) / (size_t)f->B;
    const sr_avey_ranking ranking = {.avey = avey_of(f),
                                     .B = f->B,
                                     .N = N,
                                     .first = N - 1,
                                     .C = f->model->config.C,
                                     .threads = f->model->backend->threads};
    for (int b = 0; b < f->B; b++)
        memcpy(f->packed + (size_t)b * row,
               f->embedded + (size_t)b * numbers_of(f, f->capacity) / (size_t)f->B,
               row * sizeof(float));
    return sr_avey_rank(&ranking, f->in, f->packed);
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
static void embed(sr_avey_feed *f, const int32_t *ids, int64_t id_stride) {
    const int64_t C = f->model->config.C;
    for (int b = 0; b < f->B; b++) {
        const int32_t id = ids[b * id_stride];
        if (id >= 0)
            memcpy(f->embedded + (b * f->capacity * avey_of(f)->chunk + f->fed) * C,
                   (const float *)f->model->master.embedding + id * C, (size_t)C * sizeof(float));
    }
}

srnn_status sr_avey_feed_token(sr_avey_feed *f, float *x, int64_t stride, const int32_t *ids,
                               int64_t id_stride) {
    const int64_t C = f->model->config.C, chunk = avey_of(f)->chunk;
    if (f->fed == f->capacity * chunk)
        SR_TRY(grow(f));
    embed(f, ids, id_stride);
    const int64_t place = f->fed % chunk;
    f->fed++;
    SR_TRY(make_context(f));
    SR_TRY(run_blocks(f));
    for (int b = 0; b < f->B; b++)
        memcpy(x + b * stride, f->in + ((b + 1) * sr_avey_rows(avey_of(f)) - chunk + place) * C,
               (size_t)C * sizeof *x);
    return SRNN_OK;
}
