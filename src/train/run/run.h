/* run.h: a training run in a folder: steps, validation, records, checkpoints, exact resuming. */
#ifndef SR_TRAIN_RUN_RUN_H
#define SR_TRAIN_RUN_RUN_H

#include "train/run/checkpoint.h"
#include "train/run/settings.h"

/* The last step, for the progress line. */
typedef struct sr_run_report {
    sr_step step;
    double validation;        /* loss; NaN: no validation at this step */
    double accuracy;          /* of that validation */
    double seconds;           /* of this step, including reading data */
    bool saved;               /* a checkpoint was written */
    char save_failure[512];   /* why it failed, or why an old one was not removed; else "" */
    char record_failure[512]; /* why records could not be written, else ""; they are retried with
                               * the next step and checkpoint */
} sr_run_report;

typedef struct sr_run sr_run;

/* Starts a run in a folder that is new or holds no other run, and writes run.yaml, in which file
 * names are absolute. A folder belongs to one process at a time, or to the ranks of one job, which
 * make all calls here together; rank 0 writes the files that are not per rank. With ranks,
 * settings->accumulate counts the batches of each group of context ranks. */
srnn_status sr_run_start(sr_run **run, const char *folder, const sr_run_settings *settings);

/* Resumes from the last checkpoint in a run's folder, or from the start if there is none. Settings
 * are those of run.yaml, except for the ends given here that are not 0; below 0: no such end. The
 * model comes from the checkpoint, even if the folder it was initialised from has changed; the data
 * must be unchanged. */
typedef struct sr_run_ends {
    int64_t stop_step, stop_tokens;
    double stop_seconds;
    int threads;
    const char *device;       /* to resume on another device; NULL: as before */
    sr_ranks *ranks;          /* resume together; their number may differ from before. NULL: one
                         * process */
    const int *context_ranks; /* as in the settings; NULL: as before */
    const int *shard;         /* as in the settings; NULL: as before */
    const int *recompute;     /* the same */
    const double *rank_patience;
} sr_run_ends;
srnn_status sr_run_resume(sr_run **run, const char *folder, const sr_run_ends *ends);
void sr_run_free(sr_run *run);

const sr_run_settings *sr_run_settings_of(const sr_run *run);
const sr_progress *sr_run_progress(const sr_run *run);
const sr_model *sr_run_model(const sr_run *run);

/* False if the data has no validation split. */
bool sr_run_can_validate(const sr_run *run);

/* The instruction set that the run started with, if this machine's differs: from here on the bits
 * differ from those of a run on one machine. NULL if it is the same. */
const char *sr_run_other_instructions(const sr_run *run);

/* Tensors that this process initialised instead of reading them from settings->model; 0 after
 * resuming from a checkpoint. */
size_t sr_run_fresh(const sr_run *run);

/* Bytes of memory of the run; writing checkpoints needs a few more. */
size_t sr_run_bytes(const sr_run *run);

/* True after the last step, or when a stop condition is met. */
bool sr_run_done(const sr_run *run);

/* Agreed by all ranks before a step: *done if one of them is done, and the largest of the signals
 * that they received. */
typedef struct sr_run_verdict {
    int64_t done, signal;
} sr_run_verdict;
srnn_status sr_run_agree(sr_run *run, sr_run_verdict *verdict, int signal);

/* The next step, with validation and checkpoint when due. A checkpoint or record that cannot be
 * written is reported and the run continues; too many consecutive skipped steps fail, after an
 * attempt to write a checkpoint. */
srnn_status sr_run_step(sr_run *run, sr_run_report *report);

/* Writes a checkpoint of the last completed step, unless there is one. */
srnn_status sr_run_save(sr_run *run);

#endif
