/* ranks.h: the runs of a study shared by ranks that mpirun or srun started. */
#ifndef SR_STUDY_EXECUTE_RANKS_H
#define SR_STUDY_EXECUTE_RANKS_H

#include "study/execute/runner.h"

/* As sr_study_execute, by all ranks of way->ranks together, each with every so-manieth run that has
 * not ended, one after the other with the rank's threads. Only rank 0 holds the folder; its watch
 * is not called. */
srnn_status sr_study_execute_on_ranks(const sr_study *study, const char *folder,
                                      const sr_study_options *options, sr_run_view *views);

#endif
