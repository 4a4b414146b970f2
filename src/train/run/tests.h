/* tests.h (private): evaluates a finished run on its test tasks: tests.json. */
#ifndef SR_TRAIN_RUN_TESTS_H
#define SR_TRAIN_RUN_TESTS_H

#include "model/model.h"
#include "train/run/settings.h"

/* *T = the tokens in the longest row of all tests; 0: there are none. Fails if one is not a task,
 * or has more tokens than `vocab`. */
srnn_status sr_run_tests_check(int *T, const sr_run_settings *settings, int vocab);

/* Evaluates the model on every test, with as many rows of its validation split as a validation has,
 * and writes `folder`/tests.json. Collective. No-op if there are no tests. */
srnn_status sr_run_tests_write(const sr_run_settings *settings, sr_model *model, const char *folder,
                               sr_ranks *ranks);

#endif
