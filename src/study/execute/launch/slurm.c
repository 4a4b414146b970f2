/* slurm.c: executes the runs of a study as a Slurm job array. */
#include "study/execute/launch/slurm.h"

#include "base/clock.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/path.h"
#include "study/execute/folder.h"
#include "study/execute/launch/spawn.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { JOB_NAME = 32, OPTIONS_MAX = 32, LOOK_MICROSECONDS = 100000 };
static const double between_questions = 2, patience = 120;

/* Files next to the runs: the runs of the array, one per line; the script of each job; the job
 * id. */
#define LIST   "array.txt"
#define SCRIPT "array.sh"
#define JOB    "array.job"

typedef struct array {
    const sr_study *study;
    const char *folder;
    const sr_study_options *options;
    sr_run_view *views;
    char job[JOB_NAME]; /* "": none */
    int64_t *steps;     /* (runs): the step of each when it was submitted */
    bool stopping;
} array;

/* ---- the state of runs, from their records */

static srnn_status look_at(array *a, size_t run) {
    char path[SR_PATH_BYTES];
    sr_result result;
    sr_run_view *view = &a->views[run];
    SR_TRY(sr_study_run_path(path, a->folder, a->study->runs[run].id));
    SR_TRY(sr_result_read(&result, path));
    view->step = result.ending == SR_ENDING_NONE ? sr_record_last_step(path) : result.step;
    view->ending = result.ending;
    snprintf(view->message, sizeof view->message, "%s", result.message);
    return SRNN_OK;
}

static srnn_status look(array *a) {
    for (size_t i = 0; i < a->study->run_count; i++)
        if (a->views[i].selected && a->views[i].ending == SR_ENDING_NONE)
            SR_TRY(look_at(a, i));
    return SRNN_OK;
}

static size_t left(const array *a) {
    size_t count = 0;
    for (size_t i = 0; i < a->study->run_count; i++)
        count += a->views[i].selected && a->views[i].ending == SR_ENDING_NONE;
    return count;
}

/* ---- submitting */

static srnn_status write_file(const char *folder, const char *name, const char *text) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, name));
    return sr_file_replace(path, text, strlen(text));
}

static srnn_status write_list(const array *a) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    for (size_t i = 0; out && i < a->study->run_count; i++)
        if (a->views[i].selected && a->views[i].ending == SR_ENDING_NONE)
            fprintf(out, "%s\n", a->study->runs[i].id);
    const bool whole = out && fclose(out) == 0;
    const srnn_status status = whole ? write_file(a->folder, LIST, text)
                                     : SR_FAIL(SRNN_ERR_MEMORY, "no memory for a list of runs");
    free(text);
    return status;
}

/* The command is already quoted for the shell; names of runs need no quoting. */
static srnn_status write_script(const array *a) {
    char *text = NULL;
    const int length = asprintf(&text,
                                "#!/bin/sh\n"
                                "cd \"$SOFTRNN_STUDY_FOLDER\" || exit 1\n"
                                "run=$(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\" "
                                "\"$SOFTRNN_STUDY_OUT/" LIST "\")\n"
                                "exec %s --run \"$run\"\n",
                                a->options->member);
    const srnn_status status = length < 0 ? SR_FAIL(SRNN_ERR_MEMORY, "no memory for a script")
                                          : write_file(a->folder, SCRIPT, text);
    free(length < 0 ? NULL : text);
    return status;
}

/* Arguments of sbatch: ours, then the user's, "partition=short" as "--partition=short". */
typedef struct arguments {
    char *list[OPTIONS_MAX];
    size_t count;
} arguments;

static srnn_status add(arguments *all, const char *format, const char *a, const char *b) {
    char *text = NULL;
    if (all->count + 1 >= OPTIONS_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "too many options for sbatch");
    if (asprintf(&text, "%s%s%s", format, a, b) < 0)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the options of sbatch");
    all->list[all->count++] = text;
    return SRNN_OK;
}

static srnn_status add_options(arguments *all, const array *a) {
    char range[64], folder[SR_PATH_BYTES];
    if (a->options->jobs > 0)
        snprintf(range, sizeof range, "0-%zu%%%d", left(a) - 1, a->options->jobs);
    else
        snprintf(range, sizeof range, "0-%zu", left(a) - 1);
    if (!getcwd(folder, sizeof folder))
        return SR_FAIL(SRNN_ERR_IO, "the current folder has no name");
    SR_TRY(add(all, "sbatch", "", ""));
    SR_TRY(add(all, "--parsable", "", ""));
    SR_TRY(add(all, "--requeue", "", ""));
    SR_TRY(add(all, "--open-mode=append", "", ""));
    SR_TRY(add(all, "--job-name=softrnn-", a->study->name, ""));
    SR_TRY(add(all, "--array=", range, ""));
    SR_TRY(add(all, "--output=", a->folder, "/runs/%A_%a.log"));
    SR_TRY(add(all, "--export=ALL,SOFTRNN_STUDY_FOLDER=", folder, ""));
    for (size_t i = 0; i < a->options->cluster.count; i++)
        SR_TRY(add(all, "--", a->options->cluster.words[i], ""));
    return add(all, a->folder, "/" SCRIPT, "");
}

/* A job id consists of digits; after ";" follows the cluster's name. */
static srnn_status take_job(array *a, const char *output) {
    size_t length = 0;
    while (isdigit((unsigned char)output[length]) && length < sizeof a->job - 1)
        length++;
    if (length == 0)
        return SR_FAIL(SRNN_ERR_IO, "sbatch said \"%.200s\" instead of a job's number", output);
    memcpy(a->job, output, length);
    a->job[length] = '\0';
    return write_file(a->folder, JOB, a->job);
}

static srnn_status submit(array *a) {
    arguments all = {0};
    char *output = NULL;
    SR_TRY(write_list(a));
    SR_TRY(write_script(a));
    setenv("SOFTRNN_STUDY_OUT", a->folder, 1);
    srnn_status status = add_options(&all, a);
    if (status == SRNN_OK)
        status = sr_spawn_read(&output, all.list);
    if (status == SRNN_OK)
        status = take_job(a, output);
    for (size_t i = 0; i < all.count; i++)
        free(all.list[i]);
    free(output);
    for (size_t i = 0; i < a->study->run_count; i++)
        a->steps[i] = a->views[i].step;
    return status;
}

/* ---- watching */

static sr_run_view *view_of(const array *a, const char *id) {
    for (size_t i = 0; i < a->study->run_count; i++)
        if (strcmp(a->study->runs[i].id, id) == 0)
            return &a->views[i];
    return NULL;
}

/* Marks the running jobs of the array: "3 RUNNING" for line 3. */
static srnn_status mark_running(array *a, const char *output) {
    char path[SR_PATH_BYTES];
    sr_mapping list;
    for (size_t i = 0; i < a->study->run_count; i++)
        a->views[i].running = false;
    SR_TRY(sr_path_join(path, a->folder, LIST));
    SR_TRY(sr_mapping_open(&list, path));
    const char *line = (const char *)list.data, *end = line + list.bytes;
    for (size_t number = 0; line < end; number++) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        const int length = (int)((stop ? stop : end) - line);
        char id[256], words[64];
        snprintf(id, sizeof id, "%.*s", length, line);
        snprintf(words, sizeof words, "\n%zu RUNNING", number);
        sr_run_view *view = view_of(a, id);
        if (view)
            view->running = view->ending == SR_ENDING_NONE && strstr(output, words);
        line += length + 1;
    }
    sr_mapping_close(&list);
    return SRNN_OK;
}

/* *busy: the array has pending or running jobs. */
static srnn_status query_queue(array *a, bool *busy) {
    char *output = NULL, *text = NULL;
    char *const command[] = {"squeue", "--noheader", "--array", "--format=%K %T",
                             "--jobs", a->job,       NULL};
    srnn_status status = sr_spawn_read(&output, command);
    *busy = false;
    if (status != SRNN_OK && strstr(srnn_error_detail(), "Invalid job id")) {
        free(output);
        return SRNN_OK; /* the job has ended and was purged */
    }
    if (status == SRNN_OK && asprintf(&text, "\n%s", output) < 0)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the queue");
    if (status == SRNN_OK) {
        *busy = strspn(output, " \n") != strlen(output);
        status = mark_running(a, text);
        free(text);
    }
    free(output);
    return status;
}

static void cancel(const array *a) {
    char *output = NULL;
    char *const command[] = {"scancel", (char *)(uintptr_t)a->job, NULL};
    (void)sr_spawn_read(&output, command); /* jobs that are not cancelled end by themselves */
    free(output);
}

static void let_watch(array *a) {
    if (a->stopping || !a->options->watch ||
        a->options->watch(a->options->context, a->study, a->views))
        return;
    a->stopping = true;
    cancel(a);
}

/* Waits until the array has no more jobs. A failing squeue is retried for a while. */
static srnn_status watch(array *a) {
    double polled = 0, answered = sr_clock_seconds();
    for (bool busy = true; busy;) {
        const double now = sr_clock_seconds();
        if (now - polled > between_questions) {
            const srnn_status status = query_queue(a, &busy);
            polled = now;
            answered = status == SRNN_OK ? now : answered;
            if (now - answered > patience)
                return status;
            busy = busy || status != SRNN_OK;
        }
        SR_TRY(look(a));
        let_watch(a);
        usleep(LOOK_MICROSECONDS);
    }
    for (size_t i = 0; i < a->study->run_count; i++)
        a->views[i].running = false;
    return look(a);
}

/* Whether any unfinished run made progress since it was submitted. */
static bool progressed(const array *a) {
    for (size_t i = 0; i < a->study->run_count; i++)
        if (a->views[i].selected && a->views[i].ending == SR_ENDING_NONE &&
            a->views[i].step > a->steps[i])
            return true;
    return false;
}

static void give_up(array *a) {
    for (size_t i = 0; i < a->study->run_count; i++)
        if (a->views[i].selected && a->views[i].ending == SR_ENDING_NONE) {
            a->views[i].ending = SR_ENDING_FAILED;
            snprintf(a->views[i].message, sizeof a->views[i].message,
                     "its job ended without a result: see %.300s/runs/%s_*.log", a->folder, a->job);
        }
}

/* The job array of an earlier process. */
static srnn_status find_job(array *a) {
    char path[SR_PATH_BYTES];
    sr_mapping file;
    SR_TRY(sr_path_join(path, a->folder, JOB));
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    SR_TRY(sr_mapping_open(&file, path));
    snprintf(a->job, sizeof a->job, "%.*s", (int)(file.bytes < 20 ? file.bytes : 20),
             (const char *)file.data);
    sr_mapping_close(&file);
    return SRNN_OK;
}

static srnn_status execute(array *a) {
    SR_TRY(find_job(a));
    if (*a->job)
        SR_TRY(watch(a));
    while (left(a) > 0 && !a->stopping) {
        SR_TRY(submit(a));
        SR_TRY(watch(a));
        if (left(a) > 0 && !a->stopping && !progressed(a))
            give_up(a);
    }
    return a->stopping
               ? SR_FAIL(SRNN_ERR_INTERRUPTED, "the study was stopped; the same command resumes it")
               : SRNN_OK;
}

srnn_status sr_study_execute_slurm(const sr_study *study, const char *folder,
                                   const sr_study_options *options, sr_run_view *views) {
    array a = {.study = study, .options = options, .views = views};
    char *absolute = realpath(folder, NULL);
    a.folder = absolute ? absolute : folder;
    SR_TRY(sr_study_take_stock(study, a.folder, options, views));
    a.steps = calloc(study->run_count, sizeof *a.steps);
    const srnn_status status =
        a.steps ? execute(&a) : SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch the runs");
    free(a.steps);
    free(absolute);
    return status;
}
