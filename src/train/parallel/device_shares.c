/* device_shares.c: shards a model's parameters among ranks on GPUs and sums their gradients. */
#include "train/parallel/device_shares.h"

#include "base/memory.h"
#include "train/parallel/pieces.h"

#include <stddef.h>
#include <stdlib.h>

struct sr_device_shares {
    sr_ranks *ranks;
    srnn_device *device;
    sr_collective *collective;
    sr_collective *context; /* of context ranks, not owned; or NULL */
    bool split, early;
    float *gradient;
    sr_piece *pieces; /* (piece_count) */
    size_t piece_count;
    sr_share *own; /* (own_count): this rank's shards */
    size_t own_count;
    int64_t own_numbers;
    float *sum;  /* (own_numbers), device memory; NULL: the sum is in place, in the gradient */
    size_t sent; /* pieces sent so far in this step */
};

/* ---- ownership */

/* Parts begin at multiples of four elements, for vectorised copies. */
static sr_divided divide(const sr_device_shares *s, const sr_piece *piece) {
    enum { ALIGNED = 16 };
    const int64_t each = piece->count / s->ranks->count / ALIGNED * ALIGNED;
    return (sr_divided){each, piece->count - each * s->ranks->count};
}

static sr_share own_part(const sr_device_shares *s, const sr_piece *piece) {
    const sr_divided d = divide(s, piece);
    const bool last = s->ranks->rank == s->ranks->count - 1;
    return (sr_share){.first = piece->first + d.each * s->ranks->rank,
                      .at = s->own_numbers,
                      .count = d.each + (last ? d.rest : 0)};
}

static srnn_status take_own(sr_device_shares *s, const sr_model *model) {
    void *memory;
    SR_TRY(sr_alloc(&memory, s->piece_count + 1, sizeof *s->own));
    s->own = memory;
    if (!s->split) {
        s->own[s->own_count++] = (sr_share){.count = (int64_t)model->table.numbers};
        s->own_numbers = (int64_t)model->table.numbers;
        return SRNN_OK;
    }
    for (size_t i = 0; i < s->piece_count; i++) {
        s->own[i] = own_part(s, &s->pieces[i]);
        s->own_numbers += s->own[i].count;
    }
    s->own_count = s->piece_count;
    SR_TRY(sr_device_allocate(s->device, &memory, (size_t)s->own_numbers * sizeof(float)));
    s->sum = memory;
    return SRNN_OK;
}

/* ---- opening */

static srnn_status open_collective(sr_device_shares *s) {
    char id[SR_COLLECTIVE_ID] = {0};
    /* All ranks load the library, so that a missing one is reported before the others block in it;
     * rank 0's id is used. */
    SR_TRY(sr_ranks_agree(s->ranks, sr_collective_id(id)));
    SR_TRY(sr_ranks_share(s->ranks, id, sizeof id));
    /* A failure here aborts the job: the other ranks are blocked in NCCL and cannot be notified. */
    return sr_collective_open(&s->collective, s->device, id, s->ranks->rank, s->ranks->count);
}

static srnn_status fill(sr_device_shares *s, const sr_model *model) {
    SR_TRY(sr_pieces_cut(&s->pieces, &s->piece_count, model));
    SR_TRY(sr_ranks_agree(s->ranks, take_own(s, model)));
    return open_collective(s);
}

srnn_status sr_device_shares_create(sr_device_shares **shares, const sr_model *model,
                                    const sr_device_shares_setup *setup) {
    void *memory;
    *shares = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **shares));
    sr_device_shares *s = memory;
    s->ranks = setup->ranks;
    s->device = model->backend->device;
    s->split = setup->split;
    s->early = setup->early;
    s->gradient = setup->gradient;
    s->context = setup->context;
    const srnn_status status = fill(s, model);
    if (status != SRNN_OK) {
        sr_device_shares_free(s);
        return status;
    }
    *shares = s;
    return SRNN_OK;
}

void sr_device_shares_free(sr_device_shares *s) {
    if (!s)
        return;
    if (!s->ranks->broken) /* else closing would wait for ranks that never arrive */
        sr_collective_close(s->collective);
    sr_device_release(s->device, s->sum);
    free(s->pieces);
    free(s->own);
    free(s);
}

size_t sr_device_shares_bytes(const sr_device_shares *s) {
    return s->sum ? (size_t)s->own_numbers * sizeof(float) : 0;
}

const sr_share *sr_device_shares_own(const sr_device_shares *s, size_t *count) {
    *count = s->own_count;
    return s->own;
}

int64_t sr_device_shares_own_numbers(const sr_device_shares *s) {
    return s->own_numbers;
}

const float *sr_device_shares_sum(const sr_device_shares *s) {
    return s->split ? s->sum : s->gradient;
}

/* ---- waiting */

void sr_device_shares_begin(sr_device_shares *s) {
    sr_collective_begin(s->collective);
    if (s->context)
        sr_collective_begin(s->context);
}

static srnn_status look(void *context, bool *done) {
    sr_device_shares *s = context;
    sr_collective_state state;
    sr_collective_state other = {0};
    SR_TRY(sr_collective_look(s->collective, &state));
    if (s->context)
        SR_TRY(sr_collective_look(s->context, &other));
    *done = state.done;
    s->ranks->busy = !state.done && !state.waits && !other.waits;
    return SRNN_OK;
}

/* Polls often: a step takes about a hundred milliseconds, and sleeping would add to it. */
srnn_status sr_device_shares_wait(sr_device_shares *s) {
    static const double longest_rest = 1e-4;
    const srnn_status status = sr_ranks_wait_until(s->ranks, look, s, longest_rest);
    s->ranks->busy = 0;
    return status;
}

/* ---- gradients */

static srnn_status send_piece(sr_device_shares *s, size_t index) {
    const sr_piece *p = &s->pieces[index];
    if (!s->split)
        return sr_collective_sum(s->collective, s->gradient + p->first, p->count);
    return sr_collective_scatter(s->collective, s->sum + s->own[index].at, s->gradient + p->first,
                                 divide(s, p));
}

/* Sends the pieces that are ready once backward has passed this layer, as one collective that
 * overlaps with it. */
static srnn_status send_ready(sr_device_shares *s, int layer) {
    if (s->sent == s->piece_count || s->pieces[s->sent].layer < layer)
        return SRNN_OK;
    SR_TRY(sr_collective_fork(s->collective));
    for (; s->sent < s->piece_count && s->pieces[s->sent].layer >= layer; s->sent++)
        SR_TRY(send_piece(s, s->sent));
    return SRNN_OK;
}

srnn_status sr_device_shares_ready(sr_device_shares *s, int layer) {
    if (!s->early)
        return SRNN_OK;
    SR_TRY(send_ready(s, layer));
    if (layer >= 0)
        return SRNN_OK;
    s->sent = 0; /* all were sent; a captured graph does not run this code again */
    return sr_collective_join(s->collective);
}

srnn_status sr_device_shares_finish(sr_device_shares *s) {
    s->sent = 0;
    SR_TRY(send_ready(s, -1));
    return sr_collective_join(s->collective);
}

/* ---- after them */

srnn_status sr_device_shares_stats(sr_device_shares *s, sr_step_stats *stats) {
    SR_TRY(sr_collective_fork(s->collective));
    SR_TRY(sr_collective_sum_doubles(s->collective, &stats->loss, 1));
    if (s->split)
        SR_TRY(sr_collective_sum_doubles(s->collective, &stats->squares, 1));
    SR_TRY(sr_collective_sum_integers(s->collective, &stats->targets, 1));
    SR_TRY(sr_collective_sum_integers(s->collective, &stats->hits, 1));
    return sr_collective_join(s->collective);
}

srnn_status sr_device_shares_gather(sr_device_shares *s, void *array, srnn_dtype dtype) {
    SR_TRY(sr_collective_fork(s->collective));
    for (size_t i = 0; i < s->piece_count; i++)
        SR_TRY(sr_collective_gather(s->collective, sr_number_at(array, s->pieces[i].first, dtype),
                                    dtype, divide(s, &s->pieces[i])));
    return sr_collective_join(s->collective);
}

srnn_status sr_device_shares_exchange(sr_device_shares *s, float *array, const int64_t *bounds) {
    SR_TRY(sr_collective_fork(s->collective));
    SR_TRY(sr_collective_exchange(s->collective, array, bounds));
    return sr_collective_join(s->collective);
}

/* Sums as integers: bits added to zero bits are unchanged. */
srnn_status sr_device_shares_unite(sr_device_shares *s, float *numbers, size_t count) {
    void *bits = numbers;
    SR_TRY(sr_collective_fork(s->collective));
    SR_TRY(sr_collective_sum_integers(s->collective, bits,
                                      (int64_t)(count * sizeof *numbers / sizeof(int64_t))));
    return sr_collective_join(s->collective);
}
