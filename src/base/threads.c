/* threads.c: threads that help with numbered tasks, and sleep when there are none. */
#include "base/threads.h"

#include "base/cancel.h"
#include "base/clock.h"
#include "base/cpu_quota.h"

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int sr_thread_count(int requested) {
    if (requested > 0)
        return requested;
    const char *text = getenv("OMP_NUM_THREADS"); /* where users are used to say it */
    const long asked = text ? strtol(text, NULL, 10) : 0;
    if (asked > 0 && asked <= SR_MOST_THREADS)
        return (int)asked;
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int sr_workers_worth(double operations, int workers) {
    const double least = 1e6; /* some tens of microseconds */
    double worth = operations / least;
    return worth >= workers ? workers : worth < 1.0 ? 1 : (int)worth;
}

/* ---- libraries with threads of their own */

/* OpenMP's, where a library that tasks call (oneDNN, say) has brought it; else NULL. */
static struct {
    void (*set)(int);
    int (*get)(void);
} openmp;

static void find_openmp(void) {
    void *set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void *get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    if (set && get) {
        memcpy(&openmp.set, &set, sizeof set);
        memcpy(&openmp.get, &get, sizeof get);
    }
}

/* Libraries get so many threads when this thread calls them. Returns how many they had. */
static int allow_libraries(int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_openmp);
    if (!openmp.set)
        return 1;
    const int before = openmp.get();
    openmp.set(threads);
    return before;
}

/* ---- helpers: threads that take part in a call of sr_parallel when asked */

typedef struct job {
    sr_task *run;
    void *context;
    int64_t tasks;
    atomic_bool *cancelled;   /* of the call that it belongs to (base/cancel.h) */
    atomic_int_fast64_t next; /* the first task that nobody has taken */
} job;

enum {
    IDLE,    /* awake, and looking for work */
    ASLEEP,  /* must be woken */
    POSTED,  /* has a job that it did not begin: it may still be taken back */
    RUNNING, /* works on it */
    AWAITED, /* does, and somebody sleeps until it is done */
};

/* One to a cache line, so that they do not slow each other down. */
enum { CACHE_LINE = 64 };
typedef struct helper {
    atomic_int state;
    job *job; /* valid from POSTED on */
    int worker;
    struct helper *next; /* in a list */
} helper;

/* Helpers without a job. Calls from several threads take theirs from here, and put them back. */
static struct {
    pthread_mutex_t lock;
    helper *first;
    int made;
} idle = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* True while this thread runs tasks: what they call in turn runs on this thread alone. */
static _Thread_local bool inside;

static void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void sleep_while(atomic_int *state, int value, const struct timespec *longest) {
    syscall(SYS_futex, state, FUTEX_WAIT_PRIVATE, value, longest, NULL, 0);
}

static void wake(atomic_int *state) {
    syscall(SYS_futex, state, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* How long a thread without work stays awake: longer than threads wait for the slowest of a call.
 * One that sleeps wakes too late for the next call, which then lasts longer and lets others fall
 * asleep. All but the first moment is offered to other programs; where one takes the core, the
 * machine has other work, and the thread sleeps. It sleeps at once where the system grants less
 * than a core to each thread: what is spent waiting would be missing for work. */
static const double awake_seconds = 1e-3, alone_seconds = 50e-6, taken_seconds = 20e-6;

/* Offers this core to other programs. Returns whether one took it. */
static bool core_is_wanted(double now) {
    sched_yield();
    return sr_clock_seconds() - now > taken_seconds;
}

static double granted;     /* cores' worth of time for all threads */
static atomic_bool scarce; /* less than a core for each thread of the last call */

/* Stays awake for a moment while the state is `value`. */
static void watch(atomic_int *state, int value) {
    double begin = 0, waited = 0;
    if (atomic_load(&scarce))
        return;
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load(state) != value)
                return;
            rest();
        }
        const double now = sr_clock_seconds();
        begin = begin > 0 ? begin : now;
        waited = now - begin;
        if (waited > alone_seconds && core_is_wanted(now))
            return;
    } while (waited < awake_seconds);
}

static void run_tasks(job *j, int worker) {
    inside = true;
    for (int64_t task; !sr_cancelled() && (task = atomic_fetch_add(&j->next, 1)) < j->tasks;)
        j->run(j->context, task, worker);
    inside = false;
}

static void *help(void *argument) {
    helper *h = argument;
    (void)allow_libraries(1);
    for (;;) {
        int expected = POSTED;
        if (atomic_compare_exchange_strong(&h->state, &expected, RUNNING)) {
            sr_cancel_follow(h->job->cancelled);
            run_tasks(h->job, h->worker);
            sr_cancel_follow(NULL);
            if (atomic_exchange(&h->state, IDLE) == AWAITED)
                wake(&h->state);
        }
        watch(&h->state, IDLE);
        expected = IDLE;
        if (atomic_compare_exchange_strong(&h->state, &expected, ASLEEP))
            while (atomic_load(&h->state) == ASLEEP)
                sleep_while(&h->state, ASLEEP, NULL);
    }
    return NULL;
}

void sr_signals_block(sigset_t *before) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

/* A new helper, or NULL. */
static helper *make_helper(void) {
    pthread_t thread;
    sigset_t before;
    helper *h = aligned_alloc(CACHE_LINE, CACHE_LINE);
    if (!h)
        return NULL;
    *h = (helper){.next = NULL};
    atomic_init(&h->state, IDLE);
    sr_signals_block(&before); /* signals are for the threads of the program */
    const int failed = pthread_create(&thread, NULL, help, h);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(h);
        return NULL;
    }
    pthread_detach(thread);
    return h;
}

static void before_fork(void) {
    pthread_mutex_lock(&idle.lock);
}

static void after_fork(void) {
    pthread_mutex_unlock(&idle.lock);
}

/* A new process has none of its parent's threads. */
static void in_child(void) {
    idle.first = NULL;
    idle.made = 0;
    pthread_mutex_unlock(&idle.lock);
}

static void prepare(void) {
    (void)pthread_atfork(before_fork, after_fork, in_child);
    granted = sr_cpu_quota("/sys/fs/cgroup", "/proc/self/cgroup");
}

/* A list of up to `count` helpers; fewer where the system gives no more threads. */
static helper *take_helpers(int count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    helper *list = NULL;
    if (count <= 0)
        return NULL;
    pthread_once(&once, prepare);
    atomic_store(&scarce, granted < count + 1);
    pthread_mutex_lock(&idle.lock);
    for (; count > 0; count--) {
        helper *h = idle.first;
        if (h)
            idle.first = h->next;
        else if (idle.made < SR_MOST_THREADS && (h = make_helper()))
            idle.made++;
        if (!h)
            break;
        h->next = list;
        list = h;
    }
    pthread_mutex_unlock(&idle.lock);
    return list;
}

static void post(helper *list, job *j) {
    int worker = 1;
    for (helper *h = list; h; h = h->next) {
        h->job = j;
        h->worker = worker++;
        if (atomic_exchange(&h->state, POSTED) == ASLEEP)
            wake(&h->state);
    }
}

/* Until the helper has left the job. One that did not begin is not waited for: it may get no core
 * for long, and nothing is left to do. */
static void recall(helper *h) {
    int state = POSTED;
    if (atomic_compare_exchange_strong(&h->state, &state, IDLE))
        return;
    watch(&h->state, RUNNING);
    state = RUNNING;
    if (!atomic_compare_exchange_strong(&h->state, &state, AWAITED))
        return;
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000}; /* until the next question */
    while (atomic_load(&h->state) == AWAITED) {
        sleep_while(&h->state, AWAITED, sr_cancel_flag() ? &moment : NULL);
        (void)sr_cancelled();
    }
}

static void give_back(helper *list) {
    if (!list)
        return;
    helper *last = list;
    while (last->next)
        last = last->next;
    pthread_mutex_lock(&idle.lock);
    last->next = idle.first;
    idle.first = list;
    pthread_mutex_unlock(&idle.lock);
}

void sr_parallel(sr_task *run, void *context, int64_t tasks, int workers) {
    job j = {.run = run, .context = context, .tasks = tasks, .cancelled = sr_cancel_flag()};
    if (inside) {
        for (int64_t task = 0; task < tasks && !sr_cancelled(); task++)
            run(context, task, 0);
        return;
    }
    const int threads = allow_libraries(1);
    helper *helpers = take_helpers((int)(workers < tasks ? workers : tasks) - 1);
    post(helpers, &j);
    run_tasks(&j, 0);
    for (helper *h = helpers; h; h = h->next)
        recall(h);
    give_back(helpers);
    (void)allow_libraries(threads);
}
