/* settle.h (private): a study seed by seed, each comparison only as long as it is open. */
#ifndef SR_STUDY_EXECUTE_SETTLE_H
#define SR_STUDY_EXECUTE_SETTLE_H

#include "study/execute/runner.h"

typedef srnn_status sr_executor(const sr_study *study, const char *folder,
                                const sr_study_options *options, sr_run_view *views);

/* Runs the first two seeds of all that is selected, then, seed by seed, what is not settled (see
 * sr_study.settle) and the baselines it is compared with. The runs that were not needed are added
 * to options->skip. What is run depends on the records of the seeds before alone, so that a study
 * that was interrupted does the same. */
srnn_status sr_study_execute_settling(const sr_study *study, const char *folder,
                                      sr_study_options *options, sr_run_view *views,
                                      sr_executor *execute);

#endif
