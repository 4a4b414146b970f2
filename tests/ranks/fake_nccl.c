/* fake_nccl.c: the part of NCCL that softrnn uses, over MPI, for emulated GPUs: a library named by
 * SOFTRNN_NCCL.
 *
 * Work is queued in the stream as a host function, which the emulated GPU calls in stream order,
 * and which may access the GPU's memory. Ranks must therefore queue the same calls in the same
 * order, as with NCCL. FAKE_NCCL_SECONDS: how long a rank waits for others before the communicator
 * fails; FAKE_NCCL_REFUSES: it cannot start on this rank; FAKE_NCCL_STOPS: this rank hangs before
 * its work item of that number. */
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    char bytes[128];
} ncclUniqueId;

typedef struct comm {
    MPI_Comm world;
    int rank, count, failed;
} comm;

typedef enum kind {
    ALL_REDUCE,
    REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    ALL_GATHER,
    SEND,
    RECEIVE,
    MESSAGES
} kind;

/* One piece of work. Never freed: a captured one is executed repeatedly. */
typedef struct work {
    kind kind;
    const void *from;
    void *to;
    size_t count;
    int type, root; /* root: or the other rank of a message */
    comm *comm;
    struct work *messages; /* (count), of MESSAGES: exchanged at the same time */
} work;

enum { REMOTE_ERROR = 6 };
enum { INT8 = 0, INT64 = 4, FLOAT = 7, DOUBLE = 8, BFLOAT16 = 9 };

static MPI_Datatype mpi_type(int type) {
    return type == INT64 ? MPI_INT64_T : type == FLOAT ? MPI_FLOAT : MPI_DOUBLE;
}

static size_t bytes_of(int type) {
    return type == FLOAT ? 4 : type == BFLOAT16 ? 2 : type == INT8 ? 1 : 8;
}

static void check(int error) {
    if (error != MPI_SUCCESS) {
        fprintf(stderr, "fake_nccl: MPI failed\n");
        abort();
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Waits, unless a rank is missing for too long. */
static void finish(comm *c, MPI_Request *request) {
    const char *limit = getenv("FAKE_NCCL_SECONDS");
    const double end = seconds() + (limit ? atof(limit) : 1e9);
    int done = 0;
    while (!done && !c->failed) {
        check(MPI_Test(request, &done, MPI_STATUS_IGNORE));
        c->failed = !done && seconds() > end;
        if (!done)
            sched_yield();
    }
}

/* Numbers that are summed at a time. MPI and this file hold memory for them while they wait for
 * other ranks, which on a busy machine is most of the time: more would hide in a rank's memory
 * what its shard saves (ranks_gpus_memory). */
enum { PIECE = 1 << 14 };

static void sum_piece(const work *w, size_t at, size_t count, void *to) {
    const char *from = (const char *)w->from + at * bytes_of(w->type);
    MPI_Request request;
    check(
        MPI_Iallreduce(from, to, (int)count, mpi_type(w->type), MPI_SUM, w->comm->world, &request));
    finish(w->comm, &request);
}

/* Every rank computes the sum of `all` numbers, and keeps w->count from `first` on, or none.
 * Results may replace operands, which have been summed by then. */
static void sum(const work *w, size_t all, size_t first, int keeps) {
    const size_t size = bytes_of(w->type), past = first + w->count;
    char *piece = malloc(PIECE * size);
    if (!piece)
        abort();
    for (size_t at = 0; at < all; at += PIECE) {
        const size_t count = all - at < PIECE ? all - at : PIECE;
        const size_t from = at > first ? at : first, to = at + count < past ? at + count : past;
        sum_piece(w, at, count, piece);
        if (w->comm->failed)
            return; /* the piece is still used by MPI */
        if (keeps && from < to)
            memcpy((char *)w->to + (from - first) * size, piece + (from - at) * size,
                   (to - from) * size);
    }
    free(piece);
}

static void stop_on_request(void) {
    static int number;
    const char *last = getenv("FAKE_NCCL_STOPS");
    if (last && ++number == atoi(last))
        raise(SIGSTOP);
}

static void begin_message(const work *w, MPI_Request *request) {
    const int bytes = (int)(w->count * bytes_of(w->type));
    if (w->kind == SEND)
        check(MPI_Issend(w->from, bytes, MPI_BYTE, w->root, 0, w->comm->world, request));
    else
        check(MPI_Irecv(w->to, bytes, MPI_BYTE, w->root, 0, w->comm->world, request));
}

/* Of one group: all begin before one is waited for. */
static void exchange(const work *w) {
    MPI_Request *requests = malloc((w->count + 1) * sizeof *requests);
    if (!requests)
        abort();
    for (size_t i = 0; i < w->count; i++)
        begin_message(&w->messages[i], &requests[i]);
    for (size_t i = 0; i < w->count; i++)
        finish(w->comm, &requests[i]);
    free(requests);
}

static void run(void *context) {
    const work *w = context;
    comm *c = w->comm;
    const size_t bytes = w->count * bytes_of(w->type);
    MPI_Request request;
    stop_on_request();
    if (c->failed)
        return;
    switch (w->kind) {
    case ALL_REDUCE:
        sum(w, w->count, 0, 1);
        break;
    case REDUCE:
        sum(w, w->count, 0, c->rank == w->root);
        break;
    case REDUCE_SCATTER:
        sum(w, w->count * (size_t)c->count, w->count * (size_t)c->rank, 1);
        break;
    case BROADCAST:
        check(MPI_Ibcast(w->to, (int)bytes, MPI_BYTE, w->root, c->world, &request));
        finish(c, &request);
        break;
    case ALL_GATHER:
        memmove((char *)w->to + (size_t)c->rank * bytes, w->from, bytes);
        check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, w->to, (int)bytes, MPI_BYTE,
                             c->world, &request));
        finish(c, &request);
        break;
    case SEND:
    case RECEIVE:
        begin_message(w, &request);
        finish(c, &request);
        break;
    case MESSAGES:
        exchange(w);
        break;
    }
}

static int start(work w, void *stream) {
    static int (*launch)(void *stream, void (*function)(void *), void *context);
    work *item = malloc(sizeof *item);
    void *symbol = dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc");
    if (!item || !symbol)
        return 1;
    memcpy(&launch, &symbol, sizeof launch);
    *item = w;
    return launch(stream, run, item);
}

#pragma GCC visibility push(default) /* the following symbols are exported */

const char *ncclGetErrorString(int result) {
    return result == REMOTE_ERROR ? "a rank is missing"
           : result ? "no cudaLaunchHostFunc in this program: is it a build with an emulated GPU?"
                    : "no error";
}

int ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 7, sizeof *id);
    return 0;
}

int ncclCommInitRank(void **out, int count, ncclUniqueId id, int rank) {
    comm *c = calloc(1, sizeof *c);
    if (!c || id.bytes[0] != 7 || getenv("FAKE_NCCL_REFUSES") ||
        MPI_Comm_dup(MPI_COMM_WORLD, &c->world) != MPI_SUCCESS) {
        free(c);
        return 1;
    }
    c->rank = rank;
    c->count = count;
    *out = c;
    return 0;
}

/* NCCL's may wait for the others; the communicator ends with MPI. */
int ncclCommDestroy(void *context) {
    comm *c = context;
    MPI_Request request;
    check(MPI_Ibarrier(c->world, &request));
    finish(c, &request);
    free(c);
    return 0;
}

int ncclCommAbort(void *c) {
    (void)c; /* MPI may still use it */
    return 0;
}

int ncclCommGetAsyncError(void *c, int *result) {
    *result = ((comm *)c)->failed ? REMOTE_ERROR : 0;
    return 0;
}

/* Messages of the group that is open; other calls are queued at once. */
static struct {
    int open;
    work *messages; /* (count): goes to the work item */
    size_t count;
    void *stream;
} group;

int ncclGroupStart(void) {
    group.open = 1;
    return 0;
}

int ncclGroupEnd(void) {
    work *const messages = group.messages;
    void *const stream = group.stream;
    const size_t count = group.count;
    memset(&group, 0, sizeof group);
    if (!count)
        return 0;
    return start((work){MESSAGES, NULL, NULL, count, INT8, 0, messages->comm, messages}, stream);
}

static int start_message(work w, void *stream) {
    if (!group.open)
        return start(w, stream);
    group.messages = realloc(group.messages, (group.count + 1) * sizeof w);
    if (!group.messages)
        return 1;
    group.messages[group.count++] = w;
    group.stream = stream;
    return 0;
}

/* The parameters are NCCL's. */
int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, void *c,
                  void *stream) {
    (void)op;
    return start((work){ALL_REDUCE, from, to, count, type, 0, c, NULL}, stream);
}

/* The parameters are NCCL's. */
int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, void *c,
               void *stream) {
    (void)op;
    return start((work){REDUCE, from, to, count, type, root, c, NULL}, stream);
}

/* The parameters are NCCL's. */
int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *c,
                  void *stream) {
    return start((work){BROADCAST, from, to, count, type, root, c, NULL}, stream);
}

/* The parameters are NCCL's. */
int ncclReduceScatter(const void *from, void *to, size_t count, int type, int op, void *c,
                      void *stream) {
    (void)op;
    return start((work){REDUCE_SCATTER, from, to, count, type, 0, c, NULL}, stream);
}

int ncclAllGather(const void *from, void *to, size_t count, int type, void *c, void *stream) {
    return start((work){ALL_GATHER, from, to, count, type, 0, c, NULL}, stream);
}

int ncclSend(const void *from, size_t count, int type, int to, void *c, void *stream) {
    return start_message((work){SEND, from, NULL, count, type, to, c, NULL}, stream);
}

int ncclRecv(void *to, size_t count, int type, int from, void *c, void *stream) {
    return start_message((work){RECEIVE, NULL, to, count, type, from, c, NULL}, stream);
}

#pragma GCC visibility pop
