/* test_threads.c: every task runs once, for any number of callers; idle threads yield their
 * cores. */
#include "test.h"

#include "base/clock.h"
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TASKS = 100, WORKERS = 4, CALLERS = 3 };

typedef struct count {
    atomic_int runs[TASKS];
    atomic_int busy[WORKERS]; /* tasks now running as this worker */
    atomic_int clashes;
} count;

static void count_task(void *context, int64_t task, int worker) {
    count *c = context;
    if (worker >= WORKERS || atomic_fetch_add(&c->busy[worker], 1) != 0)
        atomic_fetch_add(&c->clashes, 1);
    atomic_fetch_add(&c->runs[task], 1);
    if (worker < WORKERS)
        atomic_fetch_sub(&c->busy[worker], 1);
}

static bool each_ran(count *c, int times) {
    for (int i = 0; i < TASKS; i++)
        if (atomic_load(&c->runs[i]) != times)
            return false;
    return atomic_load(&c->clashes) == 0;
}

static void each_task_runs_once(void **state) {
    (void)state;
    for (int workers = 0; workers <= WORKERS; workers++) {
        count c = {0};
        for (int round = 1; round <= 200; round++) {
            sr_parallel(count_task, &c, TASKS, workers);
            assert_true(each_ran(&c, round));
        }
    }
    sr_parallel(count_task, NULL, 0, WORKERS);
}

static void *call_often(void *context) {
    for (int round = 1; round <= 200; round++)
        sr_parallel(count_task, context, TASKS, WORKERS);
    return NULL;
}

static void several_threads_may_call(void **state) {
    (void)state;
    pthread_t threads[CALLERS];
    static count counts[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, &counts[i]), 0);
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_true(each_ran(&counts[i], 200));
    }
}

static void call_within(void *context, int64_t task, int worker) {
    (void)worker;
    sr_parallel(count_task, (count *)context + task, TASKS, WORKERS);
}

static void a_task_may_call(void **state) {
    (void)state;
    static count counts[CALLERS];
    sr_parallel(call_within, counts, CALLERS, WORKERS);
    for (int i = 0; i < CALLERS; i++)
        assert_true(each_ran(&counts[i], 1));
}

static void a_child_has_threads_of_its_own(void **state) {
    (void)state;
    static count c;
    sr_parallel(count_task, &c, TASKS, WORKERS);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        sr_parallel(count_task, &c, TASKS, WORKERS);
        _exit(each_ran(&c, 2) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- on a machine with other work */

static double cpu_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void short_task(void *context, int64_t task, int worker) {
    (void)context, (void)task, (void)worker;
    const double until = sr_clock_seconds() + 2e-6;
    while (sr_clock_seconds() < until) {
    }
}

/* Wall seconds of many short calls. */
static double many_calls(int workers) {
    const double begin = sr_clock_seconds();
    for (int i = 0; i < 4000; i++)
        sr_parallel(short_task, NULL, 4, workers);
    return sr_clock_seconds() - begin;
}

/* Two busy processes per core. */
static int start_other_work(pid_t *processes, int most) {
    cpu_set_t cores;
    assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
    const int number = 2 * CPU_COUNT(&cores) < most ? 2 * CPU_COUNT(&cores) : most;
    for (int i = 0; i < number; i++) {
        processes[i] = fork();
        if (processes[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile int x = 0;; x = x + 1) {
            }
        }
    }
    return number;
}

static void other_work_costs_its_share_only(void **state) {
    (void)state;
    pid_t processes[64];
    const int number = start_other_work(processes, 64);
    double least = 1e9, alone = 1e9; /* the best of several: the machine may be busy */
    for (int round = 0; round < 5; round++) {
        const double one = many_calls(1), all = many_calls(sr_thread_count(0));
        alone = one < alone ? one : alone;
        least = all < least ? all : least;
    }
    for (int i = 0; i < number; i++) {
        kill(processes[i], SIGKILL);
        waitpid(processes[i], NULL, 0);
    }
    /* Threads that spin were ten to a hundred times slower than one. */
    if (least > 3 * alone)
        fail_msg("%g s with threads, %g s without", least, alone);
}

static void nobody_works_when_there_is_nothing_to_do(void **state) {
    (void)state;
    (void)many_calls(WORKERS);
    usleep(20000);
    const double begin = cpu_seconds();
    usleep(200000);
    assert_true(cpu_seconds() - begin < 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_task_runs_once),
        cmocka_unit_test(several_threads_may_call),
        cmocka_unit_test(a_task_may_call),
        cmocka_unit_test(a_child_has_threads_of_its_own),
        cmocka_unit_test(other_work_costs_its_share_only),
        cmocka_unit_test(nobody_works_when_there_is_nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
