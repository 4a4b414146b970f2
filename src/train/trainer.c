/* trainer.c: one optimiser step of a model. */
#include "train/trainer.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

struct sr_trainer {
    sr_model *model;
    sr_backend *backend;
    sr_trainer_settings settings;
    sr_pass *pass;
    sr_moments moments;
    int32_t *ids, *targets; /* (B, T) */
    int64_t *offsets;       /* (B*T + 1) */
    float *losses;          /* (B, T), of validation */
    sr_tally *tally;        /* device memory */
    sr_repeated update;     /* of the weights */
};

static srnn_status check(const sr_trainer_settings *s) {
    if (s->accumulate < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a step accumulates at least 1 batch, not %d",
                       s->accumulate);
    if (!(s->learning_rate >= 0) || !(s->epsilon >= 0) || !(s->weight_decay >= 0) ||
        !(s->clip >= 0) || !(s->beta1 >= 0 && s->beta1 < 1) || !(s->beta2 >= 0 && s->beta2 < 1))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a setting of AdamW makes no sense: rates must be 0 or "
                                          "more, betas below 1");
    return SRNN_OK;
}

static srnn_status take_moment(sr_trainer *trainer, float **out) {
    void *memory;
    const size_t bytes = trainer->model->table.numbers * sizeof(float);
    SR_TRY(sr_device_allocate(trainer->backend->device, &memory, bytes));
    *out = memory;
    return sr_device_zero(trainer->backend->device, memory, bytes);
}

static srnn_status fill(sr_trainer *trainer) {
    const sr_trainer_settings *s = &trainer->settings;
    const sr_pass_setup setup = {.B = s->B, .T = s->T, .train = true, .recompute = s->recompute};
    void *memory;
    SR_TRY(check(s));
    SR_TRY(sr_pass_create(&trainer->pass, trainer->model, &setup));
    const size_t rows = (size_t)s->B * (size_t)s->T;
    SR_TRY(sr_alloc(&memory, rows, sizeof(int32_t)));
    trainer->ids = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof(int32_t)));
    trainer->targets = memory;
    SR_TRY(sr_alloc(&memory, rows + 1, sizeof(int64_t)));
    trainer->offsets = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof(float)));
    trainer->losses = memory;
    SR_TRY(sr_device_allocate(trainer->backend->device, &memory, sizeof(sr_tally)));
    trainer->tally = memory;
    SR_TRY(take_moment(trainer, &trainer->moments.mean));
    return take_moment(trainer, &trainer->moments.square);
}

srnn_status sr_trainer_create(sr_trainer **trainer, sr_model *model,
                              const sr_trainer_settings *settings) {
    void *memory;
    *trainer = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **trainer));
    sr_trainer *created = memory;
    created->model = model;
    created->backend = model->backend;
    created->settings = *settings;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_trainer_free(created);
        return status;
    }
    *trainer = created;
    return SRNN_OK;
}

void sr_trainer_free(sr_trainer *trainer) {
    if (!trainer)
        return;
    srnn_device *device = trainer->backend->device;
    sr_device_forget(device, &trainer->update);
    sr_device_release(device, trainer->tally);
    sr_device_release(device, trainer->moments.mean);
    sr_device_release(device, trainer->moments.square);
    sr_pass_free(trainer->pass);
    free(trainer->ids);
    free(trainer->targets);
    free(trainer->offsets);
    free(trainer->losses);
    free(trainer);
}

sr_moments *sr_trainer_moments(sr_trainer *trainer) {
    return &trainer->moments;
}

size_t sr_trainer_bytes(const sr_trainer *trainer) {
    const sr_model *model = trainer->model;
    const size_t angles = (size_t)model->config.positions * (size_t)model->config.D;
    const size_t working = model->working == model->weights
                               ? 0
                               : model->table.numbers * sr_number_bytes(model->backend->number);
    return (3 * model->table.numbers + angles) * sizeof(float) + working +
           sr_pass_bytes(trainer->pass);
}

static srnn_status read_batch(sr_trainer *trainer, const sr_source *source, sr_split split,
                              int64_t number) {
    sr_batch batch = {.B = trainer->settings.B,
                      .ids = trainer->ids,
                      .targets = trainer->targets,
                      .offsets = trainer->offsets};
    if (source->T != trainer->settings.T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the data has rows of %d tokens, the run asks for %d",
                       source->T, trainer->settings.T);
    SR_TRY(sr_source_batch(source, &batch, split, number));
    if (!source->exact)
        sr_batch_front(&batch, source->T, sr_model_config_front_tokens(&trainer->model->config));
    return sr_pass_documents(trainer->pass, batch.offsets, batch.documents);
}

/* Adds the losses of the batch just computed to a sum and a count. */
static void add_losses(const sr_trainer *trainer, double *sum, int64_t *count) {
    const int64_t rows = (int64_t)trainer->settings.B * trainer->settings.T;
    for (int64_t row = 0; row < rows; row++) {
        *sum += (double)trainer->losses[row];
        *count += trainer->targets[row] >= 0;
    }
}

/* The size of a step if every token had a target; gradients are of the sum of losses over it. */
static double nominal_targets(const sr_trainer_settings *s) {
    return (double)s->B * s->T * s->accumulate;
}

/* Clips and applies what was accumulated, by the numbers of the tally; what is recorded. */
static srnn_status update(void *context) {
    sr_trainer *trainer = context;
    sr_backend *backend = trainer->backend;
    const sr_trainer_settings *s = &trainer->settings;
    const float *gradient = sr_pass_gradient(trainer->pass);
    const sr_adamw adamw = {.weight = trainer->model->weights,
                            .mean = trainer->moments.mean,
                            .square = trainer->moments.square,
                            .gradient = gradient,
                            .working = trainer->model->working,
                            .n = (int64_t)trainer->model->table.numbers,
                            .undecayed =
                                s->decay_all ? 0 : (int64_t)trainer->model->table.undecayed,
                            .beta1 = s->beta1,
                            .beta2 = s->beta2,
                            .epsilon = s->epsilon,
                            .weight_decay = s->weight_decay,
                            .clip = s->clip,
                            .nominal = nominal_targets(s)};
    SR_TRY(backend->tally_squares(backend, trainer->tally, gradient, adamw.n));
    return backend->adamw(backend, trainer->tally, &adamw);
}

static sr_step step_of(const sr_tally *tally) {
    return (sr_step){.loss = tally->loss / (double)(tally->targets > 0 ? tally->targets : 1),
                     .gradient_norm = tally->gradient_norm,
                     .learning_rate = tally->learning_rate,
                     .targets = tally->targets,
                     .applied = tally->applied != 0};
}

srnn_status sr_trainer_step(sr_trainer *trainer, sr_step *result, const sr_source *source,
                            int64_t step) {
    srnn_device *device = trainer->backend->device;
    const sr_trainer_settings *s = &trainer->settings;
    sr_tally tally = {.learning_rate = s->learning_rate * sr_schedule_rate(&s->schedule, step),
                      .updates = trainer->moments.updates};
    *result = (sr_step){0};
    SR_TRY(sr_device_copy_in(device, trainer->tally, &tally, sizeof tally));
    SR_TRY(sr_pass_zero_gradient(trainer->pass));
    for (int i = 0; i < s->accumulate; i++) {
        SR_TRY(read_batch(trainer, source, SR_SPLIT_TRAIN, (step - 1) * s->accumulate + i));
        SR_TRY(sr_pass_step(trainer->pass, trainer->tally, trainer->ids, trainer->targets,
                            1.0 / nominal_targets(s)));
    }
    SR_TRY(sr_device_repeat(device, &trainer->update, update, trainer));
    SR_TRY(sr_device_copy_out(device, &tally, trainer->tally, sizeof tally));
    trainer->moments.updates = tally.updates;
    *result = step_of(&tally);
    return SRNN_OK;
}

srnn_status sr_validation_create(sr_validation *validation, int64_t batches) {
    void *memory;
    *validation = (sr_validation){.batches = batches};
    SR_TRY(sr_alloc(&memory, (size_t)batches, sizeof *validation->losses));
    validation->losses = memory;
    return SRNN_OK;
}

void sr_validation_free(sr_validation *validation) {
    free(validation->losses);
    *validation = (sr_validation){0};
}

static double mean(double sum, int64_t count) {
    return sum / (double)(count > 0 ? count : 1);
}

srnn_status sr_trainer_validate(sr_trainer *trainer, sr_validation *result,
                                const sr_source *source) {
    double sum = 0;
    int64_t count = 0, correct = 0;
    for (int64_t i = 0; i < result->batches; i++) {
        double batch_sum = 0;
        int64_t batch_count = 0;
        SR_TRY(read_batch(trainer, source, SR_SPLIT_VALIDATION, i));
        SR_TRY(sr_pass_evaluate(trainer->pass, trainer->losses, &correct, trainer->ids,
                                trainer->targets));
        add_losses(trainer, &batch_sum, &batch_count);
        result->losses[i] = mean(batch_sum, batch_count);
        sum += batch_sum;
        count += batch_count;
    }
    result->loss = mean(sum, count);
    result->accuracy = mean((double)correct, count);
    return SRNN_OK;
}
