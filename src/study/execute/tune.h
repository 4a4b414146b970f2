/* tune.h: tunes the learning rate of every variant, task and size before they are compared.
 *
 * Successive halving: all rates with one seed and few steps, then the better half with twice the
 * steps and one seed more, until one is left; the last round has tune_share of a run's steps. Every
 * round is a separate study in tuning/round-N, with other seeds than the comparison and, for a
 * text, the other half of the validation rows. tuning.json has the results, and the rates, the
 * share and the settings that they were found with: with others, a rate is tuned again. */
#ifndef SR_STUDY_EXECUTE_TUNE_H
#define SR_STUDY_EXECUTE_TUNE_H

#include "study/execute/runner.h"

/* Sets the tuned rates of a study's runs from the folder's tuning.json; *missing: some selected run
 * has none. */
srnn_status sr_study_take_rates(sr_study *study, const char *folder,
                                const sr_study_options *options, bool *missing);

/* Fails if the study tunes and the run has no tuned rate in the folder yet. */
srnn_status sr_study_check_rate(const sr_study *study, const char *folder, const char *id);

/* The cost of tuning a whole study whose costs are known; zero if it does not tune. */
typedef struct sr_tuning_cost {
    double runs, tokens, flops;
} sr_tuning_cost;
sr_tuning_cost sr_study_tuning_cost(const sr_study *study, const sr_study_options *options);

/* Tunes the missing rates and writes tuning.json. `text`: the file of @text. Fails with
 * SRNN_ERR_INTERRUPTED if the watch stopped it; finished runs are kept. */
srnn_status sr_study_tune(sr_study *study, const char *folder, const char *text,
                          const sr_study_options *options);

#endif
