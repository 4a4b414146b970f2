/* threads.h: run a numbered set of tasks on the threads of this machine. */
#ifndef SR_BASE_THREADS_H
#define SR_BASE_THREADS_H

#include <signal.h>
#include <stdint.h>

/* A task. `worker` is 0 .. workers-1 and unique among tasks running at one time: it selects scratch
 * memory and must not influence results, which is what makes them independent of the thread count.
 */
typedef void sr_task(void *context, int64_t task, int worker);

enum { SR_MOST_THREADS = 4096 };

/* Runs tasks 0 .. tasks-1, handed out in that order, on this thread and at most `workers` - 1
 * others, which stay for the next call: they look for it for up to a millisecond, most of which
 * other programs may have, then sleep. Several threads may call it at a time, each with threads of
 * its own; a process may fork between calls. A call within a task runs on the task's thread. A call that
 * is to stop (base/cancel.h) leaves the tasks out that nobody has taken. */
void sr_parallel(sr_task *run, void *context, int64_t tasks, int workers);

/* How many of `workers` threads to wake for so many floating-point operations in all: waking one
 * costs more than a small task. */
int sr_workers_worth(double operations, int workers);

/* Blocks every signal for the calling thread but those that report a fault of its own; *before: the
 * mask to restore with pthread_sigmask. */
void sr_signals_block(sigset_t *before);

/* How many threads to use when the caller asked for `requested`; 0: what OMP_NUM_THREADS says, else
 * every core this process has. */
int sr_thread_count(int requested);

#endif
