/* run_options.h: the settings of a run as options of a command. */
#ifndef SR_CLI_MODEL_RUN_OPTIONS_H
#define SR_CLI_MODEL_RUN_OPTIONS_H

#include "cli/line/options.h"
#include "train/run/settings.h"

enum { RUN_SETTINGS_MAX = 96, RUN_OWN_OPTIONS = 24 };

/* The command's own options come first: append them to `options` and count them. */
typedef struct run_options {
    command_option options[RUN_SETTINGS_MAX + RUN_OWN_OPTIONS];
    const char *texts[RUN_SETTINGS_MAX];
    char names[RUN_SETTINGS_MAX][40];
    size_t count;
} run_options;

/* Adds every setting but those named in `without` (ends in NULL; NULL: none). */
void run_options_add(run_options *all, sr_run_settings *settings, const char *const *without);

/* Texts were parsed as pointers into argv; settings need owned copies. */
srnn_status run_options_keep(sr_run_settings *settings, const run_options *all);

#endif
