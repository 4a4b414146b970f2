/* team.c: a process of a study, which executes runs, one or several at a time. */
#include "study/execute/launch/team.h"

#include "base/clock.h"
#include "base/threads.h"
#include "study/execute/folder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

/* A thread of a team. */
typedef struct member {
    const sr_team *team;
    pthread_t thread;
    bool started, failed;
} member;

bool sr_team_may_start(const sr_worker_board *board, double deadline) {
    return atomic_load(&board->taker) == 0 &&
           (deadline <= 0 || sr_clock_seconds() + atomic_load(&board->expected) < deadline);
}

static bool take(const sr_team *team, sr_worker_board *board) {
    int unclaimed = 0;
    return sr_team_may_start(board, team->deadline) &&
           atomic_compare_exchange_strong(&board->taker, &unclaimed, team->number);
}

static bool execute(const sr_team *team, size_t run) {
    char path[SR_PATH_BYTES];
    sr_worker_board *board = &team->boards[run];
    bool ok = sr_study_run_path(path, team->folder, team->study->runs[run].id) == SRNN_OK;
    if (!ok)
        snprintf(board->failure, sizeof board->failure, "%s", srnn_error_detail());
    ok = ok && sr_worker_run(&team->study->runs[run], path, team->threads, board);
    atomic_store(&board->state, ok ? SR_WORKER_ENDED : SR_WORKER_BROKEN);
    return ok;
}

static void *work(void *context) {
    member *m = context;
    const sr_team *team = m->team;
    for (size_t run = 0; run < team->study->run_count && !sr_worker_stopped(); run++)
        if (take(team, &team->boards[run]) && !execute(team, run))
            m->failed = true;
    return NULL;
}

bool sr_team_work(const sr_team *team) {
    if (team->crowded) /* polling would take the cores from runs that have work */
        sr_wait_asleep();
    member *members = calloc((size_t)team->together, sizeof *members);
    member alone = {.team = team};
    bool ok = true;
    /* A thread less is no failure: the others take its runs. */
    for (int i = 1; members && i < team->together; i++) {
        members[i].team = team;
        members[i].started = pthread_create(&members[i].thread, NULL, work, &members[i]) == 0;
    }
    (void)work(&alone);
    for (int i = 1; members && i < team->together; i++)
        if (members[i].started) {
            pthread_join(members[i].thread, NULL);
            ok = ok && !members[i].failed;
        }
    free(members);
    return ok && !alone.failed;
}
