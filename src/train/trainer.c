/* trainer.c: one optimizer step of a model. */
#include "train/trainer_parts.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

static srnn_status check(const sr_trainer_settings *s) {
    if (s->accumulate < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a step accumulates at least 1 batch, not %d",
                       s->accumulate);
    if (!(s->learning_rate >= 0) || !(s->epsilon >= 0) || !(s->weight_decay >= 0) ||
        !(s->clip >= 0) || !(s->qk_clip >= 0) || !(s->beta1 >= 0 && s->beta1 < 1) ||
        !(s->beta2 >= 0 && s->beta2 < 1) || !(s->momentum >= 0 && s->momentum < 1))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a setting of the optimizer makes no sense: rates must "
                                          "be 0 or more, betas and momentum below 1");
    return SRNN_OK;
}

/* Parameters whose moments this rank stores. */
static int64_t own_numbers(const sr_trainer *trainer) {
    if (trainer->adapters)
        return trainer->all.count;
    if (trainer->device_shares)
        return sr_device_shares_own_numbers(trainer->device_shares);
    return trainer->shares ? sr_shares_own_numbers(trainer->shares) : trainer->all.count;
}

static srnn_status take_moment(sr_trainer *trainer, float **out) {
    void *memory;
    const size_t bytes = (size_t)own_numbers(trainer) * sizeof(float);
    SR_TRY(sr_device_allocate(trainer->backend->device, &memory, bytes));
    *out = memory;
    return sr_device_zero(trainer->backend->device, memory, bytes);
}

static int rounds_of(const sr_trainer *trainer) {
    return (int)sr_trainer_rounds(trainer, trainer->settings.accumulate);
}

/* A GPU accumulates the gradients of several batches in place. */
static bool is_gpu(const sr_trainer *trainer) {
    return !trainer->backend->unit_squares;
}

/* Whether the float master weights are sharded. */
static bool divides(const sr_trainer *trainer) {
    return sr_trainer_splits(trainer) && trainer->backend->number != SRNN_F32;
}

static srnn_status take_decided(sr_trainer *trainer) {
    void *memory;
    if (trainer->decided)
        return SRNN_OK;
    SR_TRY(sr_device_allocate(trainer->backend->device, &memory, sizeof *trainer->decided));
    trainer->decided = memory;
    return SRNN_OK;
}

/* A single rank started by a launcher uses the same path as several, to measure its overhead. */
static srnn_status take_device_shares(sr_trainer *trainer) {
    const sr_device_shares_setup setup = {
        .ranks = trainer->ranks,
        .split = sr_trainer_splits(trainer),
        .early = rounds_of(trainer) == 1,
        .gradient = sr_pass_gradient(trainer->pass),
        .context = trainer->context.collective,
    };
    SR_TRY(take_decided(trainer));
    SR_TRY(sr_device_shares_create(&trainer->device_shares, trainer->model, &setup));
    if (!divides(trainer))
        return SRNN_OK;
    return sr_masters_create(&trainer->masters, trainer->model, trainer->device_shares,
                             setup.gradient);
}

static srnn_status take_shares(sr_trainer *trainer) {
    void *memory;
    trainer->all.count = (int64_t)sr_trainer_table(trainer)->numbers;
    if (is_gpu(trainer))
        return trainer->ranks->link ? take_device_shares(trainer) : SRNN_OK;
    if (trainer->ranks->count == 1 && trainer->settings.accumulate == 1)
        return SRNN_OK;
    const sr_shares_setup setup = {.ranks = trainer->ranks,
                                   .split = trainer->ranks->count > 1 && !trainer->settings.whole,
                                   .gradient = sr_pass_gradient(trainer->pass)};
    SR_TRY(sr_alloc_zero(&memory, (size_t)trainer->ranks->count * (size_t)rounds_of(trainer),
                         sizeof *trainer->batches));
    trainer->batches = memory;
    SR_TRY(take_decided(trainer));
    return sr_shares_create(&trainer->shares, trainer->model, &setup);
}

/* Called by the pass, which is created before the shares: they may not exist yet. */
static srnn_status ready(void *context, int layer) {
    sr_trainer *trainer = context;
    SR_TRY(sr_learning_clear(&trainer->learning, trainer->backend, sr_pass_gradient(trainer->pass),
                             layer));
    if (trainer->device_shares)
        return sr_device_shares_ready(trainer->device_shares, layer);
    return trainer->shares ? sr_shares_ready(trainer->shares, layer) : SRNN_OK;
}

static srnn_status take_batch(token_batch *batch, size_t rows) {
    void *memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof(int32_t)));
    batch->ids = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof(int32_t)));
    batch->targets = memory;
    SR_TRY(sr_alloc(&memory, rows + 1, sizeof(int64_t)));
    batch->offsets = memory;
    return SRNN_OK;
}

static void free_batch(token_batch *batch) {
    free(batch->ids);
    free(batch->targets);
    free(batch->offsets);
}

static srnn_status take_muon(sr_trainer *trainer) {
    const sr_trainer_settings *s = &trainer->settings;
    if (s->optimizer != SR_OPTIMIZER_MUON)
        return SRNN_OK;
    if (s->attention_of)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "optimizer muon trains every matrix; where only the attention of some "
                       "layers learns, use optimizer adamw");
    SR_TRY(take_decided(trainer));
    const sr_muon_settings settings = {.momentum = s->momentum,
                                       .weight_decay = s->weight_decay,
                                       .decay_all = s->decay_all,
                                       .rank = trainer->ranks->rank,
                                       .ranks = trainer->ranks->count};
    return sr_muon_create(&trainer->muon, trainer->model, &settings);
}

static srnn_status take_qk_clip(sr_trainer *trainer) {
    const sr_trainer_settings *s = &trainer->settings;
    if (!(s->qk_clip > 0))
        return SRNN_OK;
    if (s->attention_of || s->lesson.objective == SR_OBJECTIVE_LAYERS)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "qk-clip %g scales queries and keys of every layer: leave it out where only "
                       "the attention of some layers learns",
                       s->qk_clip);
    SR_TRY(take_decided(trainer));
    return sr_qk_clip_create(&trainer->qk_clip, trainer->model, trainer->pass, s->qk_clip,
                             trainer->ranks->rank, trainer->ranks->count);
}

static srnn_status take_adapters(sr_trainer *trainer) {
    const sr_trainer_settings *s = &trainer->settings;
    const sr_adapters_setup setup = {s->adapter_rank, s->attention_of};
    if (!s->adapter_rank)
        return SRNN_OK;
    if (s->optimizer != SR_OPTIMIZER_ADAMW || s->qk_clip > 0)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "adapters are trained with optimizer adamw and without qk-clip");
    return sr_adapters_create(&trainer->adapters, trainer->model, &setup);
}

static srnn_status take_learning(sr_trainer *trainer) {
    if (!trainer->settings.attention_of || trainer->adapters)
        return SRNN_OK;
    SR_TRY(take_decided(trainer));
    return sr_learning_create(&trainer->learning, trainer->model, trainer->settings.attention_of);
}

static srnn_status fill(sr_trainer *trainer) {
    const sr_trainer_settings *s = &trainer->settings;
    void *memory;
    SR_TRY(sr_context_open(&trainer->context, trainer->ranks, trainer->backend, s->context_ranks,
                           s->T));
    SR_TRY(check(s));
    const sr_pass_setup setup = {.B = s->B,
                                 .T = trainer->context.tokens,
                                 .train = true,
                                 .recompute = s->recompute,
                                 .lesson = s->lesson,
                                 .part = sr_context_part(&trainer->context),
                                 .ready = ready,
                                 .ready_context = trainer};
    if (divides(trainer))
        SR_TRY(sr_model_drop_masters(trainer->model)); /* before allocating more */
    SR_TRY(sr_pass_create(&trainer->pass, trainer->model, &setup));
    SR_TRY(take_adapters(trainer));
    SR_TRY(take_shares(trainer));
    SR_TRY(take_muon(trainer));
    SR_TRY(take_qk_clip(trainer));
    SR_TRY(take_learning(trainer));
    const size_t rows = (size_t)s->B * (size_t)s->T;
    SR_TRY(take_batch(&trainer->batch, rows));
    SR_TRY(take_batch(&trainer->next, rows));
    SR_TRY(sr_alloc(&memory, rows, sizeof(float)));
    trainer->losses = memory;
    SR_TRY(sr_alloc(&memory, trainer->model->table.count, sizeof *trainer->undecayed));
    trainer->undecayed = memory;
    if (!s->decay_all && !trainer->adapters)
        trainer->undecayed_count =
            sr_tensor_table_undecayed(trainer->undecayed, &trainer->model->table);
    SR_TRY(sr_device_allocate(trainer->backend->device, &memory, sizeof(sr_step_stats)));
    trainer->stats = memory;
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
    created->settings.whole =
        settings->whole || settings->attention_of || settings->adapter_rank > 0;
    created->settings.context_ranks = settings->context_ranks ? settings->context_ranks : 1;
    created->ranks = settings->ranks ? settings->ranks : sr_ranks_alone();
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_ranks_break(created->ranks);
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
    sr_device_release(device, trainer->stats);
    sr_device_release(device, trainer->decided);
    sr_device_release(device, trainer->moments.mean);
    sr_device_release(device, trainer->moments.square);
    sr_shares_free(trainer->shares);
    sr_pass_free(trainer->pass); /* frees the graphs that use the device shares */
    sr_masters_free(trainer->masters);
    sr_muon_free(trainer->muon);
    sr_qk_clip_free(trainer->qk_clip);
    sr_learning_free(&trainer->learning);
    sr_adapters_free(trainer->adapters);
    sr_context_close(&trainer->context);
    sr_device_shares_free(trainer->device_shares);
    free(trainer->batches);
    free_batch(&trainer->batch);
    free_batch(&trainer->next);
    free(trainer->losses);
    free(trainer->undecayed);
    free(trainer);
}

const sr_tensor_table *sr_trainer_table(const sr_trainer *trainer) {
    return trainer->adapters ? &trainer->adapters->table : &trainer->model->table;
}

bool sr_trainer_has_adapters(const sr_trainer *trainer) {
    return trainer->adapters != NULL;
}

bool sr_trainer_adapts(const sr_trainer *trainer, size_t index) {
    const sr_adapters *adapters = trainer->adapters;
    for (size_t i = 0; adapters && i < adapters->count; i++)
        if (adapters->matrices[i].matrix == index)
            return true;
    return false;
}

srnn_status sr_trainer_begin_adapters(sr_trainer *trainer, double range, uint64_t seed) {
    if (!trainer->adapters)
        return SRNN_OK;
    SR_TRY(sr_adapters_keep(trainer->adapters));
    return sr_adapters_initialise(trainer->adapters, range, seed);
}

srnn_status sr_trainer_write_adapters(const sr_trainer *trainer, const char *folder) {
    return trainer->adapters ? sr_adapters_write(trainer->adapters, folder) : SRNN_OK;
}

srnn_status sr_trainer_read_adapters(sr_trainer *trainer, const char *folder) {
    if (!trainer->adapters)
        return SRNN_OK;
    SR_TRY(sr_adapters_read(trainer->adapters, folder));
    return sr_adapters_merge(trainer->adapters);
}

sr_moments *sr_trainer_moments(sr_trainer *trainer) {
    return &trainer->moments;
}

const sr_share *sr_trainer_shares(const sr_trainer *trainer, size_t *count) {
    *count = 1;
    if (trainer->adapters)
        return &trainer->all;
    if (trainer->device_shares)
        return sr_device_shares_own(trainer->device_shares, count);
    if (trainer->shares)
        return sr_shares_own(trainer->shares, count);
    return &trainer->all;
}

bool sr_trainer_splits(const sr_trainer *trainer) {
    return trainer->ranks->count > 1 && !trainer->settings.whole;
}

srnn_status sr_trainer_scatter_weights(sr_trainer *trainer) {
    return trainer->masters ? sr_masters_store(trainer->masters) : SRNN_OK;
}

srnn_status sr_trainer_gather_weights(sr_trainer *trainer) {
    return trainer->masters ? sr_masters_gather(trainer->masters) : SRNN_OK;
}

static size_t working_bytes(const sr_model *model) {
    return model->working == model->weights
               ? 0
               : model->table.numbers * sr_element_bytes(model->backend->number) +
                     model->code_bytes;
}

static size_t teacher_bytes(const sr_model *teacher) {
    return teacher ? teacher->table.numbers * sizeof(float) + working_bytes(teacher) +
                         sr_model_rope_bytes(&teacher->config)
                   : 0;
}

size_t sr_trainer_bytes(const sr_trainer *trainer) {
    const sr_model *model = trainer->model;
    const size_t angles = sr_model_rope_bytes(&model->config) / sizeof(float);
    const size_t working = working_bytes(model) + teacher_bytes(trainer->settings.lesson.teacher);
    const size_t shares = trainer->device_shares ? sr_device_shares_bytes(trainer->device_shares)
                          : trainer->shares      ? sr_shares_bytes(trainer->shares)
                                                 : 0;
    const size_t own = (size_t)own_numbers(trainer), moments = 2 * own;
    const size_t masters = trainer->masters ? own + model->wide_numbers : model->table.numbers;
    return (masters + moments + angles) * sizeof(float) + working + shares +
           (trainer->muon ? sr_muon_bytes(trainer->muon) : 0) +
           (trainer->adapters ? sr_adapters_bytes(trainer->adapters) : 0) +
           sr_pass_bytes(trainer->pass);
}

static srnn_status read_tokens(const sr_trainer *trainer, token_batch *to, const sr_source *source,
                               sr_split split, int64_t number) {
    sr_batch batch = {.B = trainer->settings.B,
                      .ids = to->ids,
                      .targets = to->targets,
                      .offsets = to->offsets};
    to->source = NULL;
    if (source->T != trainer->settings.T)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the data has rows of %d tokens, the run needs %d",
                       source->T, trainer->settings.T);
    SR_TRY(sr_source_batch(source, &batch, split, number));
    if (!source->exact)
        sr_batch_front(&batch, source->T, sr_model_config_prefix_tokens(&trainer->model->config));
    if (trainer->context.count > 1)
        sr_batch_cut(&batch, source->T, trainer->context.part.first, trainer->context.tokens);
    to->documents = batch.documents;
    to->number = number;
    to->source = split == SR_SPLIT_TRAIN ? source : NULL;
    return SRNN_OK;
}

/* Runs while a GPU is busy. An error here recurs, and is reported, when the batch is needed. */
static void read_ahead(sr_trainer *trainer, const sr_source *source, int64_t number) {
    (void)read_tokens(trainer, &trainer->next, source, SR_SPLIT_TRAIN, number);
}

srnn_status sr_trainer_read(sr_trainer *trainer, const sr_source *source, sr_split split,
                            int64_t number) {
    const token_batch next = trainer->next;
    if (split == SR_SPLIT_TRAIN && next.source == source && next.number == number) {
        trainer->next = trainer->batch;
        trainer->next.source = NULL;
        trainer->batch = next;
    } else {
        SR_TRY(read_tokens(trainer, &trainer->batch, source, split, number));
    }
    return sr_pass_documents(trainer->pass, trainer->batch.offsets, trainer->batch.documents);
}

/* Targets of a step if every token had one; the loss of which gradients are taken is the sum over
 * targets divided by this. */
static double nominal_targets(const sr_trainer_settings *s) {
    return (double)s->B * s->T * s->accumulate;
}

/* AdamW for one share; its gradients and moments are at the share's offset. */
static sr_adamw adamw_of(const sr_trainer *trainer, const sr_share *share, const float *gradient) {
    const sr_trainer_settings *s = &trainer->settings;
    sr_model *model = trainer->model;
    return (sr_adamw){.weight = trainer->masters ? sr_masters_own(trainer->masters) + share->at
                                                 : model->weights + share->first,
                      .mean = trainer->moments.mean + share->at,
                      .square = trainer->moments.square + share->at,
                      .gradient = gradient + share->at,
                      .working =
                          sr_number_at(model->working, share->first, trainer->backend->number),
                      .n = share->count,
                      .first = share->first,
                      .undecayed = trainer->undecayed,
                      .undecayed_count = trainer->undecayed_count,
                      .beta1 = s->beta1,
                      .beta2 = s->beta2,
                      .epsilon = s->epsilon,
                      .weight_decay = s->weight_decay,
                      .clip = s->clip,
                      .nominal = nominal_targets(s)};
}

/* Starts from the step's stats; the outcome goes to `decided`. */
static srnn_status update_piece(sr_trainer *trainer, const float *gradient, const sr_share *piece) {
    const sr_adamw adamw = adamw_of(trainer, piece, gradient);
    SR_TRY(sr_device_copy(trainer->backend->device, trainer->decided, trainer->stats,
                          sizeof *trainer->stats));
    return trainer->backend->adamw(trainer->backend, trainer->decided, &adamw);
}

/* Decides the step, even where AdamW has nothing to update. */
static srnn_status update_by_adamw(sr_trainer *trainer, const float *gradient,
                                   const sr_share *shares, size_t count) {
    const sr_learning *learning =
        trainer->muon ? sr_muon_others(trainer->muon) : &trainer->learning;
    sr_share piece = {0};
    SR_TRY(update_piece(trainer, gradient, &piece));
    for (size_t i = 0; i < count; i++)
        for (size_t index = 0; sr_learning_next(learning, &piece, &shares[i], &index);)
            SR_TRY(update_piece(trainer, gradient, &piece));
    return sr_device_copy(trainer->backend->device, trainer->stats, trainer->decided,
                          sizeof *trainer->stats);
}

/* At the offsets of this rank's shards; NULL: the model's. */
static float *own_weights(const sr_trainer *trainer) {
    return trainer->masters ? sr_masters_own(trainer->masters) : NULL;
}

/* Completes an array of the arena, in which each rank has written its own shards. */
static srnn_status spread(sr_trainer *trainer, float *array) {
    if (trainer->device_shares && sr_trainer_splits(trainer))
        return sr_device_shares_gather(trainer->device_shares, array, SRNN_F32);
    return trainer->shares ? sr_shares_spread(trainer->shares, array) : SRNN_OK;
}

static srnn_status exchange(sr_trainer *trainer, float *array, const int64_t *bounds) {
    if (trainer->device_shares)
        return sr_device_shares_exchange(trainer->device_shares, array, bounds);
    return trainer->shares ? sr_shares_exchange(trainer->shares, array, bounds) : SRNN_OK;
}

/* Muon for the matrices of layers; the gradient's buffer, which is free by now, takes the
 * directions of all of them. */
static srnn_status update_by_muon(sr_trainer *trainer, const float *gradient,
                                  const sr_share *shares, size_t count) {
    sr_muon *muon = trainer->muon;
    const sr_muon_arrays arrays = {
        .shares = shares,
        .share_count = count,
        .mean = trainer->moments.mean,
        .gradient = gradient,
        .weight = own_weights(trainer),
        .direction = sr_pass_gradient(trainer->pass),
        .stats = trainer->stats,
    };
    SR_TRY(sr_muon_directions(muon, &arrays));
    SR_TRY(spread(trainer, arrays.direction));
    SR_TRY(sr_muon_orthogonalise(muon, arrays.direction));
    SR_TRY(exchange(trainer, arrays.direction, sr_muon_bounds(muon)));
    return sr_muon_update(muon, &arrays);
}

/* Updates this rank's shards, as the step stats decide. */
static srnn_status update_shards(sr_trainer *trainer, const float *gradient, const sr_share *shares,
                                 size_t count) {
    sr_qk_clip *clip = trainer->qk_clip;
    SR_TRY(update_by_adamw(trainer, gradient, shares, count));
    if (trainer->muon)
        SR_TRY(update_by_muon(trainer, gradient, shares, count));
    if (!clip)
        return SRNN_OK;
    SR_TRY(exchange(trainer, sr_qk_clip_scores(clip), sr_qk_clip_bounds(clip)));
    return sr_qk_clip_update(clip, trainer->stats, own_weights(trainer), shares, count);
}

/* AdamW for the adapters, which are then added to the model. Every rank has the whole gradient of
 * the model, and updates all adapters. */
static srnn_status update_adapters(sr_trainer *trainer, const float *gradient) {
    sr_backend *backend = trainer->backend;
    sr_adapters *adapters = trainer->adapters;
    sr_adamw adamw = adamw_of(trainer, &trainer->all, adapters->gradient);
    SR_TRY(sr_adapters_gradient(adapters, gradient));
    adamw.weight = adapters->weights;
    adamw.working = adapters->weights;
    SR_TRY(backend->stats_squares(backend, trainer->stats, adapters->gradient, adamw.n));
    SR_TRY(backend->adamw(backend, trainer->stats, &adamw));
    return sr_adapters_merge(adapters);
}

/* Clips the accumulated gradient and applies it, as the step stats decide; captured as a graph. */
static srnn_status update(void *context) {
    sr_trainer *trainer = context;
    sr_backend *backend = trainer->backend;
    const float *gradient = sr_pass_gradient(trainer->pass);
    if (trainer->adapters)
        return update_adapters(trainer, gradient);
    const sr_adamw adamw = adamw_of(trainer, &trainer->all, gradient);
    SR_TRY(backend->stats_squares(backend, trainer->stats, gradient, adamw.n));
    return trainer->decided ? update_shards(trainer, gradient, &trainer->all, 1)
                            : backend->adamw(backend, trainer->stats, &adamw);
}

static sr_step step_of(const sr_step_stats *stats) {
    return (sr_step){.loss = stats->loss / (double)(stats->targets > 0 ? stats->targets : 1),
                     .gradient_norm = stats->gradient_norm,
                     .learning_rate = stats->learning_rate,
                     .targets = stats->targets,
                     .applied = stats->applied != 0};
}

static srnn_status compute(sr_trainer *trainer, const sr_source *source, int64_t batch) {
    SR_TRY(sr_trainer_read(trainer, source, SR_SPLIT_TRAIN, batch));
    return sr_pass_step(trainer->pass, trainer->stats, trainer->batch.ids, trainer->batch.targets,
                        1.0 / nominal_targets(&trainer->settings));
}

/* All batches of a step, one after the other, and the update. */
static srnn_status step_alone(sr_trainer *trainer, sr_step_stats *stats, const sr_source *source,
                              int64_t step) {
    srnn_device *device = trainer->backend->device;
    const int count = trainer->settings.accumulate;
    SR_TRY(sr_device_copy_in(device, trainer->stats, stats, sizeof *stats));
    SR_TRY(sr_pass_zero_gradient(trainer->pass));
    for (int i = 0; i < count; i++)
        SR_TRY(compute(trainer, source, (step - 1) * count + i));
    SR_TRY(sr_device_repeat(device, &trainer->update, update, trainer));
    read_ahead(trainer, source, step * count);
    return sr_device_copy_out(device, stats, trainer->stats, sizeof *stats);
}

/* ---- a step of ranks on GPUs, without waiting for the host */

/* Sums over all ranks, updates this rank's shards and gathers them; captured as a graph. */
static srnn_status update_device_shares(void *context) {
    sr_trainer *trainer = context;
    sr_backend *backend = trainer->backend;
    sr_device_shares *shares = trainer->device_shares;
    const float *sum = sr_device_shares_sum(shares);
    size_t count;
    const sr_share *own = sr_device_shares_own(shares, &count);
    if (trainer->adapters) {
        SR_TRY(sr_device_shares_stats(shares, trainer->stats));
        return update_adapters(trainer, sum);
    }
    const int64_t numbers = sr_device_shares_own_numbers(shares);
    SR_TRY(backend->stats_squares(backend, trainer->stats, sum, numbers));
    SR_TRY(sr_device_shares_stats(shares, trainer->stats));
    SR_TRY(update_shards(trainer, sum, own, count));
    if (!sr_trainer_splits(trainer))
        return SRNN_OK;
    SR_TRY(sr_device_shares_gather(shares, trainer->model->working, backend->number));
    return trainer->masters ? sr_masters_widen(trainer->masters) : SRNN_OK;
}

/* Unit u belongs to rank u modulo the number of ranks, as on CPUs. */
static srnn_status step_on_devices(sr_trainer *trainer, sr_step_stats *stats,
                                   const sr_source *source, int64_t step) {
    srnn_device *device = trainer->backend->device;
    sr_ranks *ranks = trainer->ranks;
    const int batches = trainer->settings.accumulate;
    const int64_t units = sr_trainer_units(trainer, batches);
    bool sent = false;
    sr_device_shares_begin(trainer->device_shares);
    SR_TRY(sr_device_copy_in(device, trainer->stats, stats, sizeof *stats));
    SR_TRY(sr_pass_zero_gradient(trainer->pass));
    for (int64_t unit = ranks->rank; unit < units; unit += ranks->count) {
        SR_TRY(compute(trainer, source, (step - 1) * batches + unit / trainer->context.count));
        sent = rounds_of(trainer) == 1;
    }
    if (!sent)
        SR_TRY(sr_device_shares_finish(trainer->device_shares));
    SR_TRY(sr_device_repeat(device, &trainer->update, update_device_shares, trainer));
    SR_TRY(sr_device_shares_wait(trainer->device_shares));
    return sr_device_copy_out(device, stats, trainer->stats, sizeof *stats);
}

/* ---- a step of several batches, on one or several ranks */

/* This rank's unit of a round: the gradient starts from zero, the losses are stored separately. */
static srnn_status compute_one(sr_trainer *trainer, sr_batch_stats *result, const sr_source *source,
                               int64_t batch) {
    srnn_device *device = trainer->backend->device;
    sr_step_stats stats = {0};
    SR_TRY(sr_device_copy_in(device, trainer->stats, &stats, sizeof stats));
    SR_TRY(sr_pass_zero_gradient(trainer->pass));
    SR_TRY(compute(trainer, source, batch));
    SR_TRY(sr_device_copy_out(device, &stats, trainer->stats, sizeof stats));
    *result = (sr_batch_stats){stats.loss, stats.targets, stats.hits, 0};
    return SRNN_OK;
}

static srnn_status compute_rounds(sr_trainer *trainer, const sr_source *source, int64_t step) {
    const int count = trainer->ranks->count, rank = trainer->ranks->rank;
    const int rounds = rounds_of(trainer), batches = trainer->settings.accumulate;
    const int64_t units = sr_trainer_units(trainer, batches);
    for (int round = 0; round < rounds; round++) {
        const int64_t unit = (int64_t)round * count + rank, left = units - (int64_t)round * count;
        const int active = left < count ? (int)left : count;
        SR_TRY(sr_shares_begin(trainer->shares, active, round == 0, round == rounds - 1));
        if (rank < active)
            SR_TRY(compute_one(trainer,
                               &trainer->batches[sr_trainer_unit_at(trainer, unit, rounds)], source,
                               (step - 1) * batches + unit / trainer->context.count));
        SR_TRY(sr_shares_finish(trainer->shares));
    }
    return SRNN_OK;
}

/* Adds the losses of all units, in order. */
static srnn_status add_tallies(sr_trainer *trainer, sr_step_stats *stats) {
    const int rounds = rounds_of(trainer);
    const int64_t units = sr_trainer_units(trainer, trainer->settings.accumulate);
    SR_TRY(sr_ranks_gather(trainer->ranks, trainer->batches,
                           (size_t)rounds * sizeof *trainer->batches));
    for (int64_t unit = 0; unit < units; unit++) {
        const sr_batch_stats *one = &trainer->batches[sr_trainer_unit_at(trainer, unit, rounds)];
        stats->loss += one->loss;
        stats->targets += one->targets;
        stats->hits += one->hits;
    }
    return SRNN_OK;
}

static srnn_status step_shared(sr_trainer *trainer, sr_step_stats *stats, const sr_source *source,
                               int64_t step) {
    size_t count;
    const sr_share *shares = sr_shares_own(trainer->shares, &count);
    SR_TRY(compute_rounds(trainer, source, step));
    SR_TRY(add_tallies(trainer, stats));
    if (!trainer->adapters)
        SR_TRY(sr_shares_squares(trainer->shares, &stats->squares));
    *trainer->stats = *stats; /* in host memory */
    SR_TRY(trainer->adapters
               ? update_adapters(trainer, sr_shares_sum(trainer->shares))
               : update_shards(trainer, sr_shares_sum(trainer->shares), shares, count));
    *stats = *trainer->stats;
    return stats->applied ? sr_shares_spread(trainer->shares, trainer->model->weights) : SRNN_OK;
}

srnn_status sr_trainer_step(sr_trainer *trainer, sr_step *result, const sr_source *source,
                            int64_t step) {
    const sr_trainer_settings *s = &trainer->settings;
    sr_step_stats stats = {.learning_rate = s->learning_rate * sr_schedule_rate(&s->schedule, step),
                           .updates = trainer->moments.updates};
    *result = (sr_step){0};
    if (trainer->qk_clip)
        SR_TRY(sr_qk_clip_reset(trainer->qk_clip));
    SR_TRY(trainer->device_shares ? step_on_devices(trainer, &stats, source, step)
           : trainer->shares      ? step_shared(trainer, &stats, source, step)
                                  : step_alone(trainer, &stats, source, step));
    trainer->moments.updates = stats.updates;
    *result = step_of(&stats);
    return SRNN_OK;
}
