/* ranks.h: distributes the runs of a study among ranks started by mpirun or srun. */
#ifndef SR_STUDY_EXECUTE_LAUNCH_RANKS_H
#define SR_STUDY_EXECUTE_LAUNCH_RANKS_H

#include "study/execute/runner.h"

/* Like sr_study_execute, on all ranks of options->ranks together: rank r executes every count-th
 * unfinished run, one after the other, with all its threads. Only rank 0 locks the folder; the
 * watch is not called. */
srnn_status sr_study_execute_on_ranks(const sr_study *study, const char *folder,
                                      const sr_study_options *options, sr_run_view *views);

#endif
