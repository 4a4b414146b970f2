/* installed.h: files that were installed with the program. */
#ifndef SR_CLI_LINE_INSTALLED_H
#define SR_CLI_LINE_INSTALLED_H

#include "files/path.h"

/* path = `name` if there is such a file, else the one of that name ("studies/full.yaml") next to
 * the program, if there is one; else `name`. */
void installed_find(char path[SR_PATH_BYTES], const char *name);

#endif
