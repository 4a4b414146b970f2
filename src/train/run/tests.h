/* tests.h (private): what a finished run is tested on: tests.json. */
#ifndef SR_TRAIN_RUN_TESTS_H
#define SR_TRAIN_RUN_TESTS_H

#include "model/model.h"
#include "train/run/settings.h"

/* *T = the tokens in the longest row of all tests; 0: there are none. Fails if one is not a task,
 * or has more tokens than `vocab`. */
srnn_status sr_run_tests_check(int *T, const sr_run_settings *settings, int vocab);

/* Evaluates the model on every test, on the rows of its validation split, as many as a validation
 * has; all ranks together, and writes `folder`/tests.json. Does nothing if there are none. */
srnn_status sr_run_tests_write(const sr_run_settings *settings, sr_model *model, const char *folder,
                               sr_ranks *ranks);

#endif
