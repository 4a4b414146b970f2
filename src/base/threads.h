/* threads.h: run a numbered set of tasks on the threads of this machine. */
#ifndef SR_BASE_THREADS_H
#define SR_BASE_THREADS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A task. `worker` is 0 .. workers-1 and unique among tasks running at one time: it selects scratch
 * memory and must not influence results, so that they do not depend on the number of threads. */
typedef void sr_task(void *context, int64_t task, int worker);

enum { SR_MOST_THREADS = 4096 };

/* Runs tasks 0 .. tasks-1, started in that order, on this thread and at most `workers` - 1 helper
 * threads. Helpers stay for later calls: they poll for up to a millisecond, yielding to other
 * processes, then sleep. Several threads may call it concurrently, each with its own helpers; a
 * process may fork between calls. A nested call runs on the task's thread. After a cancellation
 * (base/cancel.h) no further task is started. */
void sr_parallel(sr_task *run, void *context, int64_t tasks, int workers);

/* The number of threads, up to `workers`, worth waking for this many floating-point operations in
 * all: waking one costs more than a small task. */
int sr_workers_worth(double operations, int workers);

/* Blocks every signal for the calling thread except those raised by its own faults; *before: the
 * mask to restore with pthread_sigmask. */
void sr_signals_block(sigset_t *before);

/* From now on threads of this process wait for devices by sleeping, not by polling: there are more
 * of them than cores. */
void sr_wait_asleep(void);
bool sr_waits_asleep(void);

/* The number of threads to use for the setting `requested`; 0: OMP_NUM_THREADS, else every core
 * this process has. */
int sr_thread_count(int requested);

#ifdef __cplusplus
}
#endif

#endif
