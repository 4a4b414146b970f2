/* trials.h (private): models on the validation rows of a run, next to their teacher. */
#ifndef SR_DISTIL_TRIALS_H
#define SR_DISTIL_TRIALS_H

#include "data/rows/source.h"
#include "distil/ranking.h"
#include "model/pass.h"

/* The rows are those that validation of the run with these settings has. */
typedef struct sr_trials {
    sr_run_settings settings; /* owned */
    sr_backend *backend;
    sr_source *source;
    sr_split split;
    int64_t batches;
    sr_model *teacher;
    int32_t *ids, *targets; /* (B, T) */
    int64_t *offsets;       /* (B*T + 1) */
    float *losses;          /* (B, T) */
} sr_trials;

/* Takes over the settings, whose teacher is opened; free with sr_trials_close in any case. */
srnn_status sr_trials_open(sr_trials *trials, sr_run_settings *settings);
void sr_trials_close(sr_trials *trials);

/* What a trial measures; means over `targets`, of all batches. */
typedef struct sr_trial {
    sr_model *model;
    const bool *isolated; /* (L): layers whose state is zeroed before each token; NULL: none */
    double *by_position;  /* (T): mean loss of each position, NaN without a target; NULL: none */

    sr_replacement_cost cost;
    int64_t targets, correct;
} sr_trial;

srnn_status sr_trials_run(sr_trials *trials, sr_trial *trial);

/* The first batch, into ids and targets. */
srnn_status sr_trials_read(sr_trials *trials, int64_t number);

/* Bytes that a layer keeps of one sequence of T tokens: its state, or its cache. */
double sr_layer_memory(const sr_model_config *config, int layer, int T);

#endif
