/* command.h: the type of a command, and functions shared by all commands. */
#ifndef SR_CLI_LINE_COMMAND_H
#define SR_CLI_LINE_COMMAND_H

#include "ranks/ranks.h"
#include "softrnn.h"

/* Exit codes: success, failure, wrong usage; ended by a signal: this and its number, as shells
 * do. */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

/* One row of a table of commands: the one in program.c, or that of a command with subcommands.
 * `run` gets the arguments after the command's name and returns an exit code; results go to stdout,
 * messages to stderr. */
typedef struct command {
    const char *name;
    const char *summary; /* one line for --help */
    int (*run)(int argc, char **argv);
} command;

typedef struct command_table {
    const char *program; /* typed before the command's name: "softrnn", "softrnn data" */
    const char *purpose; /* one line for --help */
    const command *commands;
    size_t count;
    const char *examples; /* lines for --help, each ending in a newline */
} command_table;

struct command_line; /* options.h */

/* Receives the tables instead of running commands: the manual. */
typedef struct command_observer {
    void (*table)(void *context, const command_table *table);
    void (*line)(void *context, const struct command_line *line);
    void *context;
} command_observer;

/* From now on no command is run and no command line is parsed: tables go to the observer. Its texts
 * are valid during the call only. */
void command_observe(const command_observer *observer);
const command_observer *command_observed(void); /* NULL: none */

/* Runs the command that argv[0] names with the arguments after it; prints the table for --help. */
int command_dispatch(const command_table *table, int argc, char **argv);

/* Prints "softrnn: <detail of the last failure>" to stderr unless the status is SRNN_OK; returns
 * the exit code: EXIT_USAGE for SRNN_ERR_ARGUMENT, that of the signal for SRNN_ERR_INTERRUPTED. */
int command_report(srnn_status status);

/* The same for a failure of one of several ranks: names this rank, then aborts all of them. Returns
 * if there is only one. */
int command_report_rank(srnn_status status, const sr_ranks *ranks);

/* Prints "softrnn: <message>" to stderr; returns EXIT_USAGE, for invalid arguments. */
int command_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Prints "softrnn: <message>", one line, to stderr; text quoted from files is escaped
 * (sr_text_escape). */
void command_message(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Flushes stdout. Returns EXIT_FAILED, with a message, if output was lost, for instance on a full
 * disk; EXIT_FAILED without a message if its reader closed the pipe (| head); else `exit_code`. */
int command_finish(int exit_code);

#endif
