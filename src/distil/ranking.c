/* ranking.c: what replacing each layer alone costs. */
#include "distil/ranking.h"

#include "base/memory.h"
#include "model/pass.h"
#include "train/model_open.h"
#include "train/run/data.h"

#include <math.h>
#include <stdlib.h>

/* Rows of the forward-only measures: logits are visited in double, one row after the other. */
enum { FOCUS_ROWS = 4 };

typedef struct work {
    const sr_ranking_request *request;
    sr_run_settings settings; /* of stage align */
    sr_run_settings plan;     /* of the copy: the attention */
    sr_backend *backend;
    sr_source *source;
    sr_split split;
    int64_t batches;
    sr_model *teacher, *aligned;
    bool *one; /* (L): the layer that is replaced */
    int32_t *ids, *targets;
    int64_t *offsets;
    float *losses;
    double done, steps; /* of the progress */
} work;

static bool tell(work *w) {
    w->done++;
    return w->request->progress && w->request->progress(w->request->context, w->done / w->steps);
}

/* ---- one model on the rows */

static srnn_status read_rows(work *w, sr_pass *pass, int64_t number) {
    sr_batch batch = {
        .B = w->settings.B, .ids = w->ids, .targets = w->targets, .offsets = w->offsets};
    SR_TRY(sr_source_batch(w->source, &batch, w->split, number));
    if (!w->source->exact)
        sr_batch_front(&batch, w->source->T, sr_model_config_prefix_tokens(&w->teacher->config));
    return pass ? sr_pass_documents(pass, batch.offsets, batch.documents) : SRNN_OK;
}

static double sum_of(const work *w) {
    double sum = 0;
    for (int64_t i = 0; i < (int64_t)w->settings.B * w->settings.T; i++)
        sum += (double)w->losses[i];
    return sum;
}

static int64_t targets_of(const work *w) {
    int64_t count = 0;
    for (int64_t i = 0; i < (int64_t)w->settings.B * w->settings.T; i++)
        count += w->targets[i] >= 0;
    return count;
}

static srnn_status add_rows(work *w, sr_replacement_cost *cost, int64_t *targets, sr_pass *pass) {
    for (int64_t number = 0; number < w->batches; number++) {
        SR_TRY(read_rows(w, pass, number));
        SR_TRY(sr_pass_losses(pass, w->losses, w->ids, w->targets));
        cost->loss += sum_of(w);
        SR_TRY(sr_pass_divergences(pass, w->losses, w->ids, w->targets));
        cost->kl += sum_of(w);
        *targets += targets_of(w);
    }
    return SRNN_OK;
}

static srnn_status cost_of(work *w, sr_replacement_cost *cost, int64_t *targets, sr_model *model) {
    const sr_pass_setup setup = {
        .B = w->settings.B, .T = w->settings.T, .lesson = {.teacher = w->teacher}};
    sr_pass *pass;
    *cost = (sr_replacement_cost){0, 0};
    *targets = 0;
    SR_TRY(sr_pass_create(&pass, model, &setup));
    const srnn_status status = add_rows(w, cost, targets, pass);
    sr_pass_free(pass);
    SR_TRY(status);
    cost->loss /= (double)*targets;
    cost->kl /= (double)*targets;
    return tell(w) ? SR_FAIL(SRNN_ERR_INTERRUPTED, "stopped") : SRNN_OK;
}

/* ---- one layer */

/* Of one sequence of T tokens: what the layer remembers. */
static double bytes_of(const sr_model_config *config, int layer, int T) {
    const sr_layer_dims dims = sr_model_config_dims(config, layer);
    srnn_problem problem = sr_layer_problem(&config->attention[layer], &dims);
    problem.B = 1;
    problem.T = T;
    return (double)srnn_state_bytes(&problem, T);
}

/* Alone, and the others from the teacher: as copied, then with the aligned attention. */
static srnn_status rank_with(work *w, sr_ranked_layer *layer, int number, sr_model *student) {
    int64_t targets;
    layer->cache_bytes = bytes_of(&w->teacher->config, number, w->settings.T);
    layer->state_bytes = bytes_of(&student->config, number, w->settings.T);
    SR_TRY(cost_of(w, &layer->copied, &targets, student));
    SR_TRY(sr_student_layers(student, w->aligned, w->one));
    return cost_of(w, &layer->aligned, &targets, student);
}

static srnn_status rank_layer(work *w, sr_ranked_layer *layer, int number) {
    sr_student_parts parts;
    sr_model *student;
    w->one[number] = true;
    srnn_status status = sr_student_create(&student, &parts, w->teacher, &w->plan, w->one);
    if (status == SRNN_OK) {
        status = rank_with(w, layer, number, student);
        sr_model_free(student);
    }
    w->one[number] = false;
    return status;
}

/* ---- what forward passes say */

static srnn_status focus_on(work *w, sr_ranking_result *result, sr_model *model) {
    const sr_ranking_request *r = w->request;
    const int rows = w->settings.B < FOCUS_ROWS ? w->settings.B : FOCUS_ROWS;
    const sr_focus_request request = {.model = model,
                                      .ids = w->ids,
                                      .targets = w->targets,
                                      .rows = rows,
                                      .T = w->settings.T,
                                      .window = r->window,
                                      .most_order = r->most_order,
                                      .tolerance = r->tolerance};
    void *memory;
    SR_TRY(read_rows(w, NULL, 0));
    SR_TRY(sr_alloc_zero(&memory, (size_t)result->L, sizeof(sr_focus)));
    sr_focus *focus = memory;
    const srnn_status status = sr_focus_measure(focus, &request);
    for (int layer = 0; layer < result->L; layer++)
        result->layers[layer].focus = focus[layer];
    free(focus);
    return status;
}

/* On the CPU, where logits are visited, whatever computes the rest. */
static srnn_status focus_layers(work *w, sr_ranking_result *result) {
    sr_backend *cpu;
    sr_model *model;
    if (sr_device_is_host(w->backend->device))
        return focus_on(w, result, w->teacher);
    SR_TRY(sr_backend_create(&cpu, &(sr_backend_settings){.threads = w->settings.threads}));
    srnn_status status = sr_model_open(&model, cpu, w->settings.teacher, NULL);
    if (status == SRNN_OK) {
        status = focus_on(w, result, model);
        sr_model_free(model);
    }
    sr_backend_free(cpu);
    return status;
}

/* ---- the budget */

/* Bytes that keeping a layer adds. */
static double extra_of(const sr_ranked_layer *layer) {
    return layer->cache_bytes - layer->state_bytes;
}

/* Keeps the layers whose KL falls most for each byte, while they fit; those whose state is not
 * smaller than their cache are kept in any case. With equal layers nothing does better. */
static void keep_layers(sr_ranking_result *result) {
    result->bytes = 0;
    for (int i = 0; i < result->L; i++) {
        sr_ranked_layer *layer = &result->layers[i];
        layer->keep = extra_of(layer) <= 0;
        result->bytes += layer->keep ? layer->cache_bytes : layer->state_bytes;
    }
    while (true) {
        sr_ranked_layer *best = NULL;
        for (int i = 0; i < result->L; i++) {
            sr_ranked_layer *layer = &result->layers[i];
            const bool fits = result->bytes + extra_of(layer) <= result->budget;
            if (!layer->keep && fits &&
                (!best || layer->aligned.kl * extra_of(best) > best->aligned.kl * extra_of(layer)))
                best = layer;
        }
        if (!best)
            return;
        best->keep = true;
        result->bytes += extra_of(best);
    }
}

/* ---- all of it */

static srnn_status open_settings(work *w) {
    const sr_ranking_request *r = w->request;
    SR_TRY(sr_distil_plan(&w->plan, r->folder, SR_STAGE_COPY));
    SR_TRY(sr_distil_plan(&w->settings, r->folder, SR_STAGE_ALIGN));
    w->settings.threads = r->threads ? r->threads : w->settings.threads;
    return r->device ? sr_run_settings_text(&w->settings.device, r->device) : SRNN_OK;
}

static srnn_status open_rows(work *w) {
    void *memory;
    SR_TRY(sr_run_data_open(&w->source, &w->settings));
    w->split = w->source->rows[SR_SPLIT_VALIDATION] > 0 ? SR_SPLIT_VALIDATION : SR_SPLIT_TRAIN;
    const int64_t B = w->settings.B, all = w->source->rows[w->split],
                  whole = all / B + (all % B > 0);
    w->batches = w->settings.validate_batches < whole ? w->settings.validate_batches : whole;
    const size_t rows = (size_t)B * (size_t)w->settings.T;
    SR_TRY(sr_alloc(&memory, rows, sizeof *w->ids));
    w->ids = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof *w->targets));
    w->targets = memory;
    SR_TRY(sr_alloc(&memory, rows + 1, sizeof *w->offsets));
    w->offsets = memory;
    SR_TRY(sr_alloc(&memory, rows, sizeof *w->losses));
    w->losses = memory;
    return SRNN_OK;
}

static srnn_status open_models(work *w) {
    char aligned[SR_PATH_BYTES];
    const sr_backend_settings numbers = {.device = *w->settings.device ? w->settings.device : NULL,
                                         .threads = w->settings.threads};
    void *memory;
    SR_TRY(sr_backend_create(&w->backend, &numbers));
    SR_TRY(sr_model_open(&w->teacher, w->backend, w->settings.teacher, NULL));
    SR_TRY(sr_path_join(aligned, w->request->folder, sr_stage_name(SR_STAGE_ALIGN)));
    SR_TRY(sr_model_open(&w->aligned, w->backend, aligned, NULL));
    SR_TRY(sr_alloc_zero(&memory, (size_t)w->teacher->config.L, sizeof *w->one));
    w->one = memory;
    return SRNN_OK;
}

static srnn_status measure(work *w, sr_ranking_result *result) {
    sr_replacement_cost own;
    void *memory;
    const int L = w->teacher->config.L;
    *result = (sr_ranking_result){.L = L, .T = w->settings.T, .budget = NAN};
    w->steps = 2 * L + 1;
    SR_TRY(sr_alloc_zero(&memory, (size_t)L, sizeof *result->layers));
    result->layers = memory;
    SR_TRY(cost_of(w, &own, &result->targets, w->teacher));
    result->loss = own.loss;
    for (int layer = 0; layer < L; layer++)
        SR_TRY(rank_layer(w, &result->layers[layer], layer));
    SR_TRY(focus_layers(w, result));
    if (w->request->budget < 0)
        return SRNN_OK;
    result->budget = w->request->budget;
    keep_layers(result);
    return SRNN_OK;
}

static void close_all(work *w) {
    free(w->ids);
    free(w->targets);
    free(w->offsets);
    free(w->losses);
    free(w->one);
    sr_model_free(w->aligned);
    sr_model_free(w->teacher);
    sr_source_free(w->source);
    sr_backend_free(w->backend);
    sr_run_settings_free(&w->settings);
    sr_run_settings_free(&w->plan);
}

srnn_status sr_ranking_measure(sr_ranking_result *result, const sr_ranking_request *request) {
    work w = {.request = request};
    *result = (sr_ranking_result){0};
    srnn_status status = open_settings(&w);
    if (status == SRNN_OK)
        status = open_rows(&w);
    if (status == SRNN_OK)
        status = open_models(&w);
    if (status == SRNN_OK)
        status = measure(&w, result);
    close_all(&w);
    if (status != SRNN_OK)
        sr_ranking_free(result);
    return status;
}

void sr_ranking_free(sr_ranking_result *result) {
    free(result->layers);
    *result = (sr_ranking_result){0};
}
