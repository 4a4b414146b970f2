/* worker.h (private): one run of a study in a separate process. */
#ifndef SR_STUDY_EXECUTE_WORKER_H
#define SR_STUDY_EXECUTE_WORKER_H

#include "study/execute/runner.h"
#include "study/plan/study.h"
#include "train/run/run.h"

#include <stdatomic.h>

typedef enum sr_worker_state {
    SR_WORKER_NONE = 0,
    SR_WORKER_ENDED,  /* it has returned, and the result is written, or the run can be resumed */
    SR_WORKER_BROKEN, /* its result could not be written: `failure` says why */
} sr_worker_state;

/* Progress of a worker, in memory shared with its parent. */
typedef struct sr_worker_board {
    _Atomic int taker; /* the process that executes the run, from 1; 0: none yet; -1: no run */
    _Atomic int state; /* sr_worker_state */
    _Atomic double expected; /* seconds that the run may take; 0: unknown */
    _Atomic int64_t step;
    _Atomic double loss;                 /* of the last steps, smoothed */
    _Atomic double validation, accuracy; /* last; NaN: none yet */
    char failure[512];                   /* read after the worker has ended */
} sr_worker_board;

/* *path = now, if both end in the same place of a study's folder that has moved; *moved is then
 * true, else left as it is. */
srnn_status sr_worker_follow(char **path, bool *moved, const char *now, const char *place);

/* Takes the steps of an open run until it is done or this process receives a stop signal, and
 * writes a checkpoint. `before`: steps of the stages before it, for the board. */
srnn_status sr_worker_steps(sr_run *run, sr_worker_board *board, int64_t before);

/* Starts or resumes the run in `folder` and writes result.json when it ends, however it ends. On
 * SIGTERM or SIGINT it writes a checkpoint and returns. False if the result could not be written:
 * board->failure says why. */
bool sr_worker_run(const sr_study_run *run, const char *folder, int threads,
                   sr_worker_board *board);

/* The same for the run named `id`, in a process started by a launcher, on its cores. Fails also if
 * the run itself failed. */
srnn_status sr_worker_member(const sr_study *study, const char *folder, const char *id);

/* A signal has stopped the workers of this process. */
bool sr_worker_stopped(void);

/* Writes the outcome of a run, unless another process is working in its folder: that one will
 * report. */
srnn_status sr_worker_write_result(const sr_result *result, const char *folder);

/* view->place = the machine and the job or process working in the run's folder, if any;
 * view->seconds = seconds since its last record, NaN if there is none. A worker maintains the file
 * "place" while it runs. If it is killed the file stays: on this machine that is detected, on
 * others its last record gets old. */
void sr_worker_where(sr_run_view *view, const char *folder);

/* True if the folder has a run. */
bool sr_worker_has_run(const char *folder);

/* SRNN_OK if the folder has no run or one of these settings. The text of a study (@text), and paths
 * that its file gives relative to itself, may have been elsewhere: both can be moved. */
srnn_status sr_worker_check(const sr_study_run *run, const char *folder);

#endif
