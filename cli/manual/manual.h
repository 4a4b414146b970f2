/* manual.h: manual pages and completions, generated from the tables of options. */
#ifndef SR_CLI_MANUAL_H
#define SR_CLI_MANUAL_H

#include <stdbool.h>
#include <stdio.h>

/* Writes softrnn.1, softrnn-train.1, ... into a folder; false, with a message, if one failed. */
bool manual_pages(const char *folder, const char *version);

/* Completion scripts. */
void manual_bash(FILE *out);
void manual_zsh(FILE *out);
void manual_fish(FILE *out);

#endif
