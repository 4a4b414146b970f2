/* masters.c: float master weights of a model that computes in a narrower type, sharded among
 * ranks. */
#include "train/parallel/masters.h"

#include "base/memory.h"

#include <stdlib.h>

struct sr_masters {
    sr_model *model;
    sr_device_shares *shares;
    float *own; /* (own numbers), device memory */
    /* (copy_count): the parts of `own` that belong to the model's wide tensors; `first` is an
     * offset there */
    sr_share *copies;
    size_t copy_count;
};

/* ---- making */

static srnn_status find_copies(sr_masters *m) {
    const sr_model *model = m->model;
    size_t count;
    void *memory;
    const sr_share *own = sr_device_shares_own(m->shares, &count);
    SR_TRY(sr_alloc(&memory, count + model->wide_count, sizeof *m->copies));
    m->copies = memory;
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < model->wide_count; i++) {
            const sr_share copy = sr_share_common(&model->wide_parts[i], &own[s]);
            if (copy.count > 0)
                m->copies[m->copy_count++] = copy;
        }
    return SRNN_OK;
}

static srnn_status fill(sr_masters *m) {
    const size_t numbers = (size_t)sr_device_shares_own_numbers(m->shares);
    void *memory;
    SR_TRY(find_copies(m));
    SR_TRY(sr_device_allocate(m->model->backend->device, &memory, numbers * sizeof *m->own));
    m->own = memory;
    return SRNN_OK;
}

srnn_status sr_masters_create(sr_masters **masters, sr_model *model, sr_device_shares *shares,
                              float *gradient) {
    void *memory;
    *masters = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **masters));
    sr_masters *m = memory;
    m->model = model;
    m->shares = shares;
    model->weights = gradient;
    const srnn_status status = fill(m);
    if (status != SRNN_OK) {
        sr_masters_free(m);
        return status;
    }
    *masters = m;
    return SRNN_OK;
}

void sr_masters_free(sr_masters *m) {
    if (!m)
        return;
    m->model->weights = NULL; /* it pointed to the gradient, which the pass frees */
    sr_device_release(m->model->backend->device, m->own);
    free(m->copies);
    free(m);
}

float *sr_masters_own(const sr_masters *m) {
    return m->own;
}

/* ---- moving */

static srnn_status move(const sr_masters *m, float *to, const float *from, int64_t count) {
    return sr_device_copy(m->model->backend->device, to, from, (size_t)count * sizeof *to);
}

srnn_status sr_masters_store(sr_masters *m) {
    const sr_model *model = m->model;
    size_t count;
    const sr_share *own = sr_device_shares_own(m->shares, &count);
    for (size_t i = 0; i < count; i++)
        SR_TRY(move(m, m->own + own[i].at, model->weights + own[i].first, own[i].count));
    for (size_t i = 0; i < model->wide_count; i++)
        SR_TRY(move(m, model->wide + model->wide_parts[i].at,
                    model->weights + model->wide_parts[i].first, model->wide_parts[i].count));
    return SRNN_OK;
}

srnn_status sr_masters_gather(sr_masters *m) {
    float *weights = m->model->weights;
    size_t count;
    const sr_share *own = sr_device_shares_own(m->shares, &count);
    sr_device_shares_begin(m->shares);
    for (size_t i = 0; i < count; i++)
        SR_TRY(move(m, weights + own[i].first, m->own + own[i].at, own[i].count));
    SR_TRY(sr_device_shares_gather(m->shares, weights, SRNN_F32));
    return sr_device_shares_wait(m->shares);
}

srnn_status sr_masters_widen(sr_masters *m) {
    sr_model *model = m->model;
    SR_TRY(sr_device_zero(model->backend->device, model->wide,
                          model->wide_numbers * sizeof *model->wide));
    for (size_t i = 0; i < m->copy_count; i++)
        SR_TRY(move(m, model->wide + m->copies[i].first, m->own + m->copies[i].at,
                    m->copies[i].count));
    return sr_device_shares_unite(m->shares, model->wide, model->wide_numbers);
}
