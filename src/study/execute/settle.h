/* settle.h (private): executes a study seed by seed, and ends each comparison once it is
 * settled. */
#ifndef SR_STUDY_EXECUTE_SETTLE_H
#define SR_STUDY_EXECUTE_SETTLE_H

#include "study/execute/runner.h"

typedef srnn_status sr_executor(const sr_study *study, const char *folder,
                                const sr_study_options *options, sr_run_view *views);

/* Executes the first two seeds of all selected runs, then, seed by seed, the comparisons that are
 * not settled (see sr_study.settle) and their baselines. Runs that were not needed are added to
 * options->skip. Decisions depend only on the records of earlier seeds, so that an interrupted
 * study makes the same ones. */
srnn_status sr_study_execute_settling(const sr_study *study, const char *folder,
                                      sr_study_options *options, sr_run_view *views,
                                      sr_executor *execute);

#endif
