/* shares.c: shards a model's parameters among ranks and sums their gradients. */
#include "train/parallel/shares.h"

#include "base/memory.h"
#include "train/parallel/pieces.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4 }; /* pieces received at a time */

/* A piece of the arena, and the part of it that this rank sums. */
typedef struct piece {
    int64_t first;
    int layer;
    sr_share own;
    int *counts, *starts; /* (ranks): bytes and offset of each rank's part within the piece */
} piece;

/* Receive buffers of one piece. */
typedef struct arrival {
    float *numbers;            /* (ranks, most_own) */
    sr_link_request *requests; /* (ranks) */
} arrival;

struct sr_shares {
    sr_ranks *ranks;
    sr_backend *backend;
    bool split;
    const float *gradient;
    int64_t numbers;
    piece *pieces;   /* (piece_count), in the order of sr_pieces_cut */
    int *part_bytes; /* (piece_count, 2, ranks): counts and starts of the pieces */
    size_t piece_count;
    sr_share *own; /* (own_count): this rank's shards */
    size_t own_count;
    int64_t own_numbers, most_own;
    float *sum; /* (own_numbers) */
    arrival slots[SLOTS];
    sr_link_request *sends;   /* (piece_count, ranks) */
    sr_link_request *spreads; /* (piece_count) */

    double *unit_squares;                   /* (units of the arena): one rank's after the other, as
                                         * received */
    int *square_counts, *square_starts;     /* (ranks) in bytes */
    int *exchange_counts, *exchange_starts; /* (ranks) in bytes */

    /* State of the current round. */
    int active;
    bool first, last;
    size_t sent, received, summed; /* pieces, in order */
};

sr_share sr_share_common(const sr_share *a, const sr_share *b) {
    const int64_t a_end = a->first + a->count, b_end = b->first + b->count;
    const int64_t from = a->first > b->first ? a->first : b->first;
    const int64_t to = a_end < b_end ? a_end : b_end;
    if (to <= from)
        return (sr_share){0};
    return (sr_share){a->at + from - a->first, b->at + from - b->first, to - from};
}

/* ---- pieces */

/* The part of a piece that rank r sums. */
static sr_share part_of(int64_t first, int64_t end, int rank, int ranks) {
    const int64_t units = sr_units(end - first);
    const int64_t from = first + units * rank / ranks * SR_SQUARES_UNIT;
    const int64_t to = first + units * (rank + 1) / ranks * SR_SQUARES_UNIT;
    return (sr_share){.first = from < end ? from : end,
                      .count = (to < end ? to : end) - (from < end ? from : end)};
}

static void make_piece(sr_shares *s, size_t index, const sr_piece *of) {
    const int count = s->ranks->count;
    const int64_t first = of->first, end = first + of->count;
    piece *p = &s->pieces[index];
    p->first = first;
    p->layer = of->layer;
    p->counts = s->part_bytes + 2 * index * (size_t)count;
    p->starts = p->counts + count;
    for (int r = 0; r < count; r++) {
        const sr_share part = part_of(first, end, r, count);
        p->counts[r] = (int)part.count * (int)sizeof(float);
        p->starts[r] = (int)(part.first - first) * (int)sizeof(float);
        s->square_counts[r] +=
            (int)((part.count + SR_SQUARES_UNIT - 1) / SR_SQUARES_UNIT) * (int)sizeof(double);
    }
    p->own = part_of(first, end, s->ranks->rank, count);
    p->own.at = s->split ? s->own_numbers : p->own.first;
    if (s->split) {
        s->own[s->own_count++] = p->own;
        s->own_numbers += p->own.count;
    }
    s->most_own = p->own.count > s->most_own ? p->own.count : s->most_own;
}

/* ---- memory */

static srnn_status take(void *out, size_t count, size_t size) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, count, size));
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

static srnn_status take_pieces(sr_shares *s, const sr_piece *pieces) {
    const size_t ranks = (size_t)s->ranks->count;
    SR_TRY(take(&s->pieces, s->piece_count, sizeof *s->pieces));
    SR_TRY(take(&s->part_bytes, 2 * s->piece_count * ranks, sizeof *s->part_bytes));
    SR_TRY(take(&s->own, s->piece_count, sizeof *s->own));
    SR_TRY(take(&s->square_counts, ranks, sizeof *s->square_counts));
    SR_TRY(take(&s->square_starts, ranks, sizeof *s->square_starts));
    SR_TRY(take(&s->exchange_counts, ranks, sizeof *s->exchange_counts));
    SR_TRY(take(&s->exchange_starts, ranks, sizeof *s->exchange_starts));
    for (size_t i = 0; i < s->piece_count; i++)
        make_piece(s, i, &pieces[i]);
    if (!s->split) {
        s->own[s->own_count++] = (sr_share){.count = s->numbers};
        s->own_numbers = s->numbers;
    }
    for (size_t r = 1; r < ranks; r++)
        s->square_starts[r] = s->square_starts[r - 1] + s->square_counts[r - 1];
    return SRNN_OK;
}

static srnn_status take_traffic(sr_shares *s) {
    const size_t ranks = (size_t)s->ranks->count;
    if (ranks == 1)
        return SRNN_OK;
    for (int i = 0; i < SLOTS; i++) {
        SR_TRY(take(&s->slots[i].numbers, ranks * (size_t)s->most_own, sizeof(float)));
        SR_TRY(take(&s->slots[i].requests, ranks, sizeof(sr_link_request)));
    }
    SR_TRY(take(&s->sends, s->piece_count * ranks, sizeof *s->sends));
    return take(&s->spreads, s->piece_count, sizeof *s->spreads);
}

static srnn_status fill(sr_shares *s, const sr_model *model) {
    sr_piece *pieces;
    srnn_status status = sr_pieces_cut(&pieces, &s->piece_count, model);
    if (status == SRNN_OK)
        status = take_pieces(s, pieces);
    free(pieces);
    SR_TRY(status);
    SR_TRY(take(&s->sum, (size_t)s->own_numbers, sizeof *s->sum));
    SR_TRY(take(&s->unit_squares, (size_t)sr_units(s->numbers), sizeof *s->unit_squares));
    return take_traffic(s);
}

srnn_status sr_shares_create(sr_shares **shares, const sr_model *model,
                             const sr_shares_setup *setup) {
    void *memory;
    *shares = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **shares));
    sr_shares *s = memory;
    s->ranks = setup->ranks;
    s->backend = model->backend;
    s->split = setup->split;
    s->gradient = setup->gradient;
    s->numbers = (int64_t)model->table.numbers;
    const srnn_status status = fill(s, model);
    if (status != SRNN_OK) {
        sr_shares_free(s);
        return status;
    }
    *shares = s;
    return SRNN_OK;
}

void sr_shares_free(sr_shares *s) {
    if (!s)
        return;
    for (int i = 0; i < SLOTS; i++) {
        free(s->slots[i].numbers);
        free(s->slots[i].requests);
    }
    free(s->pieces);
    free(s->part_bytes);
    free(s->own);
    free(s->sum);
    free(s->sends);
    free(s->spreads);
    free(s->unit_squares);
    free(s->square_counts);
    free(s->square_starts);
    free(s->exchange_counts);
    free(s->exchange_starts);
    free(s);
}

size_t sr_shares_bytes(const sr_shares *s) {
    const size_t ranks = (size_t)s->ranks->count;
    const size_t slots = ranks > 1 ? SLOTS * ranks * (size_t)s->most_own * sizeof(float) : 0;
    return (size_t)s->own_numbers * sizeof(float) + slots +
           (size_t)sr_units(s->numbers) * sizeof(double);
}

const sr_share *sr_shares_own(const sr_shares *s, size_t *count) {
    *count = s->own_count;
    return s->own;
}

int64_t sr_shares_own_numbers(const sr_shares *s) {
    return s->own_numbers;
}

const float *sr_shares_sum(const sr_shares *s) {
    return s->sum;
}

/* ---- a round */

static bool is_active(const sr_shares *s) {
    return s->ranks->rank < s->active;
}

static srnn_status send_piece(sr_shares *s, size_t index) {
    const piece *p = &s->pieces[index];
    for (int to = 0; to < s->ranks->count; to++)
        if (to != s->ranks->rank && p->counts[to] > 0)
            SR_TRY(sr_ranks_send(s->ranks, &s->sends[index * (size_t)s->ranks->count + (size_t)to],
                                 to, SR_RANKS_TAG,
                                 (const char *)(s->gradient + p->first) + p->starts[to],
                                 (size_t)p->counts[to]));
    return SRNN_OK;
}

static bool comes_from(const sr_shares *s, const piece *p, int rank) {
    return rank != s->ranks->rank && rank < s->active && p->own.count > 0;
}

static srnn_status receive_piece(sr_shares *s, size_t index) {
    const piece *p = &s->pieces[index];
    arrival *slot = &s->slots[index % SLOTS];
    for (int from = 0; from < s->active; from++)
        if (comes_from(s, p, from))
            SR_TRY(sr_ranks_receive(s->ranks, &slot->requests[from], from, SR_RANKS_TAG,
                                    slot->numbers + from * s->most_own,
                                    (size_t)p->own.count * sizeof(float)));
    return SRNN_OK;
}

/* Posts a receive for every free slot. */
static srnn_status receive_more(sr_shares *s) {
    if (s->ranks->count == 1)
        return SRNN_OK;
    for (; s->received < s->piece_count && s->received < s->summed + SLOTS; s->received++)
        SR_TRY(receive_piece(s, s->received));
    return SRNN_OK;
}

/* Whether the whole piece has arrived; `wait`: blocks until it has. */
static srnn_status arrived(sr_shares *s, size_t index, bool wait, bool *all) {
    const piece *p = &s->pieces[index];
    arrival *slot = &s->slots[index % SLOTS];
    *all = true;
    for (int from = 0; from < s->active && *all; from++) {
        if (!comes_from(s, p, from))
            continue;
        if (wait)
            SR_TRY(sr_ranks_wait(s->ranks, &slot->requests[from]));
        else
            SR_TRY(sr_ranks_test(s->ranks, &slot->requests[from], all));
    }
    return SRNN_OK;
}

/* Adds in the order of ranks, which is the order of batches. */
static srnn_status add_up(sr_shares *s, size_t index) {
    const piece *p = &s->pieces[index];
    float *sum = s->sum + p->own.at;
    for (int from = 0; from < s->active; from++) {
        const float *numbers = from == s->ranks->rank
                                   ? s->gradient + p->own.first
                                   : s->slots[index % SLOTS].numbers + from * s->most_own;
        if (s->first && from == 0)
            memcpy(sum, numbers, (size_t)p->own.count * sizeof *sum);
        else
            SR_TRY(s->backend->add(s->backend, sum, numbers, p->own.count));
    }
    return SRNN_OK;
}

/* Sums the pieces that have arrived, in order; `wait`: all of them. */
static srnn_status sum_pieces(sr_shares *s, bool wait) {
    for (;;) {
        bool all;
        SR_TRY(receive_more(s));
        if (s->summed == s->piece_count || (is_active(s) && s->summed == s->sent))
            return SRNN_OK;
        SR_TRY(arrived(s, s->summed, wait, &all));
        if (!all)
            return SRNN_OK;
        SR_TRY(add_up(s, s->summed));
        s->summed++;
    }
}

srnn_status sr_shares_begin(sr_shares *s, int active, bool first, bool last) {
    s->active = active;
    s->first = first;
    s->last = last;
    s->sent = s->received = s->summed = 0;
    return receive_more(s);
}

srnn_status sr_shares_ready(void *context, int layer) {
    sr_shares *s = context;
    for (; s->sent < s->piece_count && s->pieces[s->sent].layer >= layer; s->sent++)
        SR_TRY(send_piece(s, s->sent));
    return sum_pieces(s, false);
}

/* All-gather of an array of the arena, piece by piece. */
static srnn_status gather_pieces(sr_shares *s, float *array) {
    for (size_t i = 0; i < s->piece_count; i++)
        SR_TRY(sr_ranks_gather_parts(s->ranks, &s->spreads[i], array + s->pieces[i].first,
                                     s->pieces[i].counts, s->pieces[i].starts));
    for (size_t i = 0; i < s->piece_count; i++)
        SR_TRY(sr_ranks_wait(s->ranks, &s->spreads[i]));
    return SRNN_OK;
}

static srnn_status wait_sends(sr_shares *s) {
    const size_t ranks = (size_t)s->ranks->count;
    for (size_t i = 0; i < s->sent; i++)
        for (size_t to = 0; to < ranks; to++)
            if (to != (size_t)s->ranks->rank && s->pieces[i].counts[to] > 0)
                SR_TRY(sr_ranks_wait(s->ranks, &s->sends[i * ranks + to]));
    return SRNN_OK;
}

srnn_status sr_shares_finish(sr_shares *s) {
    SR_TRY(sum_pieces(s, true));
    SR_TRY(wait_sends(s));
    return s->last && !s->split && s->ranks->count > 1 ? gather_pieces(s, s->sum) : SRNN_OK;
}

/* ---- after the last round */

/* Squares of this rank's units, piece after piece. */
static srnn_status own_squares(sr_shares *s) {
    double *to = s->unit_squares + s->square_starts[s->ranks->rank] / (int)sizeof *to;
    for (size_t i = 0; i < s->piece_count; i++) {
        const sr_share *own = &s->pieces[i].own;
        SR_TRY(s->backend->unit_squares(s->backend, to, s->sum + own->at, own->count));
        to += (own->count + SR_SQUARES_UNIT - 1) / SR_SQUARES_UNIT;
    }
    return SRNN_OK;
}

/* Pieces run from the end of the arena to its start; within a piece the ranks' parts are in
 * order. */
static double squares_in_order(const sr_shares *s, int *next) {
    double squares = 0;
    for (int r = 0; r < s->ranks->count; r++)
        next[r] = (s->square_starts[r] + s->square_counts[r]) / (int)sizeof(double);
    for (size_t i = s->piece_count; i-- > 0;)
        for (int r = 0; r < s->ranks->count; r++) {
            const int units =
                (int)((s->pieces[i].counts[r] / (int)sizeof(float) + SR_SQUARES_UNIT - 1) /
                      SR_SQUARES_UNIT);
            next[r] -= units;
            for (int u = 0; u < units; u++)
                squares += s->unit_squares[next[r] + u];
        }
    return squares;
}

srnn_status sr_shares_squares(sr_shares *s, double *squares) {
    sr_link_request request;
    void *next;
    SR_TRY(own_squares(s));
    if (s->ranks->count > 1) {
        SR_TRY(sr_ranks_gather_parts(s->ranks, &request, s->unit_squares, s->square_counts,
                                     s->square_starts));
        SR_TRY(sr_ranks_wait(s->ranks, &request));
    }
    SR_TRY(sr_alloc(&next, (size_t)s->ranks->count, sizeof(int)));
    *squares = squares_in_order(s, next);
    free(next);
    return SRNN_OK;
}

srnn_status sr_shares_spread(sr_shares *s, float *array) {
    return s->split && s->ranks->count > 1 ? gather_pieces(s, array) : SRNN_OK;
}

/* In windows, because a link counts bytes in an int. */
srnn_status sr_shares_exchange(sr_shares *s, float *array, const int64_t *bounds) {
    const int64_t window = 1 << 28;
    const int ranks = s->ranks->count;
    sr_link_request request;
    for (int64_t first = 0; ranks > 1 && first < bounds[ranks]; first += window) {
        const sr_share all = {.first = first, .count = window};
        for (int r = 0; r < ranks; r++) {
            const sr_share own = {bounds[r], 0, bounds[r + 1] - bounds[r]};
            const sr_share common = sr_share_common(&all, &own);
            s->exchange_counts[r] = (int)common.count * (int)sizeof *array;
            s->exchange_starts[r] = (int)common.first * (int)sizeof *array;
        }
        SR_TRY(sr_ranks_gather_parts(s->ranks, &request, array + first, s->exchange_counts,
                                     s->exchange_starts));
        SR_TRY(sr_ranks_wait(s->ranks, &request));
    }
    return SRNN_OK;
}
