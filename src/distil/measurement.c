/* measurement.c: a student next to its teacher, as a record. */
#include "distil/measurement.h"

#include "base/memory.h"
#include "distil/trials.h"
#include "files/json.h"
#include "model/config/layers.h"
#include "train/model_open.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct work {
    const sr_measurement_request *request;
    sr_run_settings plan; /* of the copy */
    sr_trials trials;
    bool *replaced;      /* (L) */
    bool *one;           /* (L): the layer that is in the teacher alone */
    double *by_position; /* (T) */
    bool from_scratch;
    json_t *record;
} work;

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

/* ---- positions */

/* Where the next range of positions ends: 1, 2, 3, 4, 6, 8, 12, 16, .. */
static int next_edge(int edge) {
    int octave = 1;
    while (2 * octave <= edge)
        octave *= 2;
    return edge < 2 ? edge + 1 : edge == octave ? octave + octave / 2 : 2 * octave;
}

/* Mean losses over ranges of positions: of a position the tokens before it are its context. */
static json_t *positions_json(const double *by_position, int T) {
    json_t *list = json_array();
    for (int from = 0, to; from < T; from = to) {
        double sum = 0, count = 0;
        to = next_edge(from) < T ? next_edge(from) : T;
        for (int p = from; p < to; p++)
            if (isfinite(by_position[p])) {
                sum += by_position[p];
                count++;
            }
        sr_json_append(list, json_pack("{s:i, s:i, s:o}", "from", from, "to", to, "loss",
                                       count > 0 ? number(sum / count) : json_null()));
    }
    return list;
}

/* ---- one model */

static srnn_status stage_model(sr_model **model, work *w, sr_stage stage) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, w->request->folder, sr_stage_name(stage)));
    return sr_model_open(model, w->trials.backend, path, NULL);
}

static json_t *trial_json(const work *w, const sr_trial *trial) {
    json_t *object =
        json_pack("{s:o, s:o, s:o}", "loss", number(trial->cost.loss), "kl", number(trial->cost.kl),
                  "accuracy", number((double)trial->correct / (double)trial->targets));
    if (trial->by_position)
        sr_json_set(object, "positions", positions_json(trial->by_position, w->trials.settings.T));
    return object;
}

/* Adds a trial to the record as `name`. */
static srnn_status add_trial(work *w, const char *name, sr_trial trial) {
    SR_TRY(sr_trials_run(&w->trials, &trial));
    sr_json_set(w->record, name, trial_json(w, &trial));
    if (!json_object_get(w->record, "targets"))
        sr_json_set(w->record, "targets", json_integer((json_int_t)trial.targets));
    return SRNN_OK;
}

/* ---- the student */

/* A student whose kept layers have the attention of replaced ones cannot lose the state of some. */
static srnn_status add_zeroed(work *w, sr_model *student) {
    const srnn_status status =
        add_trial(w, "zeroed", (sr_trial){.model = student, .isolated = w->replaced});
    if (status != SRNN_ERR_UNSUPPORTED)
        return status;
    sr_json_set(w->record, "zeroed", json_null());
    return SRNN_OK;
}

static void add_memory(work *w, const sr_model *student) {
    const sr_model_config *teacher = &w->trials.teacher->config;
    double cache = 0, state = 0;
    for (int layer = 0; layer < teacher->L; layer++) {
        cache += sr_layer_memory(teacher, layer, w->trials.settings.T);
        state += sr_layer_memory(&student->config, layer, w->trials.settings.T);
    }
    sr_json_set(w->record, "cache_bytes", number(cache));
    sr_json_set(w->record, "state_bytes", number(state));
}

static srnn_status add_student(work *w, sr_stage last) {
    sr_model *student;
    SR_TRY(stage_model(&student, w, last));
    add_memory(w, student);
    srnn_status status =
        add_trial(w, "student", (sr_trial){.model = student, .by_position = w->by_position});
    if (status == SRNN_OK)
        status = add_zeroed(w, student);
    sr_model_free(student);
    return status;
}

static srnn_status add_copy(work *w) {
    sr_model *copy;
    SR_TRY(stage_model(&copy, w, SR_STAGE_COPY));
    const srnn_status status =
        add_trial(w, "copied", (sr_trial){.model = copy, .by_position = w->by_position});
    sr_model_free(copy);
    return status;
}

/* ---- layers */

static json_t *cost_json(const sr_trial *trial) {
    return json_pack("{s:o, s:o}", "loss", number(trial->cost.loss), "kl", number(trial->cost.kl));
}

/* Models whose layers stand in the teacher. */
typedef struct replacements {
    sr_model *copy, *aligned; /* NULL: align is no stage */
} replacements;

static srnn_status try_layer(work *w, json_t *object, const char *name, sr_trial *trial,
                             const sr_model *from) {
    SR_TRY(sr_student_layers(trial->model, from, w->one));
    SR_TRY(sr_trials_run(&w->trials, trial));
    sr_json_set(object, name, cost_json(trial));
    return SRNN_OK;
}

/* The teacher with this layer alone replaced: as copied, and as aligned if that is a stage. */
static srnn_status add_layer(work *w, json_t *list, int layer, const replacements *from) {
    sr_student_parts parts;
    sr_trial trial = {0};
    json_t *object = json_pack("{s:i}", "layer", layer);
    sr_json_append(list, object);
    w->one[layer] = true;
    srnn_status status =
        sr_student_create(&trial.model, &parts, w->trials.teacher, &w->plan, w->one);
    if (status == SRNN_OK)
        status = try_layer(w, object, "copied", &trial, from->copy);
    if (status == SRNN_OK && from->aligned)
        status = try_layer(w, object, "aligned", &trial, from->aligned);
    sr_model_free(trial.model);
    w->one[layer] = false;
    return status;
}

static srnn_status add_layers(work *w, bool has_align) {
    const int L = w->trials.teacher->config.L;
    replacements from = {NULL, NULL};
    json_t *list = json_array();
    sr_json_set(w->record, "layers", list);
    srnn_status status = stage_model(&from.copy, w, SR_STAGE_COPY);
    if (status == SRNN_OK && has_align)
        status = stage_model(&from.aligned, w, SR_STAGE_ALIGN);
    for (int layer = 0; layer < L && status == SRNN_OK; layer++)
        if (w->replaced[layer])
            status = add_layer(w, list, layer, &from);
    sr_model_free(from.copy);
    sr_model_free(from.aligned);
    return status;
}

/* ---- stages */

/* The last stage of the plan, and whether align is one. */
static srnn_status find_stages(const work *w, sr_stage *last, bool *has_align) {
    *last = SR_STAGE_COPY;
    *has_align = false;
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++) {
        bool has;
        SR_TRY(sr_distil_has_stage(&has, w->request->folder, (sr_stage)stage));
        *last = has ? (sr_stage)stage : *last;
        if (stage == SR_STAGE_ALIGN)
            *has_align = has;
    }
    return SRNN_OK;
}

static srnn_status take_arrays(work *w) {
    void *memory;
    const size_t L = (size_t)w->trials.teacher->config.L;
    SR_TRY(sr_alloc_zero(&memory, L, sizeof(bool)));
    w->replaced = memory;
    SR_TRY(sr_alloc_zero(&memory, L, sizeof(bool)));
    w->one = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)w->trials.settings.T, sizeof(double)));
    w->by_position = memory;
    return sr_layers_parse(w->replaced, (int)L, w->plan.attention_of);
}

static srnn_status open_all(work *w, sr_stage last) {
    const sr_measurement_request *r = w->request;
    sr_run_settings s;
    SR_TRY(sr_distil_plan(&w->plan, r->folder, SR_STAGE_COPY));
    SR_TRY(sr_distil_is_from_scratch(&w->from_scratch, r->folder));
    SR_TRY(sr_distil_plan(&s, r->folder, last));
    s.threads = r->threads ? r->threads : s.threads;
    const srnn_status status = r->device ? sr_run_settings_text(&s.device, r->device) : SRNN_OK;
    if (status != SRNN_OK) {
        sr_run_settings_free(&s);
        return status;
    }
    SR_TRY(sr_trials_open(&w->trials, &s));
    if (w->trials.split != SR_SPLIT_VALIDATION)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: has no rows that validate, and what a student is worth is not measured "
                       "on those it has learned: name others as validation, or give a "
                       "validation-share",
                       w->trials.settings.data);
    return take_arrays(w);
}

static srnn_status measure(work *w) {
    sr_stage last;
    bool has_align;
    SR_TRY(find_stages(w, &last, &has_align));
    SR_TRY(open_all(w, last));
    w->record = json_pack("{s:s, s:i, s:i, s:b}", "format", "softrnn-student", "version", 1,
                          "length", w->trials.settings.T, "from_scratch", w->from_scratch);
    SR_TRY(add_trial(w, "teacher",
                     (sr_trial){.model = w->trials.teacher, .by_position = w->by_position}));
    SR_TRY(add_student(w, last));
    if (w->from_scratch)
        return SRNN_OK;
    SR_TRY(add_copy(w));
    return add_layers(w, has_align);
}

srnn_status sr_measurement_make(json_t **record, const sr_measurement_request *request) {
    work w = {.request = request};
    srnn_status status = measure(&w);
    if (status == SRNN_OK)
        status = sr_json_complete(w.record, "what a student is worth");
    free(w.replaced);
    free(w.one);
    free(w.by_position);
    sr_trials_close(&w.trials);
    sr_run_settings_free(&w.plan);
    *record = status == SRNN_OK ? w.record : NULL;
    if (status != SRNN_OK)
        json_decref(w.record);
    return status;
}
