/* qk_clip.c: keeps attention scores small. */
#include "train/qk_clip.h"

#include "base/memory.h"
#include "train/parallel/shares.h"

#include <stdlib.h>

/* Numbers of the arena that belong to the heads of one layer. */
typedef struct head_range {
    sr_share numbers; /* `at` is not used */
    int64_t head_numbers;
    int layer;
    bool root;
} head_range;

struct sr_qk_clip {
    const sr_model *model;
    float limit;
    int rank, ranks;
    int64_t row; /* layers * heads */
    float *scores;
    int64_t *bounds;
    head_range *ranges; /* (range_count) */
    size_t range_count;
};

static const sr_tensor_spec *find(const sr_model *model, int layer, int slot) {
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (spec->slot == slot && spec->layer == layer)
            return spec;
    }
    return NULL;
}

/* The weight's rows, and the bias's if there is one. */
static void add_rows(sr_qk_clip *clip, const sr_head_rows *rows, int layer, bool root) {
    for (int bias = 0; bias < 2; bias++) {
        const sr_tensor_spec *spec = find(clip->model, layer, (int)rows->weight + bias);
        if (!spec)
            continue;
        const int64_t columns = (int64_t)spec->count / spec->shape[0];
        const int64_t head_numbers = rows->width * columns;
        clip->ranges[clip->range_count++] = (head_range){
            .numbers = {.first = (int64_t)spec->start + rows->row * columns,
                        .count = rows->heads * head_numbers},
            .head_numbers = head_numbers,
            .layer = layer,
            .root = root,
        };
    }
}

static srnn_status fill(sr_qk_clip *clip, sr_pass *pass) {
    const sr_model_config *c = &clip->model->config;
    void *memory;
    SR_TRY(sr_alloc(&memory, 4 * (size_t)c->L, sizeof *clip->ranges));
    clip->ranges = memory;
    SR_TRY(sr_alloc(&memory, (size_t)clip->ranks + 1, sizeof *clip->bounds));
    clip->bounds = memory;
    for (int rank = 0; rank <= clip->ranks; rank++)
        clip->bounds[rank] = rank * clip->row;
    SR_TRY(sr_device_allocate(clip->model->backend->device, &memory,
                              (size_t)(clip->ranks * clip->row) * sizeof *clip->scores));
    clip->scores = memory;
    SR_TRY(sr_qk_clip_reset(clip));
    for (int layer = 0; layer < c->L; layer++) {
        sr_head_rows q, k;
        if (!sr_pass_heads(pass, layer, &q, &k))
            continue;
        add_rows(clip, &q, layer, q.heads == k.heads);
        if (q.heads == k.heads)
            add_rows(clip, &k, layer, true);
    }
    return sr_pass_watch_scores(pass, clip->scores + clip->rank * clip->row);
}

srnn_status sr_qk_clip_create(sr_qk_clip **clip, const sr_model *model, sr_pass *pass, double limit,
                              int rank, int ranks) {
    void *memory;
    *clip = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **clip));
    sr_qk_clip *created = memory;
    *created = (sr_qk_clip){.model = model,
                            .limit = (float)limit,
                            .rank = rank,
                            .ranks = ranks,
                            .row = (int64_t)model->config.L * model->config.H};
    const srnn_status status = fill(created, pass);
    if (status != SRNN_OK) {
        sr_qk_clip_free(created);
        return status;
    }
    *clip = created;
    return SRNN_OK;
}

void sr_qk_clip_free(sr_qk_clip *clip) {
    if (!clip)
        return;
    sr_device_release(clip->model->backend->device, clip->scores);
    free(clip->bounds);
    free(clip->ranges);
    free(clip);
}

srnn_status sr_qk_clip_reset(const sr_qk_clip *clip) {
    return sr_device_zero(clip->model->backend->device, clip->scores,
                          (size_t)(clip->ranks * clip->row) * sizeof *clip->scores);
}

float *sr_qk_clip_scores(const sr_qk_clip *clip) {
    return clip->scores;
}

const int64_t *sr_qk_clip_bounds(const sr_qk_clip *clip) {
    return clip->bounds;
}

/* The part of a range that lies in a shard, if any. */
static srnn_status update(const sr_qk_clip *clip, const sr_step_stats *stats, float *weight,
                          const head_range *range, const sr_share *share) {
    const sr_model *model = clip->model;
    sr_backend *backend = model->backend;
    const sr_share common = sr_share_common(&range->numbers, share);
    if (common.count == 0)
        return SRNN_OK;
    const int64_t first = range->numbers.first + common.first;
    const sr_head_weights heads = {
        .weight = weight ? weight + common.at : model->weights + first,
        .working = sr_number_at(model->working, first, backend->number),
        .n = common.count,
        .first = common.first,
        .head_numbers = range->head_numbers,
        .largest = clip->scores + (int64_t)range->layer * model->config.H,
        .parts = clip->ranks,
        .stride = clip->row,
        .limit = clip->limit,
        .root = range->root,
    };
    return backend->limit_scores(backend, stats, &heads);
}

srnn_status sr_qk_clip_update(const sr_qk_clip *clip, const sr_step_stats *stats, float *weight,
                              const sr_share *shares, size_t count) {
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < clip->range_count; i++)
            SR_TRY(update(clip, stats, weight, &clip->ranges[i], &shares[s]));
    return SRNN_OK;
}
