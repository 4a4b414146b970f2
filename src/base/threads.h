/* threads.h: run a numbered set of tasks on the threads of this machine. */
#ifndef SR_BASE_THREADS_H
#define SR_BASE_THREADS_H

#include <stdint.h>

/* A task. `worker` is 0 .. workers-1 and unique among tasks running at one time: it selects scratch
 * memory and must not influence results, which is what makes them independent of the thread count.
 */
typedef void sr_task(void *context, int64_t task, int worker);

/* Runs tasks 0 .. tasks-1, handed out in that order, on at most `workers` threads (at least one).
 */
void sr_parallel(sr_task *run, void *context, int64_t tasks, int workers);

/* How many of `workers` threads to wake for so many floating-point operations in all: waking one costs
 * more than a small task. */
int sr_workers_worth(double operations, int workers);

/* How many threads to use when the caller asked for `requested` (0: every core this process has).
 */
int sr_thread_count(int requested);

#endif
