/* origin.h: the command that makes a record, as a shell would read it back. */
#ifndef SR_CLI_LINE_ORIGIN_H
#define SR_CLI_LINE_ORIGIN_H

#include "base/status.h"

#include <stdio.h>

/* Writes a word as a shell would read it back. */
void origin_quote(FILE *out, const char *word);

/* *text = the command with its arguments, as a shell would read it back; free() it. */
srnn_status origin_command(char **text, const char *command, int argc, char **argv);

#endif
