/* run.h: a training run in a folder: steps, validation, records, checkpoints, exact resuming. */
#ifndef SR_TRAIN_RUN_RUN_H
#define SR_TRAIN_RUN_RUN_H

#include "train/run/checkpoint.h"
#include "train/run/settings.h"

/* What the last step did, for a line of progress. */
typedef struct sr_run_report {
    sr_step step;
    double validation;        /* loss; NaN if this step had no validation */
    double accuracy;          /* of that validation */
    double seconds;           /* of this step, data included */
    bool saved;               /* a checkpoint was written */
    char save_failure[512];   /* why it could not be, or an older one not be removed; or "" */
    char record_failure[512]; /* why records could not be written, or ""; they are kept and tried
                                 again with the next step and the next checkpoint */
} sr_run_report;

typedef struct sr_run sr_run;

/* Starts a run in a folder that is new or holds no other: writes run.yaml. Names of files become
 * absolute in it. A folder belongs to one process at a time, or to the ranks of one job, which call
 * everything here together; rank 0 writes what is not a rank's own. With ranks,
 * settings->accumulate counts the batches of each. */
srnn_status sr_run_start(sr_run **run, const char *folder, const sr_run_settings *settings);

/* Goes on from the last checkpoint of a run's folder, or from its start if there is none. Settings
 * are those of run.yaml, with these ends instead of its own where they are not 0; one below 0: no
 * such end. The model is that of the checkpoint, whatever became of the folder it began with; the
 * data must still be what it was. */
typedef struct sr_run_ends {
    int64_t stop_step, stop_tokens;
    double stop_seconds;
    int threads;
    const char *device; /* to go on elsewhere; NULL: where the run was */
    sr_ranks *ranks;    /* that go on together, however many there were; NULL: one */
    const int *shard;   /* as in the settings; NULL: as it was */
    const double *rank_patience;
} sr_run_ends;
srnn_status sr_run_resume(sr_run **run, const char *folder, const sr_run_ends *ends);
void sr_run_free(sr_run *run);

const sr_run_settings *sr_run_settings_of(const sr_run *run);
const sr_progress *sr_run_progress(const sr_run *run);
const sr_model *sr_run_model(const sr_run *run);

/* False if the data has nothing to validate with. */
bool sr_run_can_validate(const sr_run *run);

/* The instruction set with which the run began, if this machine has another one: from here on its
 * bits are not those of a run that was never moved. NULL if it is the same. */
const char *sr_run_other_instructions(const sr_run *run);

/* Tensors that began with new values, and not with those of settings->model, when this process made
 * the model; 0 after resuming from a checkpoint. */
size_t sr_run_fresh(const sr_run *run);

/* Bytes of memory the run holds; saving takes a few more. */
size_t sr_run_bytes(const sr_run *run);

/* True when the last step is done, or a stop was reached. */
bool sr_run_done(const sr_run *run);

/* What all ranks agree on before a step: *done if one of them is, and the largest of the signals
 * that they were sent. */
typedef struct sr_run_verdict {
    int64_t done, signal;
} sr_run_verdict;
srnn_status sr_run_agree(sr_run *run, sr_run_verdict *verdict, int signal);

/* The next step, with validation and checkpoint where they are due. A checkpoint or a record that
 * cannot be written is reported and the run goes on; too many steps skipped in a row fail, with a
 * checkpoint written if it can be. */
srnn_status sr_run_step(sr_run *run, sr_run_report *report);

/* Writes a checkpoint of the last step done, if there is none. */
srnn_status sr_run_save(sr_run *run);

#endif
