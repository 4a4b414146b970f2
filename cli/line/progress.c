/* progress.c: progress of long work, on stderr: a bar on a terminal, plain lines otherwise. */
#include "cli/line/progress.h"

#include "base/clock.h"
#include "base/units.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { BAR_WIDTH = 30, LEAST_BAR = 5, NO_TERMINAL = 400 };
static const double bar_seconds = 0.1, line_seconds = 10;

static volatile sig_atomic_t interrupted;

void progress_begin(progress_bar *bar) {
    bar->on_terminal = isatty(STDERR_FILENO);
    bar->shown = false;
    bar->start_seconds = bar->last_seconds = sr_clock_seconds();
}

double progress_seconds(const progress_bar *bar) {
    return sr_clock_seconds() - bar->start_seconds;
}

void progress_line(char *line, size_t size, int columns, const progress_state *state) {
    static const char full[] = "##############################";
    char time[SR_TIME_WORDS], rest[256];
    const int percent = (int)(state->share * 100);
    const char *left =
        isfinite(state->seconds_left) ? sr_clock_words(time, state->seconds_left) : NULL;
    snprintf(rest, sizeof rest, "%3d %%  %s  %s", percent, state->text,
             left ? left : "time left unknown");
    const size_t used = strlen(rest);
    snprintf(rest + used, sizeof rest - used, "%s", left ? " left" : "");
    /* The last column stays empty: some terminals wrap when it is used. */
    const int available = columns - 1 - (int)strlen(rest) - 3;
    const int bar = available < BAR_WIDTH ? available : BAR_WIDTH;
    if (bar >= LEAST_BAR)
        snprintf(line, size, "[%-*.*s] %s", bar, (int)(state->share * bar), full, rest);
    else
        snprintf(line, size, "%.*s", columns > 1 ? columns - 1 : 0, rest);
}

static int terminal_columns(void) {
    struct winsize window = {0};
    ioctl(STDERR_FILENO, TIOCGWINSZ, &window);
    return window.ws_col ? window.ws_col : 80;
}

void progress_show(progress_bar *bar, double share, const char *text) {
    double time = sr_clock_seconds();
    if (time - bar->last_seconds < (bar->on_terminal ? bar_seconds : line_seconds))
        return;
    bar->last_seconds = time;
    share = fmin(fmax(share, 0), 1);
    const progress_state state = {share,
                                  share > 0 ? (time - bar->start_seconds) * (1 - share) / share
                                            : INFINITY,
                                  text};
    char line[512];
    progress_line(line, sizeof line, bar->on_terminal ? terminal_columns() : NO_TERMINAL, &state);
    if (bar->on_terminal) /* the last code clears the rest of a longer previous line */
        fprintf(stderr, "\r%s\033[K", line);
    else
        fprintf(stderr, "%s\n", line + (line[0] == '[' ? BAR_WIDTH + 3 : 0));
    bar->shown = bar->on_terminal;
}

void progress_end(progress_bar *bar) {
    if (bar->shown)
        fputs("\r\033[K", stderr);
    bar->shown = false;
}

static void note_interrupt(int signal_number) {
    interrupted = signal_number;
}

void progress_catch_interrupt(void) {
    struct sigaction action = {.sa_handler = note_interrupt,
                               .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction before;
        sigaction(signals[i], NULL, &before);
        if (signals[i] != SIGHUP || before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

int progress_interrupted(void) {
    return interrupted;
}
