/* origin.h: where and with what a record was made. */
#ifndef SR_CLI_ORIGIN_H
#define SR_CLI_ORIGIN_H

#include "base/status.h"

#include <jansson.h>
#include <stdio.h>

/* Writes a word as a shell would read it back. */
void origin_quote(FILE *out, const char *word);

/* *text = the command with its arguments, as a shell would read it back; free() it. */
srnn_status origin_command(char **text, const char *command, int argc, char **argv);

/* { "command", "softrnn", "revision", "machine" }; NULL if memory is short. */
json_t *origin_json(const char *command);

#endif
