/* team.h (private): a process of a study, which executes runs, one or several at a time.
 *
 * Runs of one process are threads with a device of their own each, so that on a GPU their kernels
 * run side by side in one context instead of taking turns; and a process is started, and libraries
 * are loaded, once for many runs. */
#ifndef SR_STUDY_EXECUTE_LAUNCH_TEAM_H
#define SR_STUDY_EXECUTE_LAUNCH_TEAM_H

#include "study/execute/worker.h"

typedef struct sr_team {
    const sr_study *study;
    const char *folder;
    sr_worker_board *boards; /* (run_count), shared with the other processes */
    int number;              /* of this process, from 1 */
    int together;            /* runs at a time */
    int threads;             /* of each run */
    bool crowded;            /* all processes together have more runs at a time than cores */
    double deadline;         /* as in sr_study_options */
} sr_team;

/* True if the run has not been taken yet and can be expected to end before the deadline. */
bool sr_team_may_start(const sr_worker_board *board, double deadline);

/* Takes and executes runs in the order of the plan until none may be started or a signal stops the
 * process. False if a result could not be written: that run's board says why. */
bool sr_team_work(const sr_team *team);

#endif
