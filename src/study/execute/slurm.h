/* slurm.h (private): the runs of a study as an array of jobs that Slurm runs wherever there is
 * room. */
#ifndef SR_STUDY_EXECUTE_SLURM_H
#define SR_STUDY_EXECUTE_SLURM_H

#include "study/execute/runner.h"

/* As sr_study_execute, on a folder that every node sees. Jobs that a process before this one
 * submitted, and that still wait or run, are watched, not submitted again; runs whose job ended
 * without a result (a time limit, a node that failed) are submitted once more as long as that makes
 * them go on. */
srnn_status sr_study_execute_slurm(const sr_study *study, const char *folder,
                                   const sr_study_options *options, sr_run_view *views);

#endif
