/* progress.h: progress of long work, on stderr: a bar on a terminal, plain lines otherwise. */
#ifndef SR_CLI_LINE_PROGRESS_H
#define SR_CLI_LINE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct progress_bar {
    bool on_terminal;
    bool shown; /* a bar is on the current line */
    double start_seconds, last_seconds;
} progress_bar;

void progress_begin(progress_bar *bar);

/* Seconds since progress_begin. */
double progress_seconds(const progress_bar *bar);

/* Shows the fraction done (0 .. 1), the time left, and `text` (a rate, a loss); does nothing if the
 * last update was too recent, so call it often. */
void progress_show(progress_bar *bar, double share, const char *text);

/* The content of a progress line. */
typedef struct progress_state {
    double share;        /* 0 .. 1 */
    double seconds_left; /* INFINITY: unknown */
    const char *text;
} progress_state;

/* The line cut to `columns`: the bar is dropped first, then the end of the text. */
void progress_line(char *line, size_t size, int columns, const progress_state *state);

/* Removes the bar, so that messages start on an empty line. */
void progress_end(progress_bar *bar);

/* From now on the first termination signal (Ctrl-C, SIGTERM, SIGHUP, and SIGUSR1 and SIGXCPU from
 * job schedulers) is only recorded for progress_interrupted; a second one ends the program. SIGHUP
 * stays ignored if it was (nohup). */
void progress_catch_interrupt(void);

/* The signal received, or 0. */
int progress_interrupted(void);

#endif
