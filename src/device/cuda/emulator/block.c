/* block.c: the threads of a block, and their barriers. */
#include "device/cuda/emulator/block.h"

#include "device/cuda/emulator/cooperative.h"
#include "device/cuda/emulator/fiber.h"
#include "device/cuda/emulator/races.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

enum {
    NAME_BYTES = 400,
    COPIES_FIRST = 16,
    FENCE_BYTES = 1024,
    FENCE = 0xa5,
    PATIENCE = 20 /* seconds of CPU time that a block may spend waiting for others */
};

/* Copies a thread has started; groups are numbered from 0, `group` is the one not yet committed. */
typedef struct copy {
    void *to;
    const void *from;
    int size, bytes, group;
} copy;

typedef struct thread {
    sr_emulated_place place; /* first: sr_emulated_thread points here */
    sr_fiber *fiber;
    const volatile uint32_t *word; /* waits until *word != seen; NULL: it is runnable */
    uint32_t seen;
    const char *waits_at;
    bool ended;
    copy *copies; /* started and not performed: (copy_count), oldest first */
    int copy_count, copy_capacity, group;
    uint32_t arrivals; /* at barriers of some warps */
} thread;

/* A rendezvous of the lanes of a warp. */
typedef struct warp {
    sr_emulator_perform *perform;
    const char *name;
    void *operand[SR_EMULATOR_WARP];
    int arrived;
    uint32_t met;                        /* times completed */
    uint32_t synced;                     /* times completed by __syncwarp */
    uint32_t ordered[SR_EMULATOR_WARPS]; /* as in sr_emulated_moment */
} warp;

typedef struct barrier {
    int arrived, expected;
    uint32_t passed;                     /* times completed */
    uint32_t ordered[SR_EMULATOR_WARPS]; /* of those that have arrived */
} barrier;

typedef struct block {
    const sr_emulated_kernel *kernel;
    bool late, failed;
    int threads, running; /* in all; not yet ended */
    uint32_t time;        /* barriers of all threads, in this block and those before */
    double paused;        /* since when no other thread of the block is runnable; 0: one is */
    thread *thread;       /* (SR_EMULATOR_THREADS) */
    warp warp[SR_EMULATOR_WARPS];
    barrier barrier[SR_EMULATOR_BARRIERS];
    sr_fiber *fiber; /* (SR_EMULATOR_THREADS + 1), the last one the caller's */
    unsigned char *shared;
} block;

SR_EMULATOR_THREAD_LOCAL sr_emulated_place *sr_emulated_thread;
SR_EMULATOR_THREAD_LOCAL unsigned char *sr_emulated_shared;
static _Thread_local block *here;
/* The blocks that are co-resident with this one; NULL: this host thread runs blocks one after the
 * other. */
static _Thread_local sr_emulated_party *party;

static pthread_mutex_t failure_lock = PTHREAD_MUTEX_INITIALIZER;
static char failure[2 * NAME_BYTES];

const char *sr_emulator_failure(void) {
    return failure;
}

/* Reports "kernel NAME, block (x, y, z): ..."; the name is the text of the launch, which may be
 * long. */
__attribute__((format(printf, 2, 0))) static void note_failure_list(uint3 index, const char *format,
                                                                    va_list arguments) {
    char what[NAME_BYTES];
    vsnprintf(what, sizeof what, format, arguments);
    pthread_mutex_lock(&failure_lock);
    snprintf(failure, sizeof failure, "kernel %.*s, block (%u, %u, %u): %s", NAME_BYTES / 2,
             here->kernel->name, index.x, index.y, index.z, what);
    fprintf(stderr, "CUDA emulator: %s\n", failure);
    pthread_mutex_unlock(&failure_lock);
}

__attribute__((format(printf, 2, 3))) static void note_failure(uint3 index, const char *format,
                                                               ...) {
    va_list arguments;
    va_start(arguments, format);
    note_failure_list(index, format, arguments);
    va_end(arguments);
}

/* ---- one thread at a time ---- */

static thread *current(void) {
    return (thread *)(void *)sr_emulated_thread;
}

static bool can_run(const thread *t) {
    return !t->ended && (t->word == NULL || *t->word != t->seen);
}

/* The next thread after number `from` that is runnable; the rest of its warp first, again and
 * again, so that warps get as far apart as they can. NULL: none is. */
static thread *next_thread(int from) {
    const int threads = here->threads, first = from / SR_EMULATOR_WARP * SR_EMULATOR_WARP;
    const int lanes = threads - first < SR_EMULATOR_WARP ? threads - first : SR_EMULATOR_WARP;
    const int step = here->late ? 1 : -1;
    for (int i = 1, at = from; i <= lanes; i++) {
        at += step;
        if (at >= first + lanes)
            at = first;
        else if (at < first)
            at = first + lanes - 1;
        if (can_run(&here->thread[at]))
            return &here->thread[at];
    }
    for (int i = 0, at = here->late ? first + lanes - 1 : first; i < threads; i++) {
        at += step;
        if (at >= threads)
            at = 0;
        else if (at < 0)
            at = threads - 1;
        if (can_run(&here->thread[at]))
            return &here->thread[at];
    }
    return NULL;
}

/* Switches from this thread to the next that is runnable; to the caller of the block if there is
 * none. */
static void leave(void) {
    thread *from = current(), *to = next_thread((int)(from - here->thread));
    if (to == from) {
        from->word = NULL;
        return;
    }
    if (to != NULL)
        sr_emulated_thread = &to->place;
    sr_fiber_switch(from->fiber, to != NULL ? to->fiber : &here->fiber[SR_EMULATOR_THREADS]);
    from->word = NULL;
}

void sr_emulator_wait(const volatile uint32_t *word, uint32_t seen, const char *name) {
    if (*word != seen)
        return;
    thread *t = current();
    t->word = word;
    t->seen = seen;
    t->waits_at = name;
    leave();
}

void sr_emulator_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    note_failure_list(sr_emulated_thread->block, format, arguments);
    va_end(arguments);
    here->failed = true;
    sr_fiber_switch(current()->fiber, &here->fiber[SR_EMULATOR_THREADS]);
    abort(); /* a failed block is never resumed */
}

/* ---- co-resident blocks ---- */

/* The next runnable thread of another warp. */
static thread *next_elsewhere(int from) {
    const int first = from / SR_EMULATOR_WARP * SR_EMULATOR_WARP;
    for (int i = SR_EMULATOR_WARP; i < here->threads; i++) {
        thread *t = &here->thread[(first + i) % here->threads];
        if (can_run(t))
            return t;
    }
    return NULL;
}

/* CPU time of this host thread in seconds: it may have been preempted. */
static double worked(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void check_party(void) {
    if (party == NULL)
        sr_emulator_fail("it waits for other blocks, which need not run at the same time");
}

/* The first lane does it for its warp, whose other lanes cannot proceed without it. The timeout
 * runs as long as the block writes nothing for others. */
void sr_emulator_pause(void) {
    thread *from = current(), *to = next_elsewhere((int)(from - here->thread));
    if (from->place.lane != 0)
        return;
    check_party();
    if (to == NULL || to < from) { /* all have had a turn */
        const double now = worked();
        if (here->paused == 0)
            here->paused = now;
        if (now - here->paused > PATIENCE || __atomic_load_n(party->failed, __ATOMIC_RELAXED))
            sr_emulator_fail("it has waited for other blocks in vain");
        sched_yield();
    }
    if (to == NULL)
        return;
    sr_emulated_thread = &to->place;
    sr_fiber_switch(from->fiber, to->fiber);
}

void sr_emulator_word_store(void *to, uint64_t word) {
    here->paused = 0;
    sr_emulator_order(); /* for threads that wait for the word */
    __atomic_store_n((uint64_t *)to, word, __ATOMIC_RELAXED);
}

uint64_t sr_emulator_word_load(const void *from) {
    return __atomic_load_n((const uint64_t *)from, __ATOMIC_RELAXED);
}

/* One thread arrives for its block. */
void sr_emulator_cluster_barrier(void) {
    const char *name = "the barrier of a cluster";
    check_party();
    sr_emulator_barrier(0, 0, true, name);
    if (current() == here->thread) {
        const uint32_t met = __atomic_load_n(&party->met, __ATOMIC_ACQUIRE);
        if (__atomic_add_fetch(&party->arrived, 1, __ATOMIC_ACQ_REL) == party->blocks) {
            party->arrived = 0;
            __atomic_store_n(&party->met, met + 1, __ATOMIC_RELEASE);
        }
        while (__atomic_load_n(&party->met, __ATOMIC_ACQUIRE) == met)
            sr_emulator_pause();
        here->paused = 0;
    }
    sr_emulator_barrier(0, 0, true, name);
}

float sr_emulator_cluster_load(const float *shared, int rank) {
    const ptrdiff_t at = (const unsigned char *)shared - here->shared;
    float number;
    check_party();
    if (at < 0 || (size_t)at + sizeof number > here->kernel->shared_bytes || rank < 0 ||
        rank >= party->blocks)
        sr_emulator_fail("block %d of a cluster of %d has nothing at byte %td of its shared memory",
                         rank, party->blocks, at);
    memcpy(&number, party->shared[rank] + at, sizeof number);
    return number;
}

/* ---- barriers ---- */

void sr_emulator_nothing(void *const *operands) {
    (void)operands;
}

void sr_emulator_collect(sr_emulator_perform *perform, void *operand, const char *name) {
    thread *t = current();
    const int number = (int)(t - here->thread);
    warp *w = &here->warp[number / SR_EMULATOR_WARP];
    if (here->threads % SR_EMULATOR_WARP != 0)
        sr_emulator_fail("%s in a block of %d threads, which are not whole warps", name,
                         here->threads);
    if (w->arrived > 0 && w->perform != perform)
        sr_emulator_fail("in warp %d some lanes are at %s, others at %s", number / SR_EMULATOR_WARP,
                         w->name, name);
    w->perform = perform;
    w->name = name;
    w->operand[t->place.lane] = operand;
    if (++w->arrived < SR_EMULATOR_WARP) {
        sr_emulator_wait(&w->met, w->met, name);
        return;
    }
    perform(w->operand);
    w->arrived = 0;
    w->met++;
    w->synced += perform == sr_emulator_nothing;
}

void sr_emulator_order(void) {
    here->time++;
}

bool sr_emulator_moment(sr_emulated_moment *now, int lane, const void *address) {
    if (sr_emulated_thread == NULL || sr_fibers_have(here->fiber, SR_EMULATOR_THREADS, address))
        return false;
    const int running = (int)(current() - here->thread),
              first = running - running % SR_EMULATOR_WARP;
    const warp *own = &here->warp[running / SR_EMULATOR_WARP];
    const int number = lane < 0 ? running : first + lane;
    *now = (sr_emulated_moment){number, here->time, own->synced, here->thread[number].arrivals + 1,
                                own->ordered};
    return true;
}

static void order_after(uint32_t *to, const uint32_t *from) {
    for (int i = 0; i < SR_EMULATOR_WARPS; i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}

/* What a thread did, and all that came before, comes before what follows the barrier. */
static void barrier_note(barrier *b, thread *t) {
    const int own = (int)(t - here->thread) / SR_EMULATOR_WARP;
    order_after(b->ordered, here->warp[own].ordered);
    t->arrivals++;
    if (b->ordered[own] < t->arrivals)
        b->ordered[own] = t->arrivals;
}

/* For the warps that wait there; all lanes of a warp do. `last`: of the thread that arrived last,
 * if it would have waited; or negative. */
static void barrier_order(barrier *b, int last) {
    for (int i = 0; i * SR_EMULATOR_WARP < here->threads; i++)
        if (i == last || here->thread[i * SR_EMULATOR_WARP].word == &b->passed)
            order_after(here->warp[i].ordered, b->ordered);
    memset(b->ordered, 0, sizeof b->ordered);
}

static void barrier_open(barrier *b) {
    b->arrived = 0;
    b->expected = 0;
    b->passed++;
}

void sr_emulator_barrier(int id, int threads, bool wait, const char *name) {
    if (id < 0 || id >= SR_EMULATOR_BARRIERS)
        sr_emulator_fail("there is no barrier %d", id);
    if (threads < 0 || threads % SR_EMULATOR_WARP != 0)
        sr_emulator_fail("barrier %d for %d threads, which are not whole warps", id, threads);
    barrier *b = &here->barrier[id];
    if (b->arrived > 0 && b->expected != threads)
        sr_emulator_fail("barrier %d: some come for %d threads, others for %d", id, b->expected,
                         threads);
    b->expected = threads;
    const uint32_t passed = b->passed;
    thread *t = current();
    if (threads > 0)
        barrier_note(b, t);
    if (++b->arrived == (threads > 0 ? threads : here->running)) {
        if (threads > 0)
            barrier_order(b, wait ? (int)(t - here->thread) / SR_EMULATOR_WARP : -1);
        else
            sr_emulator_order();
        barrier_open(b);
    } else if (wait)
        sr_emulator_wait(&b->passed, passed, name);
}

/* ---- asynchronous copies ---- */

bool sr_emulator_is_late(void) {
    return here->late;
}

static void copy_make(const copy *c) {
    sr_emulator_touch(-1, c->from, (size_t)c->bytes, false);
    sr_emulator_touch(-1, c->to, (size_t)c->size, true);
    memcpy(c->to, c->from, (size_t)c->bytes);
    memset((char *)c->to + c->bytes, 0, (size_t)(c->size - c->bytes));
}

void sr_emulator_copy(void *to, const void *from, int size, int bytes) {
    thread *t = current();
    const copy requested = {to, from, size, bytes, t->group};
    if (bytes < 0 || bytes > size)
        sr_emulator_fail("cp.async of %d bytes out of %d", bytes, size);
    if ((uintptr_t)to % (uintptr_t)size != 0 || (uintptr_t)from % (uintptr_t)size != 0)
        sr_emulator_fail("cp.async: an address is not a multiple of %d", size);
    if (!here->late) {
        copy_make(&requested);
        return;
    }
    if (t->copy_count == t->copy_capacity) {
        const int capacity = t->copy_capacity > 0 ? 2 * t->copy_capacity : COPIES_FIRST;
        copy *copies = realloc(t->copies, (size_t)capacity * sizeof *copies);
        if (copies == NULL)
            sr_emulator_fail("no memory for %d asynchronous copies", capacity);
        t->copies = copies;
        t->copy_capacity = capacity;
    }
    t->copies[t->copy_count++] = requested;
}

void sr_emulator_copy_commit(void) {
    current()->group++;
}

void sr_emulator_copy_wait(int pending) {
    thread *t = current();
    int made = 0;
    while (made < t->copy_count && t->copies[made].group < t->group - pending)
        copy_make(&t->copies[made++]);
    t->copy_count -= made;
    if (made > 0)
        memmove(t->copies, t->copies + made, (size_t)t->copy_count * sizeof *t->copies);
}

/* ---- a block ---- */

static void thread_start(void) {
    thread *t = current();
    sr_fiber_arrived(t->fiber);
    here->kernel->call(here->kernel->arguments);
    t->ended = true;
    t->waits_at = "its end";
    here->running--;
    barrier *all = &here->barrier[0];
    if (all->arrived > 0 && all->expected == 0 && all->arrived == here->running) {
        sr_emulator_order();
        barrier_open(all);
    }
    leave();
    abort(); /* an ended thread is never resumed */
}

/* The memory of this host thread's blocks, cached for the lifetime of the thread: thousands of
 * blocks follow. */
static _Thread_local block *cached;

static void block_release(void) {
    if (cached == NULL)
        return;
    for (int i = 0; i < SR_EMULATOR_THREADS; i++)
        free(cached->thread[i].copies);
    free(cached->shared);
    sr_fibers_free(cached->fiber, SR_EMULATOR_THREADS);
    free(cached->thread);
    free(cached);
    cached = NULL;
}

static block *block_memory(void) {
    if (cached != NULL)
        return cached;
    block *b = calloc(1, sizeof *b);
    if (b == NULL)
        return NULL;
    b->thread = calloc(SR_EMULATOR_THREADS, sizeof *b->thread);
    b->fiber = sr_fibers_create(SR_EMULATOR_THREADS, party == NULL);
    void *shared = NULL;
    if (posix_memalign(&shared, 1024, SR_EMULATOR_SHARED_BYTES + FENCE_BYTES) != 0)
        shared = NULL;
    b->shared = shared;
    if (b->thread == NULL || b->fiber == NULL || b->shared == NULL) {
        free(shared);
        sr_fibers_free(b->fiber, SR_EMULATOR_THREADS);
        free(b->thread);
        free(b);
        return NULL;
    }
    return cached = b;
}

static void threads_prepare(block *b, uint3 index) {
    const dim3 size = b->kernel->block;
    for (int i = 0; i < b->threads; i++) {
        thread *t = &b->thread[i];
        const unsigned int n = (unsigned int)i;
        t->place = (sr_emulated_place){
            .index = {n % size.x, n / size.x % size.y, n / size.x / size.y},
            .block = index,
            .block_size = size,
            .grid_size = b->kernel->grid,
            .lane = i % SR_EMULATOR_WARP,
        };
        t->fiber = &b->fiber[i];
        t->word = NULL;
        t->arrivals = 0;
        t->ended = false;
        t->copy_count = 0;
        t->group = 0;
        sr_fiber_prepare(t->fiber, thread_start);
    }
}

/* All threads that have not ended are waiting: reports where. */
static void note_deadlock(uint3 index) {
    char places[NAME_BYTES / 2] = "";
    size_t used = 0;
    bool reported[SR_EMULATOR_THREADS] = {false};
    for (int i = 0; i < here->threads; i++) {
        const char *place = here->thread[i].waits_at;
        int count = 0;
        for (int j = i; j < here->threads && !reported[i]; j++)
            if (strcmp(here->thread[j].waits_at, place) == 0) {
                count++;
                reported[j] = j > i;
            }
        if (count > 0 && used < sizeof places)
            used += (size_t)snprintf(places + used, sizeof places - used, "%s%d at %s",
                                     used > 0 ? ", " : "", count, place);
    }
    note_failure(index, "its threads wait for each other: %s", places);
}

/* Whether the bytes past the dynamic shared memory are untouched. */
static bool fence_stands(void) {
    for (int i = 0; i < FENCE_BYTES; i++)
        if (here->shared[here->kernel->shared_bytes + (size_t)i] != FENCE)
            return false;
    return true;
}

bool sr_emulator_block_run(const sr_emulated_kernel *kernel, uint3 index, bool late) {
    here = block_memory();
    if (here == NULL)
        return false;
    here->kernel = kernel;
    here->time++;
    here->late = late;
    here->failed = false;
    here->paused = 0;
    here->threads = here->running = (int)(kernel->block.x * kernel->block.y * kernel->block.z);
    memset(here->warp, 0, sizeof here->warp);
    memset(here->barrier, 0, sizeof here->barrier);
    memset(here->shared, 0xff, kernel->shared_bytes);
    memset(here->shared + kernel->shared_bytes, FENCE, FENCE_BYTES);
    sr_emulated_shared = here->shared;
    threads_prepare(here, index);

    thread *first = &here->thread[late ? 0 : here->threads - 1];
    sr_emulated_thread = &first->place;
    sr_fiber_switch(&here->fiber[SR_EMULATOR_THREADS], first->fiber);
    sr_emulated_thread = NULL;
    if (!here->failed && here->running > 0) {
        note_deadlock(index);
        here->failed = true;
    }
    if (!here->failed && !fence_stands()) {
        note_failure(index, "wrote beyond its %zu bytes of dynamic shared memory",
                     kernel->shared_bytes);
        here->failed = true;
    }
    return !here->failed;
}

bool sr_emulator_block_run_among(const sr_emulated_kernel *kernel, uint3 index, bool late,
                                 sr_emulated_party *among, int number) {
    party = among;
    if (number < SR_EMULATOR_CLUSTER && block_memory() != NULL)
        party->shared[number] = cached->shared;
    const bool right = sr_emulator_block_run(kernel, index, late);
    party = NULL;
    block_release();
    return right;
}
