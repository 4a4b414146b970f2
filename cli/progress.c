/* progress.c: how far long work is, on stderr: a bar on a terminal, plain lines otherwise. */
#include "progress.h"

#include "base/clock.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { BAR_WIDTH = 30 };
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

static void format_left(char *text, size_t size, double seconds) {
    if (!(seconds < 360000))
        snprintf(text, size, "time left unknown");
    else if (seconds < 3600)
        snprintf(text, size, "%d:%02d left", (int)seconds / 60, (int)seconds % 60);
    else
        snprintf(text, size, "%d:%02d:%02d left", (int)seconds / 3600, (int)seconds / 60 % 60,
                 (int)seconds % 60);
}

void progress_show(progress_bar *bar, double share, const char *text) {
    double time = sr_clock_seconds();
    if (time - bar->last_seconds < (bar->on_terminal ? bar_seconds : line_seconds))
        return;
    bar->last_seconds = time;
    share = fmin(fmax(share, 0), 1);
    char left[40];
    format_left(left, sizeof left,
                share > 0 ? (time - bar->start_seconds) * (1 - share) / share : INFINITY);
    if (bar->on_terminal) {
        static const char full[] = "##############################";
        /* The last code clears what a longer line before has left. */
        fprintf(stderr, "\r[%-*.*s] %3d %%  %s  %s\033[K", BAR_WIDTH, (int)(share * BAR_WIDTH),
                full, (int)(share * 100), text, left);
        bar->shown = true;
    } else {
        fprintf(stderr, "%3d %%  %s  %s\n", (int)(share * 100), text, left);
    }
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
