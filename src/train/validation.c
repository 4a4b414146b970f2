/* validation.c: loss and accuracy of the current model, and how far it is from its teacher. */
#include "train/trainer_parts.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Adds the losses of the batch just computed to a sum and a count. */
static void add_losses(const sr_trainer *trainer, double *sum, int64_t *count) {
    const int64_t rows = (int64_t)trainer->settings.B * trainer->context.tokens;
    for (int64_t row = 0; row < rows; row++) {
        *sum += (double)trainer->losses[row];
        *count += trainer->batch.targets[row] >= 0;
    }
}

srnn_status sr_validation_create(sr_validation *validation, int64_t batches, int layers) {
    void *memory;
    *validation = (sr_validation){.batches = batches, .kl = NAN, .layers = layers};
    SR_TRY(sr_alloc(&memory, (size_t)batches, sizeof *validation->losses));
    validation->losses = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)layers, sizeof *validation->errors));
    validation->errors = memory;
    return SRNN_OK;
}

void sr_validation_free(sr_validation *validation) {
    free(validation->losses);
    free(validation->errors);
    *validation = (sr_validation){0};
}

/* NaN: of nothing. */
static double mean(double sum, int64_t count) {
    return count > 0 ? sum / (double)count : NAN;
}

/* One batch of the validation split, or this rank's part of it. */
static srnn_status validate_batch(sr_trainer *trainer, sr_batch_stats *result,
                                  const sr_source *source, int64_t batch) {
    *result = (sr_batch_stats){0};
    SR_TRY(sr_trainer_read(trainer, source, SR_SPLIT_VALIDATION, batch));
    SR_TRY(sr_pass_evaluate(trainer->pass, trainer->losses, &result->hits, trainer->batch.ids,
                            trainer->batch.targets));
    add_losses(trainer, &result->loss, &result->targets);
    return SRNN_OK;
}

/* How far the batch's model is from its teacher. */
static srnn_status validate_lesson(sr_trainer *trainer, sr_batch_stats *result,
                                   sr_layer_error *errors) {
    const token_batch *batch = &trainer->batch;
    int64_t targets = 0;
    if (!trainer->settings.lesson.teacher)
        return SRNN_OK;
    SR_TRY(sr_pass_divergences(trainer->pass, trainer->losses, batch->ids, batch->targets));
    add_losses(trainer, &result->kl, &targets);
    return errors ? sr_pass_layer_errors(trainer->pass, errors, batch->ids, batch->targets)
                  : SRNN_OK;
}

/* What ranks find of the batches, whose units are dealt to them round-robin. */
typedef struct validation_parts {
    int64_t rounds;
    sr_batch_stats *batches; /* (ranks, rounds) */
    sr_layer_error *errors;  /* (ranks, rounds, layers); NULL: layers are not learned */
} validation_parts;

static sr_layer_error *errors_of_batch(const validation_parts *parts, const sr_validation *result,
                                       size_t part) {
    return parts->errors ? parts->errors + part * (size_t)result->layers : NULL;
}

static srnn_status validate_own(sr_trainer *trainer, const sr_validation *result,
                                const sr_source *source, const validation_parts *parts) {
    sr_ranks *ranks = trainer->ranks;
    const int64_t units = sr_trainer_units(trainer, result->batches);
    for (int64_t unit = ranks->rank; unit < units; unit += ranks->count) {
        const size_t part = sr_trainer_unit_at(trainer, unit, parts->rounds);
        const int64_t batch = unit / trainer->context.count;
        sr_layer_error *errors = errors_of_batch(parts, result, part);
        SR_TRY(validate_batch(trainer, &parts->batches[part], source, batch));
        SR_TRY(validate_lesson(trainer, &parts->batches[part], errors));
    }
    SR_TRY(sr_ranks_gather(ranks, parts->batches, (size_t)parts->rounds * sizeof *parts->batches));
    return parts->errors
               ? sr_ranks_gather(ranks, parts->errors,
                                 (size_t)(parts->rounds * result->layers) * sizeof *parts->errors)
               : SRNN_OK;
}

/* Adds a batch's errors of layers to the sums. */
static void add_layers(sr_validation *result, const sr_layer_error *errors) {
    for (int layer = 0; errors && layer < result->layers; layer++) {
        result->errors[layer].error += errors[layer].error;
        result->errors[layer].size += errors[layer].size;
    }
}

/* The sum of the units of a batch; adds their errors of layers to the result. */
static sr_batch_stats add_units(const sr_trainer *trainer, sr_validation *result,
                                const validation_parts *parts, int64_t batch) {
    sr_batch_stats sum = {0};
    for (int64_t part = 0; part < trainer->context.count; part++) {
        const int64_t unit = batch * trainer->context.count + part;
        const size_t at = sr_trainer_unit_at(trainer, unit, parts->rounds);
        const sr_batch_stats *one = &parts->batches[at];
        sum.loss += one->loss;
        sum.targets += one->targets;
        sum.hits += one->hits;
        sum.kl += one->kl;
        add_layers(result, errors_of_batch(parts, result, at));
    }
    return sum;
}

static srnn_status validate_all(sr_trainer *trainer, sr_validation *result, const sr_source *source,
                                const validation_parts *parts) {
    sr_batch_stats sum = {0};
    SR_TRY(validate_own(trainer, result, source, parts));
    for (int layer = 0; layer < result->layers; layer++)
        result->errors[layer] = (sr_layer_error){0, 0};
    for (int64_t i = 0; i < result->batches; i++) {
        const sr_batch_stats one = add_units(trainer, result, parts, i);
        result->losses[i] = mean(one.loss, one.targets);
        sum.loss += one.loss;
        sum.targets += one.targets;
        sum.hits += one.hits;
        sum.kl += one.kl;
    }
    result->loss = mean(sum.loss, sum.targets);
    result->accuracy = mean((double)sum.hits, sum.targets);
    result->kl = trainer->settings.lesson.teacher ? mean(sum.kl, sum.targets) : NAN;
    for (int layer = 0; layer < result->layers; layer++) {
        result->errors[layer].error = mean(result->errors[layer].error, sum.targets);
        result->errors[layer].size = mean(result->errors[layer].size, sum.targets);
    }
    return SRNN_OK;
}

/* Further batches would have rows that were there before. */
static int64_t fresh_batches(const sr_trainer *trainer, const sr_source *source) {
    const int64_t rows = source->rows[SR_SPLIT_VALIDATION], B = trainer->settings.B;
    return rows / B + (rows % B > 0);
}

srnn_status sr_trainer_validate(sr_trainer *trainer, sr_validation *result,
                                const sr_source *source) {
    const int64_t fresh = fresh_batches(trainer, source);
    result->batches = result->batches < fresh ? result->batches : fresh;
    validation_parts parts = {.rounds = sr_trainer_rounds(trainer, result->batches)};
    const size_t cells = (size_t)(trainer->ranks->count * parts.rounds);
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, cells, sizeof *parts.batches));
    parts.batches = memory;
    srnn_status status = SRNN_OK;
    if (result->layers) {
        status = sr_alloc_zero(&memory, cells * (size_t)result->layers, sizeof *parts.errors);
        parts.errors = status == SRNN_OK ? memory : NULL;
    }
    if (status == SRNN_OK)
        status = validate_all(trainer, result, source, &parts);
    free(parts.batches);
    free(parts.errors);
    return status;
}
