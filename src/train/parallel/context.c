/* context.c: groups of ranks that share the tokens of each row. */
#include "train/parallel/context.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* Messages of passes, besides those of shares. Long ones travel in pieces: MPI moves a few
 * kilobytes of each whenever a rank looks for what has arrived, between which a waiting rank rests
 * (16 MB in one piece took 188 ms between processes that do not read each other's memory, in these
 * 2 ms). */
enum { TAG = SR_RANKS_TAG + 1, SENDS = 64, PIECE = 1 << 20 };

/* The rank with this part of the same rows. */
static int rank_of(const sr_context *c, int part) {
    return c->ranks->rank - c->part.index + part;
}

/* Drops the first sends that are over; it also lets MPI continue with the others. */
static srnn_status test_sends(sr_context *c) {
    size_t over = 0;
    bool done = true;
    while (over < c->pending) {
        SR_TRY(sr_ranks_test(c->ranks, &c->sends[over].request, &done));
        if (!done)
            break;
        over++;
    }
    c->pending -= over;
    if (over)
        memmove(c->sends, c->sends + over, c->pending * sizeof *c->sends);
    return SRNN_OK;
}

static size_t pieces_of(size_t bytes) {
    return (bytes + PIECE - 1) / PIECE;
}

static size_t piece_bytes(size_t bytes, size_t piece) {
    const size_t left = bytes - piece * PIECE;
    return left < PIECE ? left : PIECE;
}

/* For that many more sends. */
static srnn_status make_room(sr_context *c, size_t more_sends) {
    size_t capacity = c->capacity ? c->capacity : SENDS;
    if (c->pending + more_sends <= c->capacity)
        return SRNN_OK;
    while (capacity < c->pending + more_sends)
        capacity *= 2;
    sr_context_send *more = realloc(c->sends, capacity * sizeof *more);
    if (!more)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for %zu messages between context ranks",
                       capacity);
    c->sends = more;
    c->capacity = capacity;
    return SRNN_OK;
}

static srnn_status send(void *context, int to, const void *data, size_t bytes) {
    sr_context *c = context;
    SR_TRY(test_sends(c));
    SR_TRY(make_room(c, pieces_of(bytes)));
    for (size_t i = 0; i < pieces_of(bytes); i++, c->pending++) {
        sr_context_send *sent = &c->sends[c->pending];
        sent->data = data;
        SR_TRY(sr_ranks_send(c->ranks, &sent->request, rank_of(c, to), TAG,
                             (const char *)data + i * PIECE, piece_bytes(bytes, i)));
    }
    return SRNN_OK;
}

static srnn_status receive(void *context, int from, void *data, size_t bytes) {
    sr_context *c = context;
    const size_t pieces = pieces_of(bytes);
    if (pieces > c->arrivals_capacity) {
        void *memory;
        SR_TRY(sr_alloc(&memory, pieces, sizeof *c->arrivals));
        free(c->arrivals);
        c->arrivals = memory;
        c->arrivals_capacity = pieces;
    }
    for (size_t i = 0; i < pieces; i++)
        SR_TRY(sr_ranks_receive(c->ranks, &c->arrivals[i], rank_of(c, from), TAG,
                                (char *)data + i * PIECE, piece_bytes(bytes, i)));
    for (size_t i = 0; i < pieces; i++)
        SR_TRY(sr_ranks_wait(c->ranks, &c->arrivals[i]));
    return SRNN_OK;
}

static srnn_status settle(void *context, const void *data) {
    sr_context *c = context;
    size_t left = 0;
    for (size_t i = 0; i < c->pending; i++)
        if (!data || c->sends[i].data == data)
            SR_TRY(sr_ranks_wait(c->ranks, &c->sends[i].request));
        else
            c->sends[left++] = c->sends[i];
    c->pending = left;
    return SRNN_OK;
}

/* ---- on GPUs: everything is queued, and can be captured */

static srnn_status send_on_device(void *context, int to, const void *data, size_t bytes) {
    const sr_context *c = context;
    SR_TRY(sr_collective_fork(c->collective));
    return sr_collective_send(c->collective, data, bytes, rank_of(c, to));
}

static srnn_status receive_on_device(void *context, int from, void *data, size_t bytes) {
    const sr_context *c = context;
    SR_TRY(sr_collective_fork(c->collective)); /* what was launched may still read `data` */
    SR_TRY(sr_collective_receive(c->collective, data, bytes, rank_of(c, from)));
    return sr_collective_join(c->collective);
}

static srnn_status exchange_messages(const sr_context *c, const sr_part_message *sends,
                                     int send_count, const sr_part_message *arrivals,
                                     int arrival_count) {
    for (int i = 0; i < send_count; i++)
        SR_TRY(sr_collective_send(c->collective, sends[i].data, sends[i].bytes,
                                  rank_of(c, sends[i].part)));
    for (int i = 0; i < arrival_count; i++)
        SR_TRY(sr_collective_receive(c->collective, arrivals[i].data, arrivals[i].bytes,
                                     rank_of(c, arrivals[i].part)));
    return SRNN_OK;
}

static srnn_status exchange_on_device(void *context, const sr_part_message *sends, int send_count,
                                      const sr_part_message *arrivals, int arrival_count) {
    const sr_context *c = context;
    SR_TRY(sr_collective_fork(c->collective));
    SR_TRY(sr_collective_begin_messages(c->collective));
    const srnn_status status = exchange_messages(c, sends, send_count, arrivals, arrival_count);
    SR_TRY(sr_collective_end_messages(c->collective));
    SR_TRY(status);
    return sr_collective_join(c->collective);
}

static srnn_status settle_on_device(void *context, const void *data) {
    const sr_context *c = context;
    (void)data;
    return sr_collective_join(c->collective);
}

static srnn_status look(void *context, bool *done) {
    const sr_context *c = context;
    sr_collective_state state;
    SR_TRY(sr_collective_look(c->collective, &state));
    *done = state.done;
    c->ranks->busy = !state.done && !state.waits;
    return SRNN_OK;
}

static srnn_status wait_for_device(void *context) {
    static const double longest_rest = 1e-4;
    const sr_context *c = context;
    const srnn_status status = sr_ranks_wait_until(c->ranks, look, context, longest_rest);
    c->ranks->busy = 0;
    return status;
}

static srnn_status open_collective(sr_context *c, srnn_device *device) {
    char id[SR_COLLECTIVE_ID] = {0};
    SR_TRY(sr_ranks_agree(c->ranks, sr_collective_id(id)));
    SR_TRY(sr_ranks_share(c->ranks, id, sizeof id));
    c->part.send = send_on_device;
    c->part.receive = receive_on_device;
    c->part.settle = settle_on_device;
    c->part.exchange = exchange_on_device;
    c->part.wait = wait_for_device;
    return sr_collective_open(&c->collective, device, id, c->ranks->rank, c->ranks->count);
}

/* ---- opening */

static srnn_status check(const sr_ranks *ranks, int count, int T) {
    if (ranks->count % count)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%d ranks cannot be divided into groups of %d context ranks: start a "
                       "multiple of %d with mpirun -n, or give another --context-ranks",
                       ranks->count, count, count);
    return T >= count
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT,
                         "rows of %d tokens cannot be divided among %d context ranks", T, count);
}

srnn_status sr_context_open_host(sr_context *c, sr_ranks *ranks, int count, int T) {
    *c = (sr_context){.ranks = ranks, .count = count, .tokens = T};
    SR_TRY(check(ranks, count, T));
    const int index = ranks->rank % count, first = sr_row_part_start(T, index, count);
    c->tokens = sr_row_part_start(T, index + 1, count) - first;
    c->part = (sr_row_part){.index = index,
                            .count = count,
                            .first = first,
                            .T = T,
                            .send = send,
                            .receive = receive,
                            .settle = settle,
                            .context = c};
    return SRNN_OK;
}

srnn_status sr_context_open(sr_context *c, sr_ranks *ranks, const sr_backend *backend, int count,
                            int T) {
    SR_TRY(sr_context_open_host(c, ranks, count, T));
    return count > 1 && !sr_device_is_host(backend->device) ? open_collective(c, backend->device)
                                                            : SRNN_OK;
}

void sr_context_close(sr_context *c) {
    if (c->ranks && !c->ranks->broken) /* else closing would wait for ranks that never arrive */
        sr_collective_close(c->collective);
    free(c->sends);
    free(c->arrivals);
    *c = (sr_context){0};
}
