/* runner.c: executes the runs of a study in parallel processes. */
#include "study/execute/runner.h"

#include "base/clock.h"
#include "files/folder.h"
#include "study/execute/folder.h"
#include "study/execute/worker.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOOK_NANOSECONDS = 50000000, MOST_JOBS = 1024 };

/* A process that runs one run. */
typedef struct job {
    pid_t process; /* 0: none */
    size_t run;
    double started;
} job;

typedef struct runner {
    const sr_study *study;
    const char *folder;
    const sr_study_options *options;
    sr_run_view *views;
    sr_worker_board *boards; /* (run_count), shared with the workers */
    int jobs, threads;
    job job[MOST_JOBS];
    cpu_set_t cores;
} runner;

static void find_cores(cpu_set_t *cores) {
    CPU_ZERO(cores);
    if (sched_getaffinity(0, sizeof *cores, cores) != 0 || CPU_COUNT(cores) == 0)
        CPU_SET(0, cores);
}

void sr_study_shares(int *jobs, int *threads, int asked) {
    cpu_set_t cores;
    find_cores(&cores);
    const int count = CPU_COUNT(&cores);
    *jobs = asked > 0 ? asked : count;
    *jobs = *jobs < MOST_JOBS ? *jobs : MOST_JOBS;
    *threads = count / *jobs > 0 ? count / *jobs : 1;
}

/* Pins a job to its share of the cores of this process. */
static void pin(const runner *r, int slot) {
    cpu_set_t own;
    const int count = CPU_COUNT(&r->cores);
    const int first = slot * r->threads % count;
    CPU_ZERO(&own);
    int seen = 0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &r->cores))
            continue;
        if (seen >= first && seen < first + r->threads)
            CPU_SET(core, &own);
        seen++;
    }
    (void)sched_setaffinity(0, sizeof own, &own); /* affects only speed */
}

static srnn_status run_folder(char path[SR_PATH_BYTES], const runner *r, size_t run) {
    return sr_study_run_path(path, r->folder, r->study->runs[run].id);
}

/* ---- starting and ending jobs */

static sigset_t child_ends(void) {
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    return child;
}

/* Waits until a child ends (SIGCHLD is blocked, so that none is missed), or until the next poll. */
static void wait_for_child(void) {
    const struct timespec look = {.tv_nsec = LOOK_NANOSECONDS};
    const sigset_t child = child_ends();
    (void)sigtimedwait(&child, NULL, &look);
}

static srnn_status start(runner *r, int slot, size_t run) {
    char path[SR_PATH_BYTES];
    sigset_t both, before;
    SR_TRY(run_folder(path, r, run));
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &before);
    const pid_t parent = getpid(), process = fork();
    if (process == 0) {
        /* A worker must not outlive a study that was killed. */
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
            _exit(1);
        const sigset_t child = child_ends();
        sigprocmask(SIG_UNBLOCK, &child, NULL);
        pin(r, slot);
        _exit(sr_worker_run(&r->study->runs[run], path, r->threads, &r->boards[run]) ? 0 : 1);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (process < 0)
        return SR_FAIL(SRNN_ERR_IO, "cannot start a process for a run: %s", strerror(errno));
    r->job[slot] = (job){process, run, sr_clock_seconds()};
    r->views[run].running = true;
    return SRNN_OK;
}

static void look(sr_run_view *view, sr_worker_board *board, double seconds) {
    const int64_t step = atomic_load(&board->step);
    if (step > 0 && view->first_step < 0)
        view->first_step = step;
    view->step = step;
    view->loss = atomic_load(&board->loss);
    view->validation = atomic_load(&board->validation);
    view->accuracy = atomic_load(&board->accuracy);
    view->seconds = seconds;
}

static void fail(sr_run_view *view, const char *message) {
    view->ending = SR_ENDING_FAILED;
    snprintf(view->message, sizeof view->message, "%s", message);
}

/* The process was killed, crashed or could not write its result: reports that; the run can be
 * resumed. */
static void collect_broken(const runner *r, const job *ended, const char *path, int wait_status) {
    sr_run_view *view = &r->views[ended->run];
    const char *failure = r->boards[ended->run].failure;
    sr_result result = {.ending = SR_ENDING_FAILED, .threads = r->threads, .step = view->step};
    if (*failure)
        snprintf(result.message, sizeof result.message, "%.511s", failure);
    else
        snprintf(result.message, sizeof result.message, "its process was ended by signal %d",
                 WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
    fail(view, result.message);
    (void)sr_worker_write_result(&result, path); /* only the run's own failure is reported */
}

/* A process has ended: collects the outcome of its run */
static void collect(runner *r, const job *ended, int wait_status) {
    sr_run_view *view = &r->views[ended->run];
    sr_result result = {0};
    char path[SR_PATH_BYTES];
    look(view, &r->boards[ended->run], sr_clock_seconds() - ended->started);
    view->running = false;
    if (run_folder(path, r, ended->run) != SRNN_OK || sr_result_read(&result, path) != SRNN_OK) {
        fail(view, srnn_error_detail());
        return;
    }
    view->ending = result.ending;
    snprintf(view->message, sizeof view->message, "%s", result.message);
    if (result.ending == SR_ENDING_NONE && !(WIFEXITED(wait_status) && !WEXITSTATUS(wait_status)))
        collect_broken(r, ended, path, wait_status);
}

static int collect_ended(runner *r) {
    int running = 0;
    for (int slot = 0; slot < r->jobs; slot++) {
        int wait_status;
        const job ended = r->job[slot];
        if (!ended.process)
            continue;
        if (waitpid(ended.process, &wait_status, WNOHANG) == ended.process) {
            r->job[slot] = (job){0};
            collect(r, &ended, wait_status);
        } else {
            running++;
            look(&r->views[ended.run], &r->boards[ended.run], sr_clock_seconds() - ended.started);
        }
    }
    return running;
}

static void stop_all(const runner *r) {
    for (int slot = 0; slot < r->jobs; slot++)
        if (r->job[slot].process)
            kill(r->job[slot].process, SIGTERM);
}

/* ---- the whole */

/* The next run that has not been started; run_count if there is none. */
static size_t next_run(const runner *r, size_t from) {
    while (from < r->study->run_count &&
           (!r->views[from].selected || r->views[from].ending != SR_ENDING_NONE))
        from++;
    return from;
}

static srnn_status supervise(runner *r) {
    size_t next = next_run(r, 0);
    bool stopping = false;
    srnn_status status = SRNN_OK;
    for (;;) {
        const int running = collect_ended(r);
        if (running == 0 && (stopping || next == r->study->run_count))
            break;
        for (int slot = 0; slot < r->jobs && !stopping && next < r->study->run_count; slot++) {
            if (r->job[slot].process)
                continue;
            status = start(r, slot, next);
            if (status != SRNN_OK)
                break;
            next = next_run(r, next + 1);
        }
        const bool on =
            r->options->watch ? r->options->watch(r->options->context, r->study, r->views) : true;
        if ((!on || status != SRNN_OK) && !stopping) {
            stopping = true;
            stop_all(r);
        }
        wait_for_child();
    }
    if (r->options->watch)
        (void)r->options->watch(r->options->context, r->study, r->views);
    if (status == SRNN_OK && stopping)
        return SR_FAIL(SRNN_ERR_INTERRUPTED,
                       "the study was interrupted; the same command resumes it");
    return status;
}

/* ---- existing results */

bool sr_study_selects(const sr_study *study, const sr_study_options *options,
                      const sr_study_run *run) {
    return sr_study_run_selected(study, run, &options->only, &options->skip);
}

/* Removes the result of a failed run, which is tried again. */
static srnn_status forget_failure(sr_result *result, const char *path) {
    char file[SR_PATH_BYTES];
    SR_TRY(sr_path_join(file, path, "result.json"));
    if (unlink(file) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: cannot be removed: %s", file, strerror(errno));
    *result = (sr_result){0};
    return SRNN_OK;
}

static srnn_status stock_of(sr_run_view *view, const sr_study *study, const sr_study_run *run,
                            const char *path, const sr_study_options *options) {
    sr_result result;
    *view = (sr_run_view){.loss = NAN, .validation = NAN, .accuracy = NAN, .first_step = -1};
    SR_TRY(sr_result_read(&result, path));
    view->selected = sr_study_selects(study, options, run);
    if (view->selected && result.ending == SR_ENDING_FAILED)
        SR_TRY(forget_failure(&result, path));
    view->ending = result.ending;
    view->step = result.step;
    snprintf(view->message, sizeof view->message, "%s", result.message);
    return SRNN_OK;
}

srnn_status sr_study_take_stock(const sr_study *study, const char *folder,
                                const sr_study_options *options, sr_run_view *views) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, "runs"));
    SR_TRY(sr_folder_make(path));
    for (size_t i = 0; i < study->run_count; i++) {
        SR_TRY(sr_study_run_path(path, folder, study->runs[i].id));
        SR_TRY(stock_of(&views[i], study, &study->runs[i], path, options));
    }
    return SRNN_OK;
}

static srnn_status execute(runner *r) {
    SR_TRY(sr_study_take_stock(r->study, r->folder, r->options, r->views));
    for (size_t i = 0; i < r->study->run_count; i++) {
        atomic_store(&r->boards[i].loss, NAN);
        atomic_store(&r->boards[i].validation, NAN);
        atomic_store(&r->boards[i].accuracy, NAN);
    }
    const sigset_t child = child_ends();
    sigset_t before;
    sigprocmask(SIG_BLOCK, &child, &before);
    const srnn_status status = supervise(r);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return status;
}

srnn_status sr_study_execute(const sr_study *study, const char *folder,
                             const sr_study_options *options, sr_run_view *views) {
    const size_t bytes = study->run_count * sizeof(sr_worker_board);
    runner *r = calloc(1, sizeof *r);
    void *boards = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    srnn_status status = SRNN_OK;
    if (!r || boards == MAP_FAILED)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch %zu runs", study->run_count);
    if (status == SRNN_OK) {
        *r = (runner){
            .study = study, .folder = folder, .options = options, .views = views, .boards = boards};
        sr_study_shares(&r->jobs, &r->threads, options->jobs);
        find_cores(&r->cores);
        status = execute(r);
    }
    if (boards != MAP_FAILED)
        munmap(boards, bytes);
    free(r);
    return status;
}
