/* view.c: the state of a study's runs, on stderr. */
#include "cli/study/view.h"

#include "base/clock.h"
#include "base/units.h"
#include "cli/line/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double table_seconds = 0.2, line_seconds = 10;

srnn_status study_view_begin(study_view *view, const sr_study *study) {
    *view = (study_view){.study = study,
                         .on_terminal = isatty(STDERR_FILENO),
                         .flops_before = NAN,
                         .reported = calloc(study->run_count, sizeof *view->reported)};
    view->start_seconds = sr_clock_seconds();
    return view->reported ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the runs");
}

static void clear(study_view *view) {
    if (view->lines)
        fprintf(stderr, "\r\033[%dA\033[J", view->lines);
    view->lines = 0;
}

void study_view_end(study_view *view) {
    clear(view);
    free(view->reported);
    view->reported = NULL;
}

static double share_done(const sr_study_run *run, const sr_run_view *view) {
    if (view->ending != SR_ENDING_NONE && !view->running)
        return 1;
    return run->steps ? (double)view->step / (double)run->steps : 0;
}

/* FLOPs done and requested, of the selected runs. */
static void add_up(double *done, double *all, const sr_study *study, const sr_run_view *views) {
    *done = *all = 0;
    for (size_t i = 0; i < study->run_count; i++)
        if (views[i].selected) {
            *all += study->runs[i].flops;
            *done += study->runs[i].flops * share_done(&study->runs[i], &views[i]);
        }
}

/* "12 of 60 runs ended, 20 %, 3:12 left" */
static void print_whole(const study_view *view, const sr_study *study, const sr_run_view *views) {
    double done, all;
    size_t ended = 0, selected = 0;
    char left[SR_TIME_WORDS];
    add_up(&done, &all, study, views);
    for (size_t i = 0; i < study->run_count; i++) {
        selected += views[i].selected;
        ended += views[i].selected && views[i].ending != SR_ENDING_NONE;
    }
    const double rate = (done - view->flops_before) / (sr_clock_seconds() - view->start_seconds);
    fprintf(stderr, "%zu of %zu runs ended, %d %%, %s left\n", ended, selected,
            all > 0 ? (int)(100 * done / all) : 100,
            sr_clock_words(left, rate > 0 ? (all - done) / rate : INFINITY));
}

/* "-" if missing. */
static const char *number_text(char text[32], int decimals, double value) {
    if (isfinite(value))
        snprintf(text, 32, "%.*f", decimals, value);
    else
        snprintf(text, 32, "-");
    return text;
}

/* A name in at most `columns` columns: long names are cut in the middle, because their ends
 * distinguish runs. */
static void fit_name(char *out, size_t size, const char *name, int columns) {
    const int length = (int)strlen(name), head = columns / 2;
    if (length <= columns)
        snprintf(out, size, "%-*s", columns, name);
    else
        snprintf(out, size, "%.*s~%s", head, name, name + length - (columns - head - 1));
}

/* Seconds left of a run at its current speed. */
static double seconds_left(const sr_study_run *run, const sr_run_view *view) {
    const double steps = (double)(view->step - (view->first_step > 0 ? view->first_step : 0));
    const double rate = view->seconds > 0 ? steps / view->seconds : 0;
    return rate > 0 ? (double)(run->steps - view->step) / rate : INFINITY;
}

void study_view_line(char *line, size_t size, int columns, const sr_study_run *run,
                     const sr_run_view *view) {
    enum { STEPS, LOSS, VALIDATION, ACCURACY, LEFT, FIELDS, INDENT = 2, LEAST = 12, MOST = 36 };
    static const int by_importance[FIELDS] = {STEPS, LEFT, LOSS, ACCURACY, VALIDATION};
    char fields[FIELDS][64] = {{0}}, text[32], name[MOST + 1];
    bool shown[FIELDS] = {false};
    snprintf(fields[STEPS], 64, " %5lld/%-5lld", (long long)view->step, (long long)run->steps);
    snprintf(fields[LEFT], 64, " %7s left", sr_clock_words(text, seconds_left(run, view)));
    snprintf(fields[LOSS], 64, " loss %-7s", number_text(text, 4, view->loss));
    if (isfinite(view->validation)) {
        snprintf(fields[ACCURACY], 64, " accuracy %.3f", view->accuracy);
        snprintf(fields[VALIDATION], 64, " validation %-7.4f", view->validation);
    }
    int available = columns - 1 - INDENT - LEAST;
    for (int i = 0; i < FIELDS && (int)strlen(fields[by_importance[i]]) <= available; i++) {
        shown[by_importance[i]] = true;
        available -= (int)strlen(fields[by_importance[i]]);
    }
    const int width = LEAST + (available > 0 ? available : 0);
    fit_name(name, sizeof name, run->id, width < MOST ? width : MOST);
    int used = snprintf(line, size, "%*s%s", INDENT, "", name);
    for (int i = 0; i < FIELDS && used < (int)size; i++)
        if (shown[i])
            used += snprintf(line + used, size - (size_t)used, "%s", fields[i]);
}

static void print_end(const sr_study_run *run, const sr_run_view *view) {
    char loss[32], accuracy[32], time[SR_TIME_WORDS];
    if (view->ending == SR_ENDING_FINISHED)
        fprintf(stderr, "%-36s finished: validation loss %s, accuracy %s, %s\n", run->id,
                number_text(loss, 4, view->validation), number_text(accuracy, 3, view->accuracy),
                sr_duration_words(time, view->seconds));
    else
        fprintf(stderr, "%-36s %s: %s\n", run->id, sr_ending_name(view->ending), view->message);
}

/* Runs that have ended since the last look. */
static void print_ends(study_view *view, const sr_study *study, const sr_run_view *views) {
    for (size_t i = 0; i < study->run_count; i++) {
        if (view->reported[i] || views[i].running || views[i].ending == SR_ENDING_NONE)
            continue;
        view->reported[i] = true;
        if (views[i].seconds > 0 && views[i].selected) { /* else it ended earlier */
            clear(view);
            print_end(&study->runs[i], &views[i]);
        }
    }
}

static void draw(study_view *view, const sr_study *study, const sr_run_view *views) {
    struct winsize window = {0};
    char line[512];
    ioctl(STDERR_FILENO, TIOCGWINSZ, &window);
    const int rows = window.ws_row ? window.ws_row : 24;
    const int columns = window.ws_col ? window.ws_col : 80;
    const int most = rows > 3 ? rows - 2 : 2;
    clear(view);
    fputs("\033[?7l", stderr); /* a long line is cut, not wrapped */
    print_whole(view, study, views);
    view->lines = 1;
    for (size_t i = 0; i < study->run_count && view->lines < most; i++)
        if (views[i].running) {
            study_view_line(line, sizeof line, columns, &study->runs[i], &views[i]);
            fprintf(stderr, "%s\n", line);
            view->lines++;
        }
    fputs("\033[?7h", stderr);
}

bool study_view_look(void *context, const sr_study *study, const sr_run_view *views) {
    study_view *view = context;
    if (study != view->study) { /* the rounds of a tuning come before the study itself */
        study_view_end(view);
        if (study_view_begin(view, study) != SRNN_OK)
            return false;
    }
    if (isnan(view->flops_before)) {
        double all;
        add_up(&view->flops_before, &all, study, views);
    }
    print_ends(view, study, views);
    const double time = sr_clock_seconds();
    if (time - view->last_seconds >= (view->on_terminal ? table_seconds : line_seconds)) {
        view->last_seconds = time;
        if (view->on_terminal)
            draw(view, study, views);
        else
            print_whole(view, study, views);
    }
    return !progress_interrupted();
}
