/* runner.h: the runs of a study, as many at once as there are cores for. */
#ifndef SR_STUDY_EXECUTE_RUNNER_H
#define SR_STUDY_EXECUTE_RUNNER_H

#include "ranks/ranks.h"
#include "study/plan/study.h"
#include "study/results/record.h"

/* Where a run of the plan stands. */
typedef struct sr_run_view {
    bool selected; /* asked for */
    bool running;
    sr_ending ending;
    int64_t step;
    double loss;                 /* of the last steps, smoothed; NaN: none yet */
    double validation, accuracy; /* last; NaN: none yet */
    double seconds;              /* since it was started or continued */
    int64_t first_step;          /* where it was started or continued */
    char message[512];           /* why it failed or diverged */
    char place[128];             /* the machine it runs on, as sr_study_status finds it; "": none */
} sr_run_view;

/* Called about twenty times a second with the views of all runs; false: stop cleanly. */
typedef bool sr_study_watch(void *context, const sr_study *study, const sr_run_view *views);

/* Who starts the processes of the runs. */
typedef enum sr_launcher {
    SR_LAUNCHER_LOCAL = 0, /* the study, on its own machine */
    SR_LAUNCHER_SLURM,     /* Slurm, as an array of jobs */
    SR_LAUNCHER_MPI,       /* mpirun or srun, before the study: its ranks share the runs */
} sr_launcher;

typedef struct sr_study_options {
    int jobs;          /* runs at a time; 0: one per core */
    sr_word_list only; /* run only these */
    sr_word_list skip; /* but not these */
    sr_study_watch *watch;
    void *context;
    sr_launcher launcher;
    sr_ranks *ranks;      /* of SR_LAUNCHER_MPI */
    sr_word_list cluster; /* options of Slurm's sbatch: "partition=short" */
    const char *member;   /* the shell's words that run one run of the study, before "--run NAME" */
} sr_study_options;

/* True if the run is one of those that are asked for. */
bool sr_study_selects(const sr_study *study, const sr_study_options *options,
                      const sr_study_run *run);

/* How many runs at a time, and threads for each. */
void sr_study_shares(int *jobs, int *threads, int asked);

/* views[i] = how run i of the plan ended, if it has, and whether the way selects it; those that
 * failed and are selected count as not ended. */
srnn_status sr_study_take_stock(const sr_study *study, const char *folder,
                                const sr_study_options *options, sr_run_view *views);

/* In a folder whose lock is held and whose runs were checked (study/execute/folder.h).
 *
 * Runs what has not ended, each in a process of its own on its own cores; those that failed before
 * are tried again. A run that fails does not end the study. Fails with SRNN_ERR_INTERRUPTED if the
 * watch stopped it: all runs can then be continued. `views` (study->run_count) receives how it
 * went. */
srnn_status sr_study_execute(const sr_study *study, const char *folder,
                             const sr_study_options *options, sr_run_view *views);

#endif
