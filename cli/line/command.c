/* command.c: finding a command in its table, and turning failures into messages and exit codes. */
#include "cli/line/command.h"

#include "base/text.h"
#include "cli/line/progress.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const command_observer *observer;

void command_observe(const command_observer *given) {
    observer = given;
}

const command_observer *command_observed(void) {
    return observer;
}

static void print_table(FILE *out, const command_table *table) {
    fprintf(out, "%s\n\nUsage: %s COMMAND [options]\n\nCommands:\n", table->purpose,
            table->program);
    for (size_t i = 0; i < table->count; i++)
        fprintf(out, "  %-12s %s\n", table->commands[i].name, table->commands[i].summary);
    fprintf(out, "\nExamples:\n%s\n", table->examples);
    fprintf(out, "'%s COMMAND --help' describes one command.\n", table->program);
}

static int refuse_unknown(const command_table *table, const char *name) {
    const char **names = malloc(table->count * sizeof *names);
    const char *nearest = NULL;
    if (names) {
        for (size_t i = 0; i < table->count; i++)
            names[i] = table->commands[i].name;
        nearest = sr_nearest_word(name, names, table->count);
    }
    free(names);
    if (nearest)
        return command_refuse("unknown command '%s': did you mean '%s'?", name, nearest);
    return command_refuse("unknown command '%s': '%s --help' lists the commands", name,
                          table->program);
}

int command_dispatch(const command_table *table, int argc, char **argv) {
    if (observer) {
        observer->table(observer->context, table);
        return EXIT_OK;
    }
    if (argc == 0) {
        print_table(stderr, table);
        return EXIT_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0) {
        print_table(stdout, table);
        return EXIT_OK;
    }
    for (size_t i = 0; i < table->count; i++)
        if (strcmp(argv[0], table->commands[i].name) == 0)
            return table->commands[i].run(argc - 1, argv + 1);
    return refuse_unknown(table, argv[0]);
}

int command_report(srnn_status status) {
    if (status == SRNN_OK)
        return EXIT_OK;
    fprintf(stderr, "softrnn: %s\n", srnn_error_detail());
    if (status == SRNN_ERR_INTERRUPTED && progress_interrupted())
        return EXIT_SIGNAL + progress_interrupted();
    return status == SRNN_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
}

/* A failure of every rank is reported by the first alone: the others wait for it to do so. */
int command_report_rank(srnn_status status, const sr_ranks *ranks) {
    enum { FIRST_SPEAKS_MICROSECONDS = 500000 };
    if (status == SRNN_OK || ranks->count == 1)
        return command_report(status);
    if (ranks->rank > 0)
        usleep(FIRST_SPEAKS_MICROSECONDS);
    fprintf(stderr, "softrnn: rank %d on %s ends all ranks: %s\n", ranks->rank, ranks->link->host,
            srnn_error_detail());
    sr_ranks_abort(ranks, status == SRNN_ERR_ARGUMENT ? EXIT_USAGE : EXIT_FAILED);
}

void command_message(const char *format, ...) {
    char raw[2048], text[sizeof raw];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(raw, sizeof raw, format, arguments);
    va_end(arguments);
    sr_text_escape(text, sizeof text, raw);
    fprintf(stderr, "softrnn: %s\n", text);
}

int command_refuse(const char *format, ...) {
    char raw[4096], text[sizeof raw];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(raw, sizeof raw, format, arguments);
    va_end(arguments);
    fputs("softrnn: ", stderr);
    for (char *line = raw, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        sr_text_escape(text, sizeof text, line);
        fprintf(stderr, "%s\n", text);
    }
    return EXIT_USAGE;
}

/* True if stdout is a pipe whose other end is closed. */
static bool reader_left(void) {
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

int command_finish(int exit_code) {
    errno = 0;
    bool lost = ferror(stdout);
    if (fflush(stdout) == 0 && !lost)
        return exit_code;
    /* An earlier write may have failed, and its errno may be lost. */
    const int error = errno;
    if (!reader_left())
        fprintf(stderr, "softrnn: could not write all of the output: %s\n",
                error ? strerror(error) : "an earlier write failed");
    return exit_code == EXIT_OK ? EXIT_FAILED : exit_code;
}
