/* progress.h: how far long work is, on stderr: a bar on a terminal, plain lines otherwise. */
#ifndef SR_CLI_LINE_PROGRESS_H
#define SR_CLI_LINE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct progress_bar {
    bool on_terminal;
    bool shown; /* a bar stands on the current line */
    double start_seconds, last_seconds;
} progress_bar;

void progress_begin(progress_bar *bar);

/* Seconds since progress_begin. */
double progress_seconds(const progress_bar *bar);

/* Shows the share that is done (0 .. 1), the time left, and `text` (a rate, a loss), if the last
 * time was long enough ago; call it as often as you like. */
void progress_show(progress_bar *bar, double share, const char *text);

/* What a line of progress says. */
typedef struct progress_state {
    double share;        /* 0 .. 1 */
    double seconds_left; /* INFINITY: not known */
    const char *text;
} progress_state;

/* The line as it fits so many columns: the bar goes first, then the end of the words. */
void progress_line(char *line, size_t size, int columns, const progress_state *state);

/* Removes the bar, so that messages start on an empty line. */
void progress_end(progress_bar *bar);

/* From now on the first signal that asks the program to end (Ctrl-C, SIGTERM, SIGHUP, SIGUSR1 and
 * SIGXCPU, which job schedulers send) only makes progress_interrupted say which it was; a second
 * one ends the program. SIGHUP stays ignored where it was (nohup). */
void progress_catch_interrupt(void);

/* The signal that came, or 0. */
int progress_interrupted(void);

#endif
