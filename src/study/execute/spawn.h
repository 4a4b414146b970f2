/* spawn.h (private): other programs, and what they print. */
#ifndef SR_STUDY_EXECUTE_SPAWN_H
#define SR_STUDY_EXECUTE_SPAWN_H

#include "base/status.h"

/* Runs a program found on the path, with these arguments (the first is its name, the last NULL),
 * without a shell. *output = what it printed, messages included; free() it. Fails, with its last
 * words, if it is not there or its exit code is not 0. */
srnn_status sr_spawn_read(char **output, char *const *arguments);

#endif
