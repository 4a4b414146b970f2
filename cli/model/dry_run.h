/* dry_run.h: what a run would compute and exchange, without starting it. */
#ifndef SR_CLI_MODEL_DRY_RUN_H
#define SR_CLI_MODEL_DRY_RUN_H

#include "train/run/settings.h"

/* Prints the model's size and, for each layer, the bytes and operations of a batch on the context
 * ranks of the settings. Opens the data and the model's config; writes nothing. */
srnn_status dry_run(sr_run_settings *settings);

#endif
