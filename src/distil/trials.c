/* trials.c: models on the validation rows of a run. */
#include "distil/trials.h"

#include "base/memory.h"
#include "train/model_open.h"
#include "train/run/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static srnn_status numbers(void *out, size_t count, size_t size) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, count, size));
    memcpy(out, &memory, sizeof memory);
    return SRNN_OK;
}

static srnn_status open_rows(sr_trials *t) {
    SR_TRY(sr_run_data_open(&t->source, &t->settings));
    t->split = t->source->rows[SR_SPLIT_VALIDATION] > 0 ? SR_SPLIT_VALIDATION : SR_SPLIT_TRAIN;
    const int64_t B = t->settings.B, all = t->source->rows[t->split],
                  whole = all / B + (all % B > 0);
    t->batches = t->settings.validate_batches < whole ? t->settings.validate_batches : whole;
    const size_t rows = (size_t)B * (size_t)t->settings.T;
    SR_TRY(numbers(&t->ids, rows, sizeof *t->ids));
    SR_TRY(numbers(&t->targets, rows, sizeof *t->targets));
    SR_TRY(numbers(&t->offsets, rows + 1, sizeof *t->offsets));
    return numbers(&t->losses, rows, sizeof *t->losses);
}

srnn_status sr_trials_open(sr_trials *t, sr_run_settings *settings) {
    *t = (sr_trials){.settings = *settings};
    *settings = (sr_run_settings){0};
    const sr_backend_settings numbers_of = {.device =
                                                *t->settings.device ? t->settings.device : NULL,
                                            .threads = t->settings.threads,
                                            .bf16 = t->settings.precision == SR_PRECISION_BF16};
    SR_TRY(sr_backend_create(&t->backend, &numbers_of));
    SR_TRY(sr_model_open(&t->teacher, t->backend, t->settings.teacher, NULL));
    return open_rows(t);
}

void sr_trials_close(sr_trials *t) {
    free(t->ids);
    free(t->targets);
    free(t->offsets);
    free(t->losses);
    sr_model_free(t->teacher);
    sr_source_free(t->source);
    sr_backend_free(t->backend);
    sr_run_settings_free(&t->settings);
}

/* ---- one batch */

static srnn_status read_batch(sr_trials *t, sr_batch *batch, int64_t number) {
    *batch =
        (sr_batch){.B = t->settings.B, .ids = t->ids, .targets = t->targets, .offsets = t->offsets};
    SR_TRY(sr_source_batch(t->source, batch, t->split, number));
    if (!t->source->exact)
        sr_batch_front(batch, t->source->T, sr_model_config_prefix_tokens(&t->teacher->config));
    return SRNN_OK;
}

srnn_status sr_trials_read(sr_trials *t, int64_t number) {
    sr_batch batch;
    return read_batch(t, &batch, number);
}

static double sum_of(const sr_trials *t) {
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)t->settings.B * t->settings.T; i++)
        sum += (double)t->losses[i];
    return sum;
}

/* counts (T): targets of each position. */
static void add_positions(const sr_trials *t, double *sums, int64_t *counts) {
    const int64_t T = t->settings.T;
    for (int64_t i = 0; i < t->settings.B * T; i++) {
        counts[i % T] += t->targets[i] >= 0;
        sums[i % T] += t->targets[i] >= 0 ? (double)t->losses[i] : 0;
    }
}

static srnn_status add_batch(sr_trials *t, sr_trial *trial, sr_pass *pass, int64_t *counts) {
    SR_TRY(sr_pass_evaluate(pass, t->losses, &trial->correct, t->ids, t->targets));
    trial->cost.loss += sum_of(t);
    for (int64_t i = 0; i < (int64_t)t->settings.B * t->settings.T; i++)
        trial->targets += t->targets[i] >= 0;
    if (trial->by_position)
        add_positions(t, trial->by_position, counts);
    SR_TRY(sr_pass_divergences(pass, t->losses, t->ids, t->targets));
    trial->cost.kl += sum_of(t);
    return SRNN_OK;
}

/* ---- all of them */

static srnn_status run_with(sr_trials *t, sr_trial *trial, sr_pass *pass, int64_t *counts) {
    const int T = t->settings.T;
    for (int p = 0; trial->by_position && p < T; p++)
        trial->by_position[p] = 0;
    for (int64_t number = 0; number < t->batches; number++) {
        sr_batch batch;
        SR_TRY(read_batch(t, &batch, number));
        SR_TRY(sr_pass_documents(pass, batch.offsets, batch.documents));
        if (trial->isolated)
            SR_TRY(sr_pass_isolate(pass, trial->isolated));
        SR_TRY(add_batch(t, trial, pass, counts));
    }
    trial->cost.loss /= (double)trial->targets;
    trial->cost.kl /= (double)trial->targets;
    for (int p = 0; trial->by_position && p < T; p++)
        trial->by_position[p] = counts[p] ? trial->by_position[p] / (double)counts[p] : NAN;
    return SRNN_OK;
}

srnn_status sr_trials_run(sr_trials *t, sr_trial *trial) {
    const sr_pass_setup setup = {.B = t->settings.B,
                                 .T = t->settings.T,
                                 .lesson = {.teacher = t->teacher}};
    sr_pass *pass;
    int64_t *counts;
    trial->cost = (sr_replacement_cost){0, 0};
    trial->targets = trial->correct = 0;
    SR_TRY(numbers(&counts, (size_t)t->settings.T, sizeof *counts));
    srnn_status status = sr_pass_create(&pass, trial->model, &setup);
    if (status == SRNN_OK) {
        status = run_with(t, trial, pass, counts);
        sr_pass_free(pass);
    }
    free(counts);
    return status;
}

double sr_layer_memory(const sr_model_config *config, int layer, int T) {
    const sr_layer_dims dims = sr_model_config_dims(config, layer);
    srnn_problem problem = sr_layer_problem(&config->attention[layer], &dims);
    problem.B = 1;
    problem.T = T;
    return (double)srnn_state_bytes(&problem, T);
}
