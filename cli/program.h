/* program.h: the program without main, also used to generate the manual. */
#ifndef SR_CLI_PROGRAM_H
#define SR_CLI_PROGRAM_H

#include "cli/line/command.h"

extern const command_table program_table;

/* Runs the command line after the program's name; returns the exit code. */
int program_run(int argc, char **argv);

#endif
