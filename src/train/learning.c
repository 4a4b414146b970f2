/* learning.c: which numbers of a model learn. */
#include "train/learning.h"

#include "base/memory.h"

#include <stdlib.h>

static bool learns(const sr_tensor_spec *spec, const bool *layers) {
    return spec->slot < SR_MIXER_SLOTS && layers[spec->layer];
}

/* When its gradient is final. The embedding comes first in the arena, what is behind the layers
 * last. */
static int ready_with(const sr_model *model, const sr_tensor_spec *spec) {
    if (spec->slot < SR_BLOCK_SLOTS)
        return spec->layer;
    return spec->start == 0 ? -1 : model->config.L;
}

static int64_t end_of(const sr_tensor_table *table, size_t i) {
    return (int64_t)(i + 1 < table->count ? table->specs[i + 1].start : table->numbers);
}

static void add_tensor(sr_learning *l, const sr_model *model, size_t i, const bool *layers) {
    const sr_tensor_spec *spec = &model->table.specs[i];
    const int64_t first = (int64_t)spec->start, count = end_of(&model->table, i) - first;
    sr_share *last = l->learns_count ? &l->learns[l->learns_count - 1] : NULL;
    if (!learns(spec, layers))
        l->frozen[l->frozen_count++] = (sr_frozen_range){first, count, ready_with(model, spec)};
    else if (last && last->first + last->count == first)
        last->count += count;
    else
        l->learns[l->learns_count++] = (sr_share){first, first, count};
}

srnn_status sr_learning_create(sr_learning *l, const sr_model *model, const bool *layers) {
    void *memory;
    *l = (sr_learning){0};
    SR_TRY(sr_alloc(&memory, model->table.count, sizeof *l->learns));
    l->learns = memory;
    const srnn_status status = sr_alloc(&memory, model->table.count, sizeof *l->frozen);
    if (status != SRNN_OK) {
        sr_learning_free(l);
        return status;
    }
    l->frozen = memory;
    for (size_t i = 0; i < model->table.count; i++)
        add_tensor(l, model, i, layers);
    if (l->learns_count)
        return SRNN_OK;
    sr_learning_free(l);
    return SR_FAIL(SRNN_ERR_ARGUMENT, "nothing is left that learns: no layer's attention does");
}

void sr_learning_free(sr_learning *l) {
    free(l->learns);
    free(l->frozen);
    *l = (sr_learning){0};
}

srnn_status sr_learning_clear(const sr_learning *l, sr_backend *backend, float *gradient,
                              int layer) {
    for (size_t i = 0; i < l->frozen_count; i++)
        if (l->frozen[i].layer == layer)
            SR_TRY(sr_device_zero(backend->device, gradient + l->frozen[i].first,
                                  (size_t)l->frozen[i].count * sizeof *gradient));
    return SRNN_OK;
}

bool sr_learning_next(const sr_learning *l, sr_share *piece, const sr_share *share, size_t *index) {
    if (!l->learns) {
        *piece = *share;
        return (*index)++ == 0;
    }
    while (*index < l->learns_count) {
        const sr_share *own = &l->learns[(*index)++];
        const int64_t end = own->first + own->count, share_end = share->first + share->count;
        const int64_t first = own->first > share->first ? own->first : share->first;
        const int64_t last = end < share_end ? end : share_end;
        if (first >= last)
            continue;
        *piece = (sr_share){first, share->at + first - share->first, last - first};
        return true;
    }
    return false;
}
