/* manual.h: what is made from the tables of options: manual pages and completions. */
#ifndef SR_CLI_MANUAL_H
#define SR_CLI_MANUAL_H

#include <stdbool.h>
#include <stdio.h>

/* Writes softrnn.1, softrnn-train.1, ... into a folder; false, with a message, if one failed. */
bool manual_pages(const char *folder, const char *version);

/* What the shells read. */
void manual_bash(FILE *out);
void manual_zsh(FILE *out);
void manual_fish(FILE *out);

#endif
