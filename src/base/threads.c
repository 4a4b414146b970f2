/* threads.c: a pool of helper threads for numbered tasks. */
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
    const char *text = getenv("OMP_NUM_THREADS"); /* the usual place for users to set it */
    const long from_user = text ? strtol(text, NULL, 10) : 0;
    if (from_user > 0 && from_user <= SR_MOST_THREADS)
        return (int)from_user;
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

int sr_workers_worth(double operations, int workers) {
    const double least = 1e6; /* some tens of microseconds */
    double worth = operations / least;
    return worth >= workers ? workers : worth < 1.0 ? 1 : (int)worth;
}

/* ---- libraries with their own threads */

/* OpenMP's functions, if a library that tasks call (such as oneDNN) has loaded it; else NULL. */
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

/* Sets the number of threads that libraries use when called from this thread. Returns the previous
 * number. */
static int allow_libraries(int threads) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_openmp);
    if (!openmp.set)
        return 1;
    const int before = openmp.get();
    openmp.set(threads);
    return before;
}

/* ---- helpers: threads that join a call of sr_parallel */

typedef struct job {
    sr_task *run;
    void *context;
    int64_t tasks;
    atomic_bool *cancelled;   /* flag of the call it belongs to (base/cancel.h) */
    atomic_int_fast64_t next; /* the first task not taken yet */
} job;

enum {
    IDLE,    /* awake, polling for work */
    ASLEEP,  /* must be woken */
    POSTED,  /* has a job that it has not begun and that can be withdrawn */
    RUNNING, /* working on it */
    AWAITED, /* the same, and the caller sleeps until it is done */
};

/* One per cache line, to avoid false sharing. */
enum { CACHE_LINE = 64 };
typedef struct helper {
    atomic_int state;
    job *job; /* valid from POSTED on */
    int worker;
    struct helper *next; /* in a list */
} helper;

/* Helpers without a job. Concurrent callers take theirs from here and return them. */
static struct {
    pthread_mutex_t lock;
    helper *first;
    int made;
} idle = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* True while this thread runs tasks: nested calls run on this thread alone. */
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

/* How long an idle thread polls before it sleeps: longer than threads wait for the slowest one of a
 * call. A sleeping thread wakes too late for the next call, which then takes longer and lets others
 * fall asleep. After the first alone_seconds it yields to other processes; if one takes the core,
 * the machine is busy and the thread sleeps. It sleeps at once if the CPU quota is less than a core
 * per thread: polling would use up the quota. */
static const double awake_seconds = 1e-3, alone_seconds = 50e-6, taken_seconds = 20e-6;

/* Yields this core. Returns whether another process took it. */
static bool core_is_wanted(double now) {
    sched_yield();
    return sr_clock_seconds() - now > taken_seconds;
}

static double granted;     /* CPU quota in cores */
static atomic_bool scarce; /* less than a core for each thread of the last call */

/* Polls for a while as long as the state is `value`. */
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
    sr_signals_block(&before); /* signals go to the program's own threads */
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

/* A list of up to `count` helpers; fewer if no more threads can be created. */
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

/* Waits until the helper has left the job. A helper that has not begun is not waited for: it may
 * not get a core for long, and no task is left. */
static void recall(helper *h) {
    int state = POSTED;
    if (atomic_compare_exchange_strong(&h->state, &state, IDLE))
        return;
    watch(&h->state, RUNNING);
    state = RUNNING;
    if (!atomic_compare_exchange_strong(&h->state, &state, AWAITED))
        return;
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000}; /* until the next call of the
                                                                   * callback */
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

/* ---- waiting for devices */

static atomic_bool asleep;

void sr_wait_asleep(void) {
    atomic_store(&asleep, true);
}

bool sr_waits_asleep(void) {
    return atomic_load(&asleep);
}
