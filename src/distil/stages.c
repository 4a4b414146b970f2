/* stages.c: a trained model to an RNN in stages. */
#include "distil/stages.h"

#include "base/memory.h"
#include "base/text.h"
#include "data/tokenizer/files/copy.h"
#include "distil/decays.h"
#include "distil/tokens.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "model/config/layers.h"
#include "model/files/model_folder.h"
#include "train/model_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const names[SR_STAGES] = {"copy", "align", "distil", "tune"};

const char *sr_stage_name(sr_stage stage) {
    return names[stage];
}

static bool find_stage(int *stage, const char *name, size_t length) {
    for (*stage = 0; *stage < SR_STAGES; ++*stage)
        if (strlen(names[*stage]) == length && strncmp(name, names[*stage], length) == 0)
            return true;
    return false;
}

srnn_status sr_stages_parse(bool stages[SR_STAGES], const char *text) {
    for (int stage = 0; stage < SR_STAGES; stage++)
        stages[stage] = stage == SR_STAGE_COPY;
    for (const char *at = text; *at;) {
        const size_t length = strcspn(at, ",");
        int stage;
        if (!find_stage(&stage, at, length))
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           "stage \"%.*s\" is unknown: expected copy, align, distil or tune",
                           (int)length, at);
        stages[stage] = true;
        at += length + (at[length] == ',');
    }
    return SRNN_OK;
}

/* ---- places */

static srnn_status plan_path(char path[SR_PATH_BYTES], const char *folder, sr_stage stage) {
    return sr_path_print(path, "%s/plan/%s.yaml", folder, names[stage]);
}

/* Whether a stage has begun: its run.yaml is there. */
static srnn_status has_begun(bool *begun, const char *folder, sr_stage stage) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_print(path, "%s/%s/run.yaml", folder, names[stage]));
    *begun = access(path, F_OK) == 0;
    return SRNN_OK;
}

static srnn_status has_plan(bool *has, const char *folder, sr_stage stage) {
    char path[SR_PATH_BYTES];
    SR_TRY(plan_path(path, folder, stage));
    *has = access(path, F_OK) == 0;
    return SRNN_OK;
}

srnn_status sr_distil_has_plan(bool *has, const char *folder) {
    return has_plan(has, folder, SR_STAGE_COPY);
}

srnn_status sr_distil_has_stage(bool *has, const char *folder, sr_stage stage) {
    return has_plan(has, folder, stage);
}

/* ---- the plan */

/* replaced (L), which the caller frees in any case = the layers that are not kept. */
static srnn_status find_replaced(bool **replaced, int L, const char *keep) {
    void *memory;
    bool any = false;
    SR_TRY(sr_alloc(&memory, (size_t)L, sizeof **replaced));
    *replaced = memory;
    srnn_status status = sr_layers_parse(*replaced, L, keep);
    for (int layer = 0; layer < L; layer++) {
        (*replaced)[layer] = !(*replaced)[layer];
        any = any || (*replaced)[layer];
    }
    if (status == SRNN_OK && !any)
        status = SR_FAIL(SRNN_ERR_ARGUMENT, "every layer is kept: nothing is left to replace");
    return status;
}

/* Which layers are replaced, in the form of a list. */
static srnn_status name_replaced(char **list, const char *teacher, const char *keep) {
    enum { BYTES = 4 * SR_LAYERS_MAX };
    sr_backend *cpu;
    sr_model *model = NULL;
    bool *replaced = NULL;
    void *memory = NULL;
    SR_TRY(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}));
    srnn_status status = sr_model_open(&model, cpu, teacher, NULL);
    if (status == SRNN_OK)
        status = find_replaced(&replaced, model->config.L, keep);
    if (status == SRNN_OK)
        status = sr_alloc(&memory, BYTES, 1);
    if (status == SRNN_OK) {
        sr_layers_print(memory, BYTES, replaced, model->config.L);
        *list = memory;
    }
    free(replaced);
    sr_model_free(model);
    sr_backend_free(cpu);
    return status;
}

/* Align moves new numbers, distil and tune also what the teacher has learned, which a larger rate
 * spoils. */
static double rate_of(const sr_distil_request *r, sr_stage stage) {
    if (r->rates[stage] > 0)
        return r->rates[stage];
    return r->common->learning_rate * (stage == SR_STAGE_ALIGN ? SR_ALIGN_RATE : 1);
}

/* The settings of stage `stage` of the request, in settings that are copies of the common
 * ones. */
static srnn_status set_stage(sr_run_settings *s, const sr_distil_request *r, sr_stage stage,
                             const char *replaced) {
    const bool all = stage != SR_STAGE_ALIGN && !r->attention_only;
    static const int objectives[] = {SR_OBJECTIVE_TEXT, SR_OBJECTIVE_LAYERS, SR_OBJECTIVE_KL,
                                     SR_OBJECTIVE_TEXT};
    s->objective =
        stage == SR_STAGE_DISTIL && r->reversed ? SR_OBJECTIVE_REVERSE_KL : objectives[stage];
    SR_TRY(sr_run_settings_text(&s->attention_of, all ? "" : replaced));
    SR_TRY(sr_run_settings_text(&s->attention, "")); /* that of the copy */
    s->adapter_rank = stage == SR_STAGE_ALIGN ? 0 : r->adapter_rank;
    s->hidden_weight = stage == SR_STAGE_DISTIL ? s->hidden_weight : 0;
    s->steps = r->steps[stage];
    s->learning_rate = rate_of(r, stage);
    s->warmup = s->warmup < s->steps / 10 ? s->warmup : s->steps / 10;
    return SRNN_OK;
}

static srnn_status write_stage(const char *folder, const sr_run_settings *common,
                               const sr_distil_request *r, sr_stage stage, const char *replaced) {
    char path[SR_PATH_BYTES];
    sr_run_settings s;
    SR_TRY(sr_run_settings_create(&s));
    srnn_status status = sr_run_settings_copy(&s, common);
    if (status == SRNN_OK)
        status = set_stage(&s, r, stage, replaced);
    if (status == SRNN_OK)
        status = plan_path(path, folder, stage);
    if (status == SRNN_OK)
        status = sr_run_settings_write(&s, path);
    sr_run_settings_free(&s);
    return status;
}

/* The copy's plan has the attention and the layers that get it. It is written last: where it is,
 * the plan is complete. */
static srnn_status write_copy(const char *folder, sr_run_settings *common, const char *replaced) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_run_settings_text(&common->attention_of, replaced));
    SR_TRY(plan_path(path, folder, SR_STAGE_COPY));
    return sr_run_settings_write(common, path);
}

static srnn_status write_stages(const char *folder, sr_run_settings *common,
                                const sr_distil_request *r, const char *replaced) {
    char last[SR_PATH_BYTES];
    SR_TRY(sr_path_join(last, folder, "plan"));
    SR_TRY(sr_json_replace(sr_distil_request_json(r), last, "request.json", JSON_INDENT(1)));
    SR_TRY(sr_path_join(last, folder, names[SR_STAGE_COPY]));
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++) {
        if (!r->stages[stage])
            continue;
        SR_TRY(sr_run_settings_text(&common->model, last));
        SR_TRY(write_stage(folder, common, r, (sr_stage)stage, replaced));
        SR_TRY(sr_path_join(last, folder, names[stage]));
    }
    SR_TRY(sr_run_settings_text(&common->model, ""));
    return write_copy(folder, common, replaced);
}

static srnn_status write_plan(const char *folder, sr_run_settings *common,
                              const sr_distil_request *r) {
    char plan[SR_PATH_BYTES], *replaced = NULL;
    SR_TRY(sr_run_settings_copy(common, r->common));
    SR_TRY(sr_run_settings_absolute(common));
    SR_TRY(name_replaced(&replaced, common->teacher, r->keep));
    srnn_status status = sr_path_join(plan, folder, "plan");
    if (status == SRNN_OK)
        status = sr_folders_make(plan);
    if (status == SRNN_OK)
        status = sr_distil_tokens(common, folder);
    if (status == SRNN_OK)
        status = write_stages(folder, common, r, replaced);
    free(replaced);
    return status;
}

/* ---- the copy */

static srnn_status keep_tokenizer(const char *folder, const sr_run_settings *s) {
    char name[SR_PATH_BYTES];
    if (*s->tokenizer)
        return sr_tokenizer_copy_into(folder, s->tokenizer);
    SR_TRY(sr_model_tokenizer_path(name, s->teacher));
    return *name ? sr_tokenizer_copy_into(folder, name) : SRNN_OK;
}

/* Under another name first: a folder called copy is complete. */
static srnn_status save_copy(const char *folder, const sr_model *student,
                             const sr_run_settings *s) {
    char writing[SR_PATH_BYTES], path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(writing, folder, ".copy"));
    SR_TRY(sr_path_join(path, folder, names[SR_STAGE_COPY]));
    SR_TRY(sr_folder_remove(writing));
    SR_TRY(sr_folder_make(writing));
    SR_TRY(sr_model_save(student, writing, SR_DTYPE_F32));
    SR_TRY(keep_tokenizer(writing, s));
    return sr_folder_rename(writing, path);
}

/* *request = what was requested of the folder; NULL if an earlier version made it. */
static srnn_status read_request(json_t **request, const char *folder) {
    char path[SR_PATH_BYTES];
    *request = NULL;
    SR_TRY(sr_path_join(path, folder, "plan"));
    return sr_path_has(path, "request.json")
               ? sr_json_read(request, path, "request.json", "softrnn-distil-request")
               : SRNN_OK;
}

srnn_status sr_distil_is_from_scratch(bool *from_scratch, const char *folder) {
    json_t *request;
    SR_TRY(read_request(&request, folder));
    *from_scratch = json_is_true(json_object_get(request, "from_scratch"));
    json_decref(request);
    return SRNN_OK;
}

/* What the request changes in a copy. */
static srnn_status change_copy(sr_model *student, const char *folder, const sr_run_settings *s,
                               const bool *replaced) {
    json_t *request;
    size_t set;
    SR_TRY(read_request(&request, folder));
    const bool from_scratch = json_is_true(json_object_get(request, "from_scratch"));
    const bool decays = json_is_true(json_object_get(request, "decays_of_teacher"));
    json_decref(request);
    if (decays)
        return sr_student_start_decays(student, &set, s, replaced);
    if (!from_scratch)
        return SRNN_OK;
    SR_TRY(sr_model_initialise(student, s->initial_range, (uint64_t)s->seed));
    return sr_model_narrow(student);
}

static srnn_status copy_with(sr_backend *cpu, const char *folder, const sr_run_settings *s,
                             sr_student_parts *parts) {
    sr_model *teacher, *student = NULL;
    void *memory = NULL;
    SR_TRY(sr_model_open(&teacher, cpu, s->teacher, NULL));
    srnn_status status = sr_alloc(&memory, (size_t)teacher->config.L, sizeof(bool));
    if (status == SRNN_OK)
        status = sr_layers_parse(memory, teacher->config.L, s->attention_of);
    if (status == SRNN_OK)
        status = sr_student_create(&student, parts, teacher, s, memory);
    if (status == SRNN_OK)
        status = change_copy(student, folder, s, memory);
    if (status == SRNN_OK)
        status = save_copy(folder, student, s);
    free(memory);
    sr_model_free(student);
    sr_model_free(teacher);
    return status;
}

static srnn_status copy(const char *folder, const sr_run_settings *s, sr_student_parts *parts) {
    sr_backend *cpu;
    SR_TRY(sr_backend_create(&cpu, &(sr_backend_settings){.threads = s->threads}));
    const srnn_status status = copy_with(cpu, folder, s, parts);
    sr_backend_free(cpu);
    return status;
}

/* ---- beginning and continuing */

static srnn_status check_request(const sr_distil_request *r) {
    if (!*r->common->teacher)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "no teacher: name a model with --teacher");
    if (!*r->common->attention)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "no attention: name the student's with --attention");
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++)
        if (r->stages[stage] && r->steps[stage] < 1)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "stage %s needs at least one step", names[stage]);
    return SRNN_OK;
}

/* The folder's name from the root, so that stages find each other from everywhere. */
static srnn_status absolute(char path[SR_PATH_BYTES], const char *folder) {
    SR_TRY(sr_folders_make(folder));
    char *real = realpath(folder, NULL);
    if (!real)
        return SR_FAIL(SRNN_ERR_IO, "%s: has no path from the root", folder);
    const srnn_status status = sr_path_print(path, "%s", real);
    free(real);
    return status;
}

srnn_status sr_distil_begin(const char *folder, const sr_distil_request *request,
                            sr_student_parts *parts) {
    char path[SR_PATH_BYTES];
    sr_run_settings common;
    bool planned;
    SR_TRY(check_request(request));
    SR_TRY(absolute(path, folder));
    SR_TRY(has_plan(&planned, path, SR_STAGE_COPY));
    if (planned)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: a student is being made in this folder; continue it with --resume",
                       folder);
    SR_TRY(sr_run_settings_create(&common));
    srnn_status status = write_plan(path, &common, request);
    if (status == SRNN_OK)
        status = copy(path, &common, parts);
    sr_run_settings_free(&common);
    return status;
}

srnn_status sr_distil_plan(sr_run_settings *s, const char *folder, sr_stage stage) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_run_settings_create(s));
    srnn_status status = plan_path(path, folder, stage);
    if (status == SRNN_OK)
        status = sr_run_settings_read(s, path);
    if (status != SRNN_OK)
        sr_run_settings_free(s);
    return status;
}

srnn_status sr_distil_continue(const char *folder) {
    char path[SR_PATH_BYTES];
    sr_run_settings s;
    sr_student_parts parts;
    bool planned;
    SR_TRY(has_plan(&planned, folder, SR_STAGE_COPY));
    if (!planned)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: no student is being made in this folder", folder);
    SR_TRY(sr_path_print(path, "%s/%s/config.json", folder, names[SR_STAGE_COPY]));
    if (access(path, F_OK) == 0)
        return SRNN_OK;
    SR_TRY(sr_distil_plan(&s, folder, SR_STAGE_COPY));
    const srnn_status status = copy(folder, &s, &parts);
    sr_run_settings_free(&s);
    return status;
}

/* ---- whether a plan is that of a request */

static srnn_status other_plan(const char *folder, const char *what) {
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "%s: there is a student with another %s in this folder; use another folder, or "
                   "remove it",
                   folder, what);
}

/* What the plan derived is taken from it: the layers, and the text in the teacher's tokens. */
static srnn_status check_settings(const char *folder, const sr_run_settings *planned,
                                  const sr_run_settings *common) {
    sr_run_settings s;
    SR_TRY(sr_run_settings_create(&s));
    srnn_status status = sr_run_settings_copy(&s, common);
    if (status == SRNN_OK)
        status = sr_run_settings_absolute(&s);
    if (status == SRNN_OK)
        status = sr_run_settings_text(&s.attention_of, planned->attention_of);
    if (status == SRNN_OK && sr_path_has(folder, "tokens"))
        status = sr_run_settings_text(&s.data, planned->data);
    if (status == SRNN_OK && sr_path_has(folder, "tokens"))
        status = sr_run_settings_text(&s.validation, planned->validation);
    const char *differs = status == SRNN_OK ? sr_run_settings_difference(planned, &s) : NULL;
    sr_run_settings_free(&s);
    return differs ? other_plan(folder, differs) : status;
}

srnn_status sr_distil_check(const char *folder, const sr_distil_request *request) {
    bool planned;
    json_t *before, *now = sr_distil_request_json(request);
    sr_run_settings s;
    SR_TRY(has_plan(&planned, folder, SR_STAGE_COPY));
    srnn_status status = planned ? read_request(&before, folder) : SRNN_OK;
    if (planned && status == SRNN_OK) {
        status = json_equal(before, now) ? SRNN_OK : other_plan(folder, "request");
        json_decref(before);
    }
    json_decref(now);
    SR_TRY(status);
    if (!planned)
        return SRNN_OK;
    SR_TRY(sr_distil_plan(&s, folder, SR_STAGE_COPY));
    status = check_settings(folder, &s, request->common);
    sr_run_settings_free(&s);
    return status;
}

static srnn_status later_begun(bool *begun, const char *folder, sr_stage stage) {
    *begun = false;
    for (int later = (int)stage + 1; later < SR_STAGES && !*begun; later++)
        SR_TRY(has_begun(begun, folder, (sr_stage)later));
    return SRNN_OK;
}

/* As a run is started: what ends may change is changed in the settings. */
static srnn_status start(sr_run **run, const char *path, sr_run_settings *s,
                         const sr_run_ends *ends) {
    s->ranks = ends->ranks;
    s->threads = ends->threads ? ends->threads : s->threads;
    if (ends->device)
        SR_TRY(sr_run_settings_text(&s->device, ends->device));
    return sr_run_start(run, path, s);
}

srnn_status sr_distil_open(sr_run **run, const char *folder, sr_stage stage,
                           const sr_run_ends *ends) {
    char path[SR_PATH_BYTES];
    sr_run_settings s;
    bool planned, begun, over;
    *run = NULL;
    SR_TRY(has_plan(&planned, folder, stage));
    SR_TRY(later_begun(&over, folder, stage));
    if (!planned || over)
        return SRNN_OK;
    SR_TRY(sr_path_join(path, folder, names[stage]));
    SR_TRY(has_begun(&begun, folder, stage));
    if (begun)
        return sr_run_resume(run, path, ends);
    SR_TRY(sr_distil_plan(&s, folder, stage));
    const srnn_status status = start(run, path, &s, ends);
    sr_run_settings_free(&s);
    return status;
}

srnn_status sr_distil_student(char path[SR_PATH_BYTES], const char *folder) {
    for (int stage = SR_STAGES - 1; stage >= 0; stage--) {
        bool planned;
        SR_TRY(has_plan(&planned, folder, (sr_stage)stage));
        if (planned)
            return sr_path_join(path, folder, names[stage]);
    }
    return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: no student is being made in this folder", folder);
}
