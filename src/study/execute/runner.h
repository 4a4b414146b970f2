/* runner.h: executes the runs of a study in parallel processes. */
#ifndef SR_STUDY_EXECUTE_RUNNER_H
#define SR_STUDY_EXECUTE_RUNNER_H

#include "ranks/ranks.h"
#include "study/plan/study.h"
#include "study/results/record.h"

/* The state of a run of the plan. */
typedef struct sr_run_view {
    bool selected; /* requested by the user */
    bool running;
    sr_ending ending;
    int64_t step;
    double loss;                 /* of the last steps, smoothed; NaN: none yet */
    double validation, accuracy; /* last; NaN: none yet */
    double seconds;              /* since it was started or resumed */
    int64_t first_step;          /* step at which it was started or resumed */
    char message[512];           /* why it failed or diverged */
    char place[128];             /* the machine it runs on, from sr_study_status; "": none */
} sr_run_view;

/* Called about twenty times a second with the views of all runs; false: stop after writing
 * checkpoints. */
typedef bool sr_study_watch(void *context, const sr_study *study, const sr_run_view *views);

/* How the processes of the runs are started. */
typedef enum sr_launcher {
    SR_LAUNCHER_LOCAL = 0, /* by the study, on its own machine */
    SR_LAUNCHER_SLURM,     /* by Slurm, as a job array */
    SR_LAUNCHER_MPI,       /* mpirun or srun started the study; its ranks share the runs */
} sr_launcher;

typedef struct sr_study_options {
    int jobs;     /* runs at a time; 0: one per core */
    int together; /* of these in one process, as threads that share a GPU; 0: 1 */
    /* sr_clock_seconds: no run is started that may take longer, by the runs of its task before, and
     * those under way then stop with a checkpoint; 0: none. Local, as `together` */
    double deadline;
    sr_word_list only; /* run only these */
    sr_word_list skip; /* except these */
    sr_study_watch *watch;
    void *context;
    sr_launcher launcher;
    sr_ranks *ranks;      /* for SR_LAUNCHER_MPI */
    sr_word_list cluster; /* options of Slurm's sbatch: "partition=short" */
    const char *member;   /* shell command for one run of the study, without "--run NAME" */
} sr_study_options;

/* True if the options select the run. */
bool sr_study_selects(const sr_study *study, const sr_study_options *options,
                      const sr_study_run *run);

/* Number of concurrent runs, and threads of each. */
void sr_study_shares(int *jobs, int *threads, int requested);

/* Processes that they need. */
int sr_study_processes(int jobs, int together);

/* views[i] = how run i of the plan ended, if it has, and whether the options select it; failed runs
 * that are selected count as not ended. */
srnn_status sr_study_take_stock(const sr_study *study, const char *folder,
                                const sr_study_options *options, sr_run_view *views);

/* Requires the folder's lock, and that its runs were checked (study/execute/folder.h).
 *
 * Executes the runs that have not ended, in processes on their own cores; failed ones are retried.
 * A failed run does not end the study. Fails with SRNN_ERR_INTERRUPTED if the watch or the deadline
 * stopped it: all runs can then be resumed. `views` (study->run_count) receives the state of the
 * runs. */
srnn_status sr_study_execute(const sr_study *study, const char *folder,
                             const sr_study_options *options, sr_run_view *views);

#endif
