/* tune.h: a learning rate for every variant, task and size before they are compared.
 *
 * Successive halving: all rates with one seed and few steps, then the better half with twice the
 * steps and one seed more, until one is left. Every round is a study of its own in
 * tuning/round-N, with seeds that the comparison does not have and, of a text, the other half of
 * the validation rows. tuning.json has what was found. */
#ifndef SR_STUDY_EXECUTE_TUNE_H
#define SR_STUDY_EXECUTE_TUNE_H

#include "study/execute/runner.h"

/* Gives the runs of a study that tunes the rates in the folder's tuning.json; *missing: there is
 * none for some run that is selected. */
srnn_status sr_study_take_rates(sr_study *study, const char *folder,
                                const sr_study_options *options, bool *missing);

/* What tuning all of a priced study costs; nothing if it does not. */
typedef struct sr_tuning_cost {
    double runs, tokens, flops;
} sr_tuning_cost;
sr_tuning_cost sr_study_tuning_cost(const sr_study *study, const sr_study_options *options);

/* Finds the rates that are missing, and writes tuning.json. `text`: the file of @text. Fails with
 * SRNN_ERR_INTERRUPTED if the watch stopped it; what was run stays. */
srnn_status sr_study_tune(sr_study *study, const char *folder, const char *text,
                          const sr_study_options *options);

#endif
