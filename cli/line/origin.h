/* origin.h: the command that produces a record, quoted for a shell. */
#ifndef SR_CLI_LINE_ORIGIN_H
#define SR_CLI_LINE_ORIGIN_H

#include "base/status.h"

#include <stdio.h>

/* Writes a word quoted for a shell. */
void origin_quote(FILE *out, const char *word);

/* *text = the command with its arguments, quoted for a shell; free() it. */
srnn_status origin_command(char **text, const char *command, int argc, char **argv);

#endif
