/* walk.h: every command of the program, one after the other, with its table of options. */
#ifndef SR_CLI_MANUAL_WALK_H
#define SR_CLI_MANUAL_WALK_H

#include "cli/line/command.h"
#include "cli/line/options.h"

/* Called in the order of the program's tables. `path` is the command after "softrnn": "train",
 * "data prepare"; "" for the program itself, which is a group. Texts are valid during the call. */
typedef struct walker {
    void (*group)(void *context, const char *path, const char *summary, const command_table *table);
    void (*command)(void *context, const char *path, const char *summary, const command_line *line);
    void *context;
} walker;

void walk_program(const walker *visitor);

/* The names of variants, for options that take one. NULL past the end. */
const char *walk_variant(size_t index);

/* True for an option whose value is an attention. */
bool walk_takes_variant(const command_option *option);

#endif
