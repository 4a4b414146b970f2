/* ranking.c: what replacing each layer alone costs. */
#include "distil/ranking.h"

#include "base/memory.h"
#include "distil/trials.h"
#include "train/model_open.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of the forward-only measures: logits are visited in double, one row after the other. Those
 * of the orders that losses need are cut and run again for every order; others follow them, from
 * which a finite state would know the centres of its heads. */
enum { FOCUS_ROWS = 4, ORDER_ROWS = 16, FIT_ROWS = 4 };

typedef struct work {
    const sr_ranking_request *request;
    sr_trials trials;     /* with the settings of stage align */
    sr_run_settings plan; /* of the copy: the attention */
    sr_model *copy, *aligned;
    bool *one;          /* (L): the layer that is replaced */
    double done, steps; /* of the progress */
} work;

static bool tell(work *w) {
    w->done++;
    return w->request->progress && w->request->progress(w->request->context, w->done / w->steps);
}

static srnn_status cost_of(work *w, sr_replacement_cost *cost, int64_t *targets, sr_model *model) {
    sr_trial trial = {.model = model};
    SR_TRY(sr_trials_run(&w->trials, &trial));
    *cost = trial.cost;
    *targets = trial.targets;
    return tell(w) ? SR_FAIL(SRNN_ERR_INTERRUPTED, "stopped") : SRNN_OK;
}

/* ---- one layer */

/* Alone, and the others from the teacher: as copied, then with the aligned attention. */
static srnn_status rank_with(work *w, sr_ranked_layer *layer, int number, sr_model *student) {
    int64_t targets;
    layer->cache_bytes = sr_layer_memory(&w->trials.teacher->config, number, w->trials.settings.T);
    layer->state_bytes = sr_layer_memory(&student->config, number, w->trials.settings.T);
    SR_TRY(sr_student_layers(student, w->copy, w->one));
    SR_TRY(cost_of(w, &layer->copied, &targets, student));
    SR_TRY(sr_student_layers(student, w->aligned, w->one));
    return cost_of(w, &layer->aligned, &targets, student);
}

static srnn_status rank_layer(work *w, sr_ranked_layer *layer, int number) {
    sr_student_parts parts;
    sr_model *student;
    w->one[number] = true;
    srnn_status status = sr_student_create(&student, &parts, w->trials.teacher, &w->plan, w->one);
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
    const sr_run_settings *s = &w->trials.settings;
    const sr_focus_request request = {.model = model,
                                      .ids = w->trials.ids,
                                      .targets = w->trials.targets,
                                      .rows = s->B < FOCUS_ROWS ? s->B : FOCUS_ROWS,
                                      .T = s->T,
                                      .window = r->window,
                                      .most_order = r->most_order,
                                      .tolerance = r->tolerance};
    void *memory;
    SR_TRY(sr_trials_read(&w->trials, 0));
    SR_TRY(sr_alloc_zero(&memory, (size_t)result->L, sizeof(sr_focus)));
    sr_focus *focus = memory;
    const srnn_status status = sr_focus_measure(focus, &request);
    for (int layer = 0; layer < result->L; layer++)
        result->layers[layer].focus = focus[layer];
    free(focus);
    return status;
}

/* ids and targets (most, T) receive the first rows of validation; *rows: how many there are. */
static srnn_status gather_rows(work *w, int32_t *ids, int32_t *targets, int most, int *rows) {
    const int T = w->trials.settings.T, B = w->trials.settings.B;
    *rows = 0;
    for (int64_t number = 0; number < w->trials.batches && *rows < most; number++) {
        const int more = most - *rows < B ? most - *rows : B;
        const size_t at = (size_t)*rows * (size_t)T, numbers = (size_t)more * (size_t)T;
        SR_TRY(sr_trials_read(&w->trials, number));
        memcpy(ids + at, w->trials.ids, numbers * sizeof *ids);
        memcpy(targets + at, w->trials.targets, numbers * sizeof *targets);
        *rows += more;
    }
    return SRNN_OK;
}

static bool tell_orders(void *context) {
    return tell(context);
}

/* A fifth of the rows is for the centres. */
static srnn_status order_rows(work *w, sr_ranking_result *result, sr_model *model,
                              sr_loss_order *orders, int32_t *ids) {
    const sr_ranking_request *r = w->request;
    const int T = w->trials.settings.T, most = ORDER_ROWS + FIT_ROWS;
    int32_t *targets = ids + (size_t)most * (size_t)T;
    int rows;
    SR_TRY(gather_rows(w, ids, targets, most, &rows));
    const int fit = rows * FIT_ROWS / most;
    const sr_loss_orders_request request = {.model = model,
                                            .ids = ids,
                                            .targets = targets,
                                            .rows = rows - fit,
                                            .fit_rows = fit,
                                            .T = T,
                                            .most_order = r->most_order,
                                            .tolerance = r->tolerable,
                                            .progress = tell_orders,
                                            .context = w};
    result->order_rows = rows - fit;
    result->tolerable = r->tolerable;
    return sr_loss_orders_measure(orders, &request);
}

static srnn_status order_on(work *w, sr_ranking_result *result, sr_model *model) {
    const size_t numbers = 2 * (ORDER_ROWS + FIT_ROWS) * (size_t)w->trials.settings.T;
    void *memory;
    SR_TRY(sr_alloc(&memory, numbers, sizeof(int32_t)));
    int32_t *ids = memory;
    srnn_status status = sr_alloc(&memory, (size_t)result->L, sizeof(sr_loss_order));
    if (status == SRNN_OK) {
        sr_loss_order *orders = memory;
        status = order_rows(w, result, model, orders, ids);
        for (int layer = 0; layer < result->L && status == SRNN_OK; layer++)
            result->layers[layer].orders = orders[layer];
        free(orders);
    }
    free(ids);
    return status;
}

static srnn_status look_at(work *w, sr_ranking_result *result, sr_model *model) {
    SR_TRY(focus_on(w, result, model));
    return order_on(w, result, model);
}

/* On the CPU, where logits are visited, whatever computes the rest. */
static srnn_status look_at_layers(work *w, sr_ranking_result *result) {
    sr_backend *cpu;
    sr_model *model;
    const sr_run_settings *s = &w->trials.settings;
    if (sr_device_is_host(w->trials.backend->device))
        return look_at(w, result, w->trials.teacher);
    SR_TRY(sr_backend_create(&cpu, &(sr_backend_settings){.threads = s->threads}));
    srnn_status status = sr_model_open(&model, cpu, s->teacher, NULL);
    if (status == SRNN_OK) {
        status = look_at(w, result, model);
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

static srnn_status open_rows(work *w) {
    const sr_ranking_request *r = w->request;
    sr_run_settings s;
    SR_TRY(sr_distil_plan(&w->plan, r->folder, SR_STAGE_COPY));
    SR_TRY(sr_distil_plan(&s, r->folder, SR_STAGE_ALIGN));
    s.threads = r->threads ? r->threads : s.threads;
    const srnn_status status = r->device ? sr_run_settings_text(&s.device, r->device) : SRNN_OK;
    if (status != SRNN_OK) {
        sr_run_settings_free(&s);
        return status;
    }
    return sr_trials_open(&w->trials, &s);
}

static srnn_status open_stage(sr_model **model, work *w, sr_stage stage) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, w->request->folder, sr_stage_name(stage)));
    return sr_model_open(model, w->trials.backend, path, NULL);
}

static srnn_status open_models(work *w) {
    void *memory;
    SR_TRY(open_stage(&w->copy, w, SR_STAGE_COPY));
    SR_TRY(open_stage(&w->aligned, w, SR_STAGE_ALIGN));
    SR_TRY(sr_alloc_zero(&memory, (size_t)w->trials.teacher->config.L, sizeof *w->one));
    w->one = memory;
    return SRNN_OK;
}

static srnn_status measure(work *w, sr_ranking_result *result) {
    sr_replacement_cost own;
    void *memory;
    const int L = w->trials.teacher->config.L;
    *result = (sr_ranking_result){.L = L, .T = w->trials.settings.T, .budget = NAN};
    w->steps = 3 * L + 1;
    SR_TRY(sr_alloc_zero(&memory, (size_t)L, sizeof *result->layers));
    result->layers = memory;
    SR_TRY(sr_run_settings_text(&result->attention, w->plan.attention));
    SR_TRY(cost_of(w, &own, &result->targets, w->trials.teacher));
    result->loss = own.loss;
    for (int layer = 0; layer < L; layer++)
        SR_TRY(rank_layer(w, &result->layers[layer], layer));
    SR_TRY(look_at_layers(w, result));
    if (w->request->budget < 0)
        return SRNN_OK;
    result->budget = w->request->budget;
    keep_layers(result);
    return SRNN_OK;
}

static void close_all(work *w) {
    free(w->one);
    sr_model_free(w->copy);
    sr_model_free(w->aligned);
    sr_trials_close(&w->trials);
    sr_run_settings_free(&w->plan);
}

srnn_status sr_ranking_measure(sr_ranking_result *result, const sr_ranking_request *request) {
    work w = {.request = request};
    *result = (sr_ranking_result){0};
    srnn_status status = open_rows(&w);
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
    free(result->attention);
    *result = (sr_ranking_result){0};
}
