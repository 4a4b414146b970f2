/* slurm.h (private): executes the runs of a study as a Slurm job array. */
#ifndef SR_STUDY_EXECUTE_LAUNCH_SLURM_H
#define SR_STUDY_EXECUTE_LAUNCH_SLURM_H

#include "study/execute/runner.h"

/* Like sr_study_execute, in a folder that every node sees. Pending or running jobs of an earlier
 * process are watched, not submitted again. Runs whose job ended without a result (a time limit, a
 * node failure) are resubmitted as long as they make progress. */
srnn_status sr_study_execute_slurm(const sr_study *study, const char *folder,
                                   const sr_study_options *options, sr_run_view *views);

#endif
