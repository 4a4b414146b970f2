/* ranks.c: the processes that share one job. */
#include "ranks/ranks.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "ranks/module.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Tags of the poll. */
enum { TAG_QUESTION = 1, TAG_ANSWER = 2 };

/* ---- who is there */

static srnn_status failure(sr_ranks *ranks, int error) {
    char why[SR_LINK_TEXT];
    ranks->broken = true;
    ranks->link->explain(why, error);
    return SR_FAIL(SRNN_ERR_IO, "rank %d of %d cannot reach the others: %s", ranks->rank,
                   ranks->count, why);
}

static srnn_status take_lists(sr_ranks *ranks) {
    const size_t count = (size_t)ranks->count;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, count, sizeof *ranks->hosts));
    ranks->hosts = memory;
    SR_TRY(sr_alloc(&memory, count, sizeof *ranks->counts));
    ranks->counts = memory;
    SR_TRY(sr_alloc(&memory, count, sizeof *ranks->starts));
    ranks->starts = memory;
    memcpy(ranks->hosts[ranks->rank], ranks->link->host, sizeof *ranks->hosts);
    return sr_ranks_gather(ranks, ranks->hosts, sizeof *ranks->hosts);
}

srnn_status sr_ranks_open(sr_ranks *ranks) {
    bool several;
    *ranks = *sr_ranks_alone();
    SR_TRY(sr_ranks_started(&several));
    if (!several)
        return SRNN_OK;
    SR_TRY(sr_ranks_module_open(&ranks->module, &ranks->link));
    ranks->rank = ranks->link->rank;
    ranks->count = ranks->link->count;
    return take_lists(ranks);
}

void sr_ranks_close(sr_ranks *ranks) {
    free(ranks->hosts);
    free(ranks->counts);
    free(ranks->starts);
    if (ranks->link)
        ranks->link->close(ranks->link);
    /* The module stays loaded: MPI libraries do not support unloading. */
    *ranks = *sr_ranks_alone();
}

void sr_ranks_break(sr_ranks *ranks) {
    ranks->broken = ranks->broken || ranks->count > 1;
}

_Noreturn void sr_ranks_abort(const sr_ranks *ranks, int exit_code) {
    fflush(NULL);
    if (ranks->link)
        ranks->link->abort(ranks->link, exit_code);
    _exit(exit_code);
}

sr_ranks *sr_ranks_alone(void) {
    static sr_ranks alone = {.rank = 0, .count = 1};
    return &alone;
}

/* A launcher that binds gives each rank its own cores; otherwise all ranks see all cores. */
int sr_ranks_threads(const sr_ranks *ranks, int requested) {
    const int threads = sr_thread_count(requested);
    if (requested > 0 || !ranks->link || getenv("OMP_NUM_THREADS") ||
        threads < sysconf(_SC_NPROCESSORS_ONLN))
        return threads;
    const int share = threads / ranks->link->neighbours;
    return share > 0 ? share : 1;
}

/* ---- polling the ranks: a rank that waits answers; one that does not answer hangs or has died */

typedef enum answer { ANSWER_NONE, ANSWER_WAITS, ANSWER_BUSY } answer;

typedef struct rank_poll {
    answer *answers; /* (count) */
    int missing;
} rank_poll;

/* Sends one byte. */
static srnn_status send_byte(sr_ranks *ranks, int to, int tag) {
    sr_link_request request;
    /* The message is short enough to be sent eagerly; the request is never waited for. */
    return sr_ranks_send(ranks, &request, to, tag, &ranks->busy, sizeof ranks->busy);
}

static srnn_status receive_byte(sr_ranks *ranks, int tag, int *from, char *byte) {
    int there = 0, error = ranks->link->probe(ranks->link, tag, &there, from);
    sr_link_request request;
    bool done = false;
    if (error)
        return failure(ranks, error);
    if (!there) {
        *from = -1;
        return SRNN_OK;
    }
    SR_TRY(sr_ranks_receive(ranks, &request, *from, tag, byte, sizeof *byte));
    while (!done)
        SR_TRY(sr_ranks_test(ranks, &request, &done));
    return SRNN_OK;
}

/* Answers questions of other ranks and records their answers. */
static srnn_status handle_messages(sr_ranks *ranks, rank_poll *result) {
    int from;
    char byte;
    for (;;) {
        SR_TRY(receive_byte(ranks, TAG_QUESTION, &from, &byte));
        if (from < 0)
            break;
        SR_TRY(send_byte(ranks, from, TAG_ANSWER));
    }
    for (;;) {
        SR_TRY(receive_byte(ranks, TAG_ANSWER, &from, &byte));
        if (from < 0)
            return SRNN_OK;
        if (result) {
            result->missing -= result->answers[from] == ANSWER_NONE;
            result->answers[from] = byte ? ANSWER_BUSY : ANSWER_WAITS;
        }
    }
}

static void rest(double seconds) {
    const struct timespec time = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&time, NULL);
}

/* A rank that cannot be polled counts as silent. */
static void poll_ranks(sr_ranks *ranks, rank_poll *result) {
    enum { TRIES = 300 };
    for (int other = 0; other < ranks->count; other++)
        if (other != ranks->rank)
            (void)send_byte(ranks, other, TAG_QUESTION);
    for (int i = 0; i < TRIES && result->missing > 0; i++) {
        (void)handle_messages(ranks, result);
        rest(0.01);
    }
}

typedef struct rank_names {
    char text[256];
} rank_names;

/* "rank 2 on node7, rank 3 on node8": the ranks with this answer. */
static rank_names name_ranks(const sr_ranks *ranks, const rank_poll *result, answer given) {
    rank_names names = {""};
    size_t used = 0;
    for (int r = 0; r < ranks->count && used < sizeof names.text; r++)
        if (result->answers[r] == given)
            used += (size_t)snprintf(names.text + used, sizeof names.text - used, "%srank %d on %s",
                                     used ? ", " : "", r, ranks->hosts[r]);
    return names;
}

/* Ranks that do not answer, and ranks whose device is still busy. */
typedef struct culprits {
    rank_names silent, busy;
} culprits;

static srnn_status find_culprits(sr_ranks *ranks, culprits *found) {
    void *memory;
    ranks->broken = true;
    SR_TRY(sr_alloc_zero(&memory, (size_t)ranks->count, sizeof(answer)));
    rank_poll result = {.answers = memory, .missing = ranks->count - 1};
    result.answers[ranks->rank] = ranks->busy ? ANSWER_BUSY : ANSWER_WAITS;
    poll_ranks(ranks, &result);
    *found = (culprits){name_ranks(ranks, &result, ANSWER_NONE),
                        name_ranks(ranks, &result, ANSWER_BUSY)};
    free(memory);
    return SRNN_OK;
}

static srnn_status give_up(sr_ranks *ranks) {
    culprits found;
    SR_TRY(find_culprits(ranks, &found));
    if (*found.silent.text)
        return SR_FAIL(SRNN_ERR_IO,
                       "%s gave no answer for %g seconds: it hangs, is far slower than the others "
                       "or has died; --rank-patience says how long to wait",
                       found.silent.text, ranks->patience);
    if (*found.busy.text)
        return SR_FAIL(SRNN_ERR_IO,
                       "the GPU of %s has not ended its own part of a step for %g seconds: it "
                       "hangs or is far slower than the others; --rank-patience says how long to "
                       "wait",
                       found.busy.text, ranks->patience);
    return SR_FAIL(SRNN_ERR_IO, "deadlock: all ranks have waited for %g seconds", ranks->patience);
}

/* Extends the last error by the ranks that do not answer. */
static srnn_status name_silent(sr_ranks *ranks, srnn_status status) {
    char why[512];
    culprits found;
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    const bool known = find_culprits(ranks, &found) == SRNN_OK;
    return known && *found.silent.text
               ? SR_FAIL(status, "%s gives no answer; %s", found.silent.text, why)
               : SR_FAIL(status, "%s", why);
}

/* ---- messages */

srnn_status sr_ranks_test(sr_ranks *ranks, sr_link_request *request, bool *done) {
    int flag = 0;
    const int error = ranks->link->test(ranks->link, request, &flag);
    *done = flag != 0;
    return error ? failure(ranks, error) : SRNN_OK;
}

/* Polls often at first, as most answers come soon, then yields the core. Patience applies to the
 * other ranks: it does not run while this rank's own device is busy, however long that takes. */
srnn_status sr_ranks_wait_until(sr_ranks *ranks, sr_ranks_look *look, void *context,
                                double longest_rest) {
    enum { LOOKS = 200 };
    static const double between_calls = 0.1;
    double begin = sr_clock_seconds(), handled = begin, pause = 2e-5;
    for (int i = 0;; i++) {
        bool done;
        const srnn_status status = look(context, &done);
        if (status != SRNN_OK)
            return name_silent(ranks, status);
        if (done)
            return SRNN_OK;
        if (i < LOOKS)
            continue;
        rest(pause);
        pause = pause < longest_rest ? 1.2 * pause : longest_rest;
        const double now = sr_clock_seconds();
        if (now - handled > between_calls) {
            SR_TRY(handle_messages(ranks, NULL));
            handled = now;
        }
        if (ranks->busy)
            begin = now;
        if (ranks->patience > 0 && now - begin > ranks->patience)
            return give_up(ranks);
    }
}

typedef struct awaited {
    sr_ranks *ranks;
    sr_link_request *request;
} awaited;

static srnn_status look_at_request(void *context, bool *done) {
    const awaited *a = context;
    return sr_ranks_test(a->ranks, a->request, done);
}

srnn_status sr_ranks_wait(sr_ranks *ranks, sr_link_request *request) {
    static const double longest_rest = 1e-3;
    return sr_ranks_wait_until(ranks, look_at_request, &(awaited){ranks, request}, longest_rest);
}

static srnn_status check_size(size_t bytes) {
    return bytes <= INT_MAX ? SRNN_OK
                            : SR_FAIL(SRNN_ERR_LIMIT, "a message of %zu bytes is too long", bytes);
}

srnn_status sr_ranks_send(sr_ranks *ranks, sr_link_request *request, int to, int tag,
                          const void *data, size_t bytes) {
    SR_TRY(check_size(bytes));
    const int error = ranks->link->send(ranks->link, request, to, tag, data, (int)bytes);
    return error ? failure(ranks, error) : SRNN_OK;
}

srnn_status sr_ranks_receive(sr_ranks *ranks, sr_link_request *request, int from, int tag,
                             void *data, size_t bytes) {
    SR_TRY(check_size(bytes));
    const int error = ranks->link->receive(ranks->link, request, from, tag, data, (int)bytes);
    return error ? failure(ranks, error) : SRNN_OK;
}

srnn_status sr_ranks_gather_parts(sr_ranks *ranks, sr_link_request *request, void *all,
                                  const int *counts, const int *starts) {
    const int error = ranks->link->gather(ranks->link, request, all, counts, starts);
    return error ? failure(ranks, error) : SRNN_OK;
}

/* Rank r's counts[r] bytes at all + starts[r], `bytes` in all. Uses a separate buffer: after a wait
 * was abandoned the other ranks may still write there. */
static srnn_status gather_apart(sr_ranks *ranks, void *all, size_t bytes) {
    void *apart;
    sr_link_request request;
    SR_TRY(sr_alloc(&apart, bytes, 1));
    memcpy(apart, all, bytes);
    srnn_status status =
        sr_ranks_gather_parts(ranks, &request, apart, ranks->counts, ranks->starts);
    if (status == SRNN_OK)
        status = sr_ranks_wait(ranks, &request);
    if (status == SRNN_OK)
        memcpy(all, apart, bytes);
    if (!ranks->broken)
        free(apart);
    return status;
}

srnn_status sr_ranks_gather(sr_ranks *ranks, void *all, size_t bytes) {
    if (ranks->count == 1)
        return SRNN_OK;
    SR_TRY(check_size(bytes * (size_t)ranks->count));
    for (int r = 0; r < ranks->count; r++) {
        ranks->counts[r] = (int)bytes;
        ranks->starts[r] = r * (int)bytes;
    }
    return gather_apart(ranks, all, bytes * (size_t)ranks->count);
}

srnn_status sr_ranks_share(sr_ranks *ranks, void *data, size_t bytes) {
    if (ranks->count == 1)
        return SRNN_OK;
    SR_TRY(check_size(bytes));
    for (int r = 0; r < ranks->count; r++) {
        ranks->counts[r] = r == 0 ? (int)bytes : 0;
        ranks->starts[r] = 0;
    }
    return gather_apart(ranks, data, bytes);
}

/* ---- verdicts */

typedef struct verdict {
    int status;
    char message[1024];
} verdict;

/* This rank's own failure is reported as it was, another rank's with its name. */
static srnn_status report_failure(const sr_ranks *ranks, int rank, const verdict *v) {
    const srnn_status status = (srnn_status)v->status;
    return rank == ranks->rank
               ? SR_FAIL(status, "%s", v->message)
               : SR_FAIL(status, "rank %d on %s: %s", rank, ranks->hosts[rank], v->message);
}

srnn_status sr_ranks_agree(sr_ranks *ranks, srnn_status status) {
    void *memory;
    if (ranks->count == 1 || (ranks->broken && status != SRNN_OK))
        return status; /* no rank would answer */
    SR_TRY(sr_alloc_zero(&memory, (size_t)ranks->count, sizeof(verdict)));
    verdict *all = memory, *own = &all[ranks->rank];
    own->status = (int)status;
    if (status != SRNN_OK)
        snprintf(own->message, sizeof own->message, "%s", srnn_error_detail());
    srnn_status reported = sr_ranks_gather(ranks, all, sizeof *all);
    for (int r = 0; reported == SRNN_OK && r < ranks->count; r++)
        if (all[r].status != SRNN_OK)
            reported = report_failure(ranks, r, &all[r]);
    free(memory);
    return reported;
}
