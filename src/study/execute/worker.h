/* worker.h (private): one run of a study in a process of its own. */
#ifndef SR_STUDY_EXECUTE_WORKER_H
#define SR_STUDY_EXECUTE_WORKER_H

#include "study/execute/runner.h"
#include "study/plan/study.h"

#include <stdatomic.h>

/* What a worker lets its parent see while it runs; in memory that both share. */
typedef struct sr_worker_board {
    _Atomic int64_t step;
    _Atomic double loss;                 /* of the last steps, smoothed */
    _Atomic double validation, accuracy; /* last; NaN: none yet */
    char failure[512];                   /* to be read when the worker has ended */
} sr_worker_board;

/* Starts or continues the run in `folder` and writes result.json when it ends, however it ends. On
 * SIGTERM or SIGINT it writes a checkpoint and returns. False if the result could not be written:
 * board->failure says why. */
bool sr_worker_run(const sr_study_run *run, const char *folder, int threads,
                   sr_worker_board *board);

/* The same for the run that is called `id`, in a process that a launcher started, with its cores.
 * False, with a failure told, also if the run itself failed. */
srnn_status sr_worker_member(const sr_study *study, const char *folder, const char *id);

/* Writes how a run ended, unless another process is at work in its folder: that one will tell. */
srnn_status sr_worker_tell(const sr_result *result, const char *folder);

/* view->place = the machine and the job or process at work in the run's folder, if one is, and
 * view->seconds those since its last record, NaN if there is none: it keeps the file "place" while
 * it lives. One that was killed leaves it behind: on this machine that is seen, on another its last
 * record grows old. */
void sr_worker_where(sr_run_view *view, const char *folder);

/* True if a run was started in the folder. */
bool sr_worker_has_run(const char *folder);

/* SRNN_OK if the folder has no run or one of these settings. The text of a study (@text) may lie
 * elsewhere by now: the study's folder can be moved. */
srnn_status sr_worker_check(const sr_study_run *run, const char *folder);

#endif
