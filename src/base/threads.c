/* threads.c: the one place that knows the thread runtime (OpenMP). */
#include "base/threads.h"

#include <omp.h>

int sr_thread_count(int requested) {
    return requested > 0 ? requested : omp_get_max_threads();
}

int sr_workers_worth(double operations, int workers) {
    const double least = 1e6; /* some tens of microseconds */
    double worth = operations / least;
    return worth >= workers ? workers : worth < 1.0 ? 1 : (int)worth;
}

void sr_parallel(sr_task *run, void *context, int64_t tasks, int workers) {
    if (workers > tasks)
        workers = (int)tasks;
    if (workers <= 1) {
        /* A library that a task calls gets this thread only, and is told so. */
        const int threads = omp_get_max_threads();
        omp_set_num_threads(1);
        for (int64_t task = 0; task < tasks; task++)
            run(context, task, 0);
        omp_set_num_threads(threads);
        return;
    }
#pragma omp parallel num_threads(workers)
    {
        omp_set_num_threads(1); /* for the libraries, inside this region only */
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++)
            run(context, task, omp_get_thread_num());
    }
}
