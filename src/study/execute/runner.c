/* runner.c: executes the runs of a study in parallel processes. */
#include "study/execute/runner.h"

#include "base/clock.h"
#include "files/folder.h"
#include "study/execute/folder.h"
#include "study/execute/launch/team.h"

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

/* A process that executes runs. */
typedef struct job {
    pid_t process; /* 0: none */
    int number;    /* as in sr_team */
} job;

typedef struct runner {
    const sr_study *study;
    const char *folder;
    const sr_study_options *options;
    sr_run_view *views;
    sr_worker_board *boards; /* (run_count), shared with the workers */
    double *started;         /* (run_count) */
    int processes, together, threads;
    bool crowded; /* as in sr_team */
    int number;   /* of the last process */
    job job[MOST_JOBS];
    cpu_set_t cores;
} runner;

static void find_cores(cpu_set_t *cores) {
    CPU_ZERO(cores);
    if (sched_getaffinity(0, sizeof *cores, cores) != 0 || CPU_COUNT(cores) == 0)
        CPU_SET(0, cores);
}

void sr_study_shares(int *jobs, int *threads, int requested) {
    cpu_set_t cores;
    find_cores(&cores);
    const int count = CPU_COUNT(&cores);
    *jobs = requested > 0 ? requested : count;
    *jobs = *jobs < MOST_JOBS ? *jobs : MOST_JOBS;
    *threads = count / *jobs > 0 ? count / *jobs : 1;
}

int sr_study_processes(int jobs, int together) {
    return together > 1 ? (jobs + together - 1) / together : jobs;
}

/* Pins a process to its share of the cores of this one; where there are more runs than cores, all
 * have all. */
static void pin(const runner *r, int slot) {
    cpu_set_t own;
    const int count = CPU_COUNT(&r->cores), size = r->threads * r->together;
    const int first = slot * size % count;
    if (r->crowded)
        return;
    CPU_ZERO(&own);
    int seen = 0;
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &r->cores))
            continue;
        if ((seen - first + count) % count < size)
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

static srnn_status start(runner *r, int slot) {
    sigset_t both, before;
    const sr_team team = {.study = r->study,
                          .folder = r->folder,
                          .boards = r->boards,
                          .number = ++r->number,
                          .together = r->together,
                          .threads = r->threads,
                          .crowded = r->crowded,
                          .deadline = r->options->deadline};
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
        _exit(sr_team_work(&team) ? 0 : 1);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (process < 0)
        return SR_FAIL(SRNN_ERR_IO, "cannot start a process for a run: %s", strerror(errno));
    r->job[slot] = (job){process, team.number};
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

/* The run's process was killed or crashed, or its result could not be written: reports that; the
 * run can be resumed. */
static void collect_broken(const runner *r, size_t run, const char *path, int wait_status) {
    sr_run_view *view = &r->views[run];
    const char *failure = r->boards[run].failure;
    sr_result result = {.ending = SR_ENDING_FAILED, .threads = r->threads, .step = view->step};
    if (*failure)
        snprintf(result.message, sizeof result.message, "%.511s", failure);
    else
        snprintf(result.message, sizeof result.message, "its process was ended by signal %d",
                 WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
    fail(view, result.message);
    (void)sr_worker_write_result(&result, path); /* only the run's own failure is reported */
}

/* Runs that resemble this one may take as long. */
static void expect(const runner *r, size_t run, double seconds) {
    const sr_study_run *ended = &r->study->runs[run];
    for (size_t i = 0; i < r->study->run_count; i++) {
        const sr_study_run *other = &r->study->runs[i];
        if (other->task == ended->task && other->size == ended->size &&
            seconds > atomic_load(&r->boards[i].expected))
            atomic_store(&r->boards[i].expected, seconds);
    }
}

/* The same from the record of an earlier sitting. */
static srnn_status expect_again(const runner *r, size_t run) {
    char path[SR_PATH_BYTES];
    sr_result result;
    SR_TRY(run_folder(path, r, run));
    SR_TRY(sr_result_read(&result, path));
    if (result.ended > result.started)
        expect(r, run, result.ended - result.started);
    return SRNN_OK;
}

/* A run has ended, by itself or, with `wait_status`, because its process has: collects the
 * outcome. */
static void collect(runner *r, size_t run, const int *wait_status) {
    sr_run_view *view = &r->views[run];
    const int state = atomic_load(&r->boards[run].state);
    sr_result result = {0};
    char path[SR_PATH_BYTES];
    view->running = false;
    if (run_folder(path, r, run) != SRNN_OK || sr_result_read(&result, path) != SRNN_OK) {
        fail(view, srnn_error_detail());
        return;
    }
    view->ending = result.ending;
    snprintf(view->message, sizeof view->message, "%s", result.message);
    if (result.ending == SR_ENDING_FINISHED)
        expect(r, run, view->seconds);
    if (result.ending == SR_ENDING_NONE && state != SR_WORKER_ENDED)
        collect_broken(r, run, path, wait_status ? *wait_status : 0);
}

/* Looks at the runs that a process has taken, and collects those that have ended; `wait_status`:
 * all of them have. */
static void look_at_runs(runner *r, int number, const int *wait_status) {
    for (size_t run = 0; run < r->study->run_count; run++) {
        sr_run_view *view = &r->views[run];
        if (atomic_load(&r->boards[run].taker) != number)
            continue;
        if (r->started[run] == 0) {
            r->started[run] = sr_clock_seconds();
            view->running = true;
        }
        if (!view->running)
            continue;
        look(view, &r->boards[run], sr_clock_seconds() - r->started[run]);
        if (wait_status || atomic_load(&r->boards[run].state) != SR_WORKER_NONE)
            collect(r, run, wait_status);
    }
}

/* The number of processes that have not ended. */
static int collect_ended(runner *r) {
    int living = 0;
    for (int slot = 0; slot < r->processes; slot++) {
        int wait_status;
        const job of = r->job[slot];
        if (!of.process)
            continue;
        const bool ended = waitpid(of.process, &wait_status, WNOHANG) == of.process;
        look_at_runs(r, of.number, ended ? &wait_status : NULL);
        if (ended)
            r->job[slot].process = 0;
        else
            living++;
    }
    return living;
}

static void stop_all(const runner *r) {
    for (int slot = 0; slot < r->processes; slot++)
        if (r->job[slot].process)
            kill(r->job[slot].process, SIGTERM);
}

/* ---- the whole */

/* Runs that no worker has taken and that may be started. */
static size_t count_startable(const runner *r) {
    size_t count = 0;
    for (size_t i = 0; i < r->study->run_count; i++)
        count += sr_team_may_start(&r->boards[i], r->options->deadline);
    return count;
}

/* Starts processes until there are enough for the runs that are left. */
static srnn_status start_more(runner *r, int *living) {
    const size_t left = count_startable(r);
    size_t places = 0;
    for (int slot = 0; slot < r->processes && places < left; slot++) {
        if (r->job[slot].process)
            continue;
        SR_TRY(start(r, slot));
        places += (size_t)r->together;
        ++*living;
    }
    return SRNN_OK;
}

static size_t count_left(const runner *r) {
    size_t left = 0;
    for (size_t i = 0; i < r->study->run_count; i++)
        left += r->views[i].selected && r->views[i].ending == SR_ENDING_NONE;
    return left;
}

typedef struct duration_text {
    char text[64];
} duration_text;

/* "", or how long the runs that are left may take, if others have ended. */
static duration_text how_long(const runner *r) {
    duration_text all = {""};
    double longest = 0;
    for (size_t i = 0; i < r->study->run_count; i++)
        if (r->views[i].selected && r->views[i].ending == SR_ENDING_NONE)
            longest = fmax(longest, atomic_load(&r->boards[i].expected));
    if (longest > 0)
        snprintf(all.text, sizeof all.text, ", which may take %.1f minutes each", longest / 60);
    return all;
}

static bool is_late(const runner *r) {
    return r->options->deadline > 0 && sr_clock_seconds() >= r->options->deadline;
}

static srnn_status supervise(runner *r) {
    bool stopping = false, late = false;
    srnn_status status = SRNN_OK;
    for (;;) {
        int living = collect_ended(r);
        if (!stopping)
            status = start_more(r, &living);
        if (living == 0)
            break;
        const bool on =
            r->options->watch ? r->options->watch(r->options->context, r->study, r->views) : true;
        late = is_late(r);
        if ((!on || late || status != SRNN_OK) && !stopping) {
            stopping = true;
            stop_all(r);
        }
        wait_for_child();
    }
    if (r->options->watch)
        (void)r->options->watch(r->options->context, r->study, r->views);
    SR_TRY(status);
    const size_t left = count_left(r);
    if (left && r->options->deadline > 0 && (late || !stopping))
        return SR_FAIL(SRNN_ERR_INTERRUPTED,
                       "the time is up; runs left: %zu%s; the same command resumes the study", left,
                       how_long(r).text);
    return stopping ? SR_FAIL(SRNN_ERR_INTERRUPTED,
                              "the study was interrupted; the same command resumes it")
                    : SRNN_OK;
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
        atomic_store(&r->boards[i].expected, r->study->runs[i].expected_seconds);
        const sr_run_view *view = &r->views[i];
        atomic_store(&r->boards[i].taker,
                     view->selected && view->ending == SR_ENDING_NONE ? 0 : -1);
    }
    for (size_t i = 0; i < r->study->run_count; i++)
        if (r->views[i].ending == SR_ENDING_FINISHED)
            SR_TRY(expect_again(r, i));
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
    double *started = calloc(study->run_count ? study->run_count : 1, sizeof *started);
    void *boards = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    srnn_status status = SRNN_OK;
    if (!r || !started || boards == MAP_FAILED)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory to watch %zu runs", study->run_count);
    if (status == SRNN_OK) {
        *r = (runner){
            .study = study, .folder = folder, .options = options, .views = views, .boards = boards};
        int jobs;
        sr_study_shares(&jobs, &r->threads, options->jobs);
        r->started = started;
        r->together = options->together > 1 ? options->together : 1;
        r->processes = sr_study_processes(jobs, r->together);
        find_cores(&r->cores);
        r->crowded = r->processes * r->together > CPU_COUNT(&r->cores);
        status = execute(r);
    }
    if (boards != MAP_FAILED)
        munmap(boards, bytes);
    free(started);
    free(r);
    return status;
}
