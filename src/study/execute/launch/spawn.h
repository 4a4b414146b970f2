/* spawn.h (private): runs other programs and captures their output. */
#ifndef SR_STUDY_EXECUTE_LAUNCH_SPAWN_H
#define SR_STUDY_EXECUTE_LAUNCH_SPAWN_H

#include "base/status.h"

/* Runs a program found on the path with these arguments (the first is its name, the last NULL),
 * without a shell. *output = its stdout and stderr; free() it. Fails, quoting the end of the
 * output, if the program is missing or its exit code is not 0. */
srnn_status sr_spawn_read(char **output, char *const *arguments);

#endif
