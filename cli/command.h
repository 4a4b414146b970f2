/* command.h: what a command of the program is, and what all commands share. */
#ifndef SR_CLI_COMMAND_H
#define SR_CLI_COMMAND_H

/* Exit codes: success, failure, wrong usage. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* One row of the table in main.c. `run` gets the arguments after the command's name and returns an
 * exit code; results go to stdout, messages to stderr. */
typedef struct command {
    const char *name;
    const char *summary; /* one line for `softrnn --help` */
    int (*run)(int argc, char **argv);
} command;

#endif
