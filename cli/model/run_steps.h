/* run_steps.h: a training run from its current step to its end, with progress messages. */
#ifndef SR_CLI_MODEL_RUN_STEPS_H
#define SR_CLI_MODEL_RUN_STEPS_H

#include "train/run/run.h"

/* Steps until the run is done or a signal comes, then saves. Progress goes to stderr, validation to
 * stdout; only rank 0 speaks. Returns an exit code. */
int run_to_end(sr_run *run, const char *folder, const sr_ranks *ranks);

#endif
