/* worker.c: one run of a study in a separate process. */
#include "study/execute/worker.h"

#include "base/threads.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/path.h"
#include "study/execute/folder.h"
#include "study/execute/student.h"
#include "study/results/record.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t stopped;

static void note_stop(int signal_number) {
    (void)signal_number;
    stopped = 1;
}

static void catch_stops(void) {
    static const int stops[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};
    struct sigaction action = {.sa_handler = note_stop, .sa_flags = SA_RESTART};
    sigset_t blocked; /* the parent forks with some of them blocked */
    sigemptyset(&action.sa_mask);
    sigemptyset(&blocked);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        sigaction(stops[i], &action, NULL);
        sigaddset(&blocked, stops[i]);
    }
    pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);
}

bool sr_worker_stopped(void) {
    return stopped;
}

bool sr_worker_has_run(const char *folder) {
    return sr_path_has(folder, "run.yaml") || sr_student_has_run(folder);
}

/* Whether both paths end in the same place of a study's folder, which may have moved. */
static bool same_place(const char *a, const char *b, const char *place) {
    const char *in_a = strstr(a, place), *in_b = strstr(b, place);
    return in_a && in_b && strcmp(in_a, in_b) == 0;
}

srnn_status sr_worker_follow(char **path, bool *moved, const char *now, const char *place) {
    if (strcmp(*path, now) == 0 || !same_place(*path, now, place))
        return SRNN_OK;
    *moved = true;
    return sr_run_settings_text(path, now);
}

/* The same for a path that the study's file gives relative to itself. */
static srnn_status follow_home(char **path, bool *moved, const char *now, const char *home) {
    const size_t length = home ? strlen(home) : 0;
    if (!length || strncmp(now, home, length) != 0 || now[length] != '/')
        return SRNN_OK;
    return sr_worker_follow(path, moved, now, now + length);
}

/* The settings of the run in the folder; *moved: the study's folder or its file has moved, and they
 * have the new paths of data, text and teacher. */
static srnn_status read_settings(sr_run_settings *settings, bool *moved, const sr_study_run *run,
                                 const char *folder) {
    char yaml[SR_PATH_BYTES];
    const sr_run_settings *now = &run->settings;
    snprintf(yaml, sizeof yaml, "%s/run.yaml", folder);
    *moved = false;
    SR_TRY(sr_run_settings_create(settings));
    SR_TRY(sr_run_settings_read(settings, yaml));
    if (run->text)
        SR_TRY(sr_worker_follow(&settings->data, moved, now->data, "/" SR_STUDY_TEXT));
    SR_TRY(follow_home(&settings->data, moved, now->data, run->home));
    SR_TRY(follow_home(&settings->validation, moved, now->validation, run->home));
    SR_TRY(follow_home(&settings->batches, moved, now->batches, run->home));
    SR_TRY(follow_home(&settings->model, moved, now->model, run->home));
    return sr_worker_follow(&settings->model, moved, now->model, "/" SR_STUDY_TEACHERS "/");
}

srnn_status sr_worker_check(const sr_study_run *run, const char *folder) {
    sr_run_settings before = {0};
    bool moved;
    if (!sr_worker_has_run(folder))
        return SRNN_OK;
    if (sr_is_student(run))
        return sr_student_check(run, folder);
    srnn_status status = read_settings(&before, &moved, run, folder);
    const char *differs =
        status == SRNN_OK ? sr_run_settings_difference(&before, &run->settings) : NULL;
    if (differs)
        status = SR_FAIL(SRNN_ERR_ARGUMENT,
                         "%s: there is a run with another %s in this folder; use another --out, or "
                         "remove it",
                         folder, differs);
    sr_run_settings_free(&before);
    return status;
}

/* Resumes a run; run.yaml gets the current paths of data, text and teacher. */
static srnn_status resume(sr_run **run, const sr_study_run *planned, const char *folder,
                          int threads) {
    char yaml[SR_PATH_BYTES];
    sr_run_settings settings = {0};
    bool moved;
    snprintf(yaml, sizeof yaml, "%s/run.yaml", folder);
    srnn_status status = read_settings(&settings, &moved, planned, folder);
    if (status == SRNN_OK && moved)
        status = sr_run_settings_absolute(&settings);
    if (status == SRNN_OK && moved)
        status = sr_run_settings_write(&settings, yaml);
    sr_run_settings_free(&settings);
    SR_TRY(status);
    return sr_run_resume(run, folder, &(sr_run_ends){.threads = threads});
}

static srnn_status open_run(sr_run **run, const sr_study_run *planned, const char *folder,
                            int threads) {
    if (sr_worker_has_run(folder))
        return resume(run, planned, folder, threads);
    sr_run_settings settings;
    srnn_status status = sr_run_settings_create(&settings);
    if (status == SRNN_OK)
        status = sr_run_settings_copy(&settings, &planned->settings);
    settings.threads = threads;
    if (status == SRNN_OK)
        status = sr_run_start(run, folder, &settings);
    sr_run_settings_free(&settings);
    return status;
}

srnn_status sr_worker_steps(sr_run *run, sr_worker_board *board, int64_t before) {
    double loss = NAN;
    atomic_store(&board->step, before + sr_run_progress(run)->step);
    while (!sr_run_done(run) && !stopped) {
        sr_run_report report;
        SR_TRY(sr_run_step(run, &report));
        loss = isfinite(loss) ? 0.9 * loss + 0.1 * report.step.loss : report.step.loss;
        atomic_store(&board->loss, loss);
        if (!isnan(report.validation)) {
            atomic_store(&board->validation, report.validation);
            atomic_store(&board->accuracy, report.accuracy);
        }
        atomic_store(&board->step, before + sr_run_progress(run)->step);
    }
    return sr_run_save(run);
}

static void own_host(char host[64]) {
    snprintf(host, 64, "?");
    gethostname(host, 63);
    host[63] = '\0';
}

static double time_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Totals of the whole run from its records, including earlier processes. */
static srnn_status add_records(sr_result *result, const char *folder) {
    sr_record record;
    const srnn_status status = sr_record_read(&record, folder);
    result->step = record.count ? record.points[record.count - 1].step : 0;
    result->tokens = record.tokens;
    result->skipped = record.skipped;
    result->seconds = record.seconds;
    sr_record_free(&record);
    return status;
}

/* Another process may have used the folder meanwhile: a finished result is not overwritten, and a
 * short lock by a reader is waited for. */
srnn_status sr_worker_write_result(const sr_result *result, const char *folder) {
    sr_result there;
    int lock;
    SR_TRY(sr_folders_make(folder));
    SR_TRY(sr_folder_lock(&lock, folder, 1));
    const bool finished =
        sr_result_read(&there, folder) == SRNN_OK && there.ending == SR_ENDING_FINISHED;
    const srnn_status status = finished ? SRNN_OK : sr_result_write(result, folder);
    sr_folder_unlock(lock);
    return status;
}

static srnn_status write_result(sr_result *result, const char *folder) {
    result->cpu_seconds = cpu_seconds() - result->cpu_seconds;
    result->ended = time_now();
    SR_TRY(add_records(result, folder));
    return sr_worker_write_result(result, folder);
}

/* ---- the place: who is at work in a run's folder */

/* "node7, job 123_4" or "node7, process 567"; requires the folder's lock. */
static srnn_status write_place(const char *folder) {
    char path[SR_PATH_BYTES], host[64], text[128];
    const char *job = getenv("SLURM_ARRAY_JOB_ID"), *task = getenv("SLURM_ARRAY_TASK_ID");
    own_host(host);
    if (job && task)
        snprintf(text, sizeof text, "%s, job %.20s_%.20s", host, job, task);
    else
        snprintf(text, sizeof text, "%s, process %ld", host, (long)getpid());
    SR_TRY(sr_path_join(path, folder, "place"));
    return sr_file_replace(path, text, strlen(text));
}

static void remove_place(const char *folder) {
    char path[SR_PATH_BYTES];
    if (sr_path_join(path, folder, "place") == SRNN_OK)
        unlink(path);
}

/* False if it names a process of this machine that has ended; other machines cannot be checked. */
static bool may_live(const char *place) {
    char host[64];
    static const char says[] = ", process ";
    own_host(host);
    const size_t length = strlen(host);
    if (strncmp(place, host, length) != 0 || strncmp(place + length, says, strlen(says)) != 0)
        return true;
    const long process = strtol(place + length + strlen(says), NULL, 10);
    return process > 0 && process <= INT_MAX && (kill((pid_t)process, 0) == 0 || errno == EPERM);
}

void sr_worker_where(sr_run_view *view, const char *folder) {
    char path[SR_PATH_BYTES];
    struct stat facts;
    if (sr_path_join(path, folder, "place") != SRNN_OK)
        return;
    int descriptor;
    if (sr_descriptor_open_own(&descriptor, path, O_RDONLY) != SRNN_OK)
        return;
    const ssize_t length = read(descriptor, view->place, sizeof view->place - 1);
    close(descriptor);
    view->place[length > 0 ? length : 0] = '\0';
    view->place[strcspn(view->place, "\n")] = '\0';
    for (char *c = view->place; *c; c++)
        if (!isprint((unsigned char)*c))
            *c = '?';
    if (!may_live(view->place))
        view->place[0] = '\0';
    view->running = *view->place;
    view->seconds = NAN;
    if (sr_path_join(path, folder, "metrics.jsonl") == SRNN_OK && stat(path, &facts) == 0)
        view->seconds = difftime(time(NULL), facts.st_mtime);
}

/* ---- the run */

/* *ended: it has made all of its steps, or failed. */
static srnn_status work_run(const sr_study_run *planned, const char *folder, int threads,
                            sr_worker_board *board, bool *ended, double *bytes) {
    sr_run *run = NULL;
    srnn_status status = open_run(&run, planned, folder, threads);
    if (status == SRNN_OK)
        status = write_place(folder);
    if (status == SRNN_OK) {
        *bytes = (double)sr_run_bytes(run);
        status = sr_worker_steps(run, board, 0);
    }
    *ended = status != SRNN_OK || sr_run_done(run);
    if (run)
        remove_place(folder);
    sr_run_free(run);
    return status;
}

/* The same for a student: its stages are runs in folders of their own. */
static srnn_status work_student(const sr_study_run *planned, const char *folder, int threads,
                                sr_worker_board *board, bool *ended, double *bytes) {
    int lock;
    SR_TRY(sr_folders_make(folder));
    SR_TRY(sr_folder_lock(&lock, folder, 0));
    srnn_status status = write_place(folder);
    if (status == SRNN_OK)
        status = sr_student_work(planned, folder, threads, board, ended, bytes);
    remove_place(folder);
    sr_folder_unlock(lock);
    *ended = *ended || status != SRNN_OK;
    return status;
}

bool sr_worker_run(const sr_study_run *planned, const char *folder, int threads,
                   sr_worker_board *board) {
    sr_result result = {.ending = SR_ENDING_FINISHED,
                        .threads = threads,
                        .started = time_now(),
                        .cpu_seconds = cpu_seconds()};
    bool ended = true;
    own_host(result.host);
    catch_stops();
    const srnn_status status =
        (sr_is_student(planned) ? work_student : work_run)(planned, folder, threads, board, &ended,
                                                           &result.memory_bytes);
    if (status != SRNN_OK) {
        result.ending = result.memory_bytes > 0 && status == SRNN_ERR_LIMIT ? SR_ENDING_DIVERGED
                                                                            : SR_ENDING_FAILED;
        snprintf(result.message, sizeof result.message, "%s", srnn_error_detail());
    }
    result.parameters = result.memory_bytes > 0 ? (double)planned->parameters : 0;
    const bool reported = !ended || write_result(&result, folder) == SRNN_OK;
    if (!reported)
        snprintf(board->failure, sizeof board->failure, "%s",
                 *result.message ? result.message : srnn_error_detail());
    return reported;
}

/* ---- a process started by a launcher */

/* The job's cores under Slurm, else all cores of this process. */
static int own_threads(void) {
    const char *cores = getenv("SLURM_CPUS_PER_TASK");
    return sr_thread_count(cores ? atoi(cores) : 0);
}

static srnn_status run_member(const sr_study_run *run, const char *folder) {
    sr_worker_board board = {0};
    sr_result result;
    SR_TRY(sr_worker_check(run, folder));
    if (!sr_worker_run(run, folder, own_threads(), &board))
        return SR_FAIL(SRNN_ERR_IO, "%s", board.failure);
    SR_TRY(sr_result_read(&result, folder));
    if (result.ending == SR_ENDING_FAILED)
        return SR_FAIL(SRNN_ERR_IO, "%s", result.message);
    return result.ending == SR_ENDING_NONE
               ? SR_FAIL(SRNN_ERR_INTERRUPTED, "%s: stopped, with a checkpoint", run->id)
               : SRNN_OK;
}

srnn_status sr_worker_member(const sr_study *study, const char *folder, const char *id) {
    char path[SR_PATH_BYTES];
    sr_result result;
    for (size_t i = 0; i < study->run_count; i++)
        if (strcmp(study->runs[i].id, id) == 0) {
            SR_TRY(sr_study_run_path(path, folder, id));
            SR_TRY(sr_result_read(&result, path));
            return result.ending == SR_ENDING_NONE ? run_member(&study->runs[i], path) : SRNN_OK;
        }
    return SR_FAIL(SRNN_ERR_ARGUMENT, "no run of the study is called \"%s\"", id);
}
