/* students.c: a study of students: each variant with each budget, next to its controls. */
#include "study/plan/students.h"

#include "model/config/layers.h"
#include "train/run/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A small file could otherwise request billions. */
enum { MOST_STUDENTS = 10000 };

static srnn_status no_memory(void) {
    return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a study");
}

static srnn_status copy_text(char **to, const char *text) {
    *to = strdup(text);
    return *to ? SRNN_OK : no_memory();
}

/* ---- variants */

static srnn_status copy_variant(sr_study_variant *to, const sr_study_variant *from) {
    *to = (sr_study_variant){.descriptor = from->descriptor,
                             .mixer = from->mixer,
                             .by_layers = from->by_layers,
                             .fixed_state = from->fixed_state};
    SR_TRY(copy_text(&to->attention, from->attention));
    SR_TRY(copy_text(&to->system, from->name));
    for (size_t i = 0; i < from->settings.count; i++)
        SR_TRY(sr_pairs_add(&to->settings, from->settings.names[i], from->settings.values[i],
                            from->settings.lines[i]));
    return SRNN_OK;
}

/* The student, or the control from scratch, of a variant with a budget. */
static srnn_status add_pair(sr_study *study, const sr_study_variant *from, size_t budget,
                            sr_study_role role) {
    const sr_study_budget *b = &study->budgets[budget];
    sr_study_variant *to = &study->variants[study->variant_count++];
    char name[400];
    SR_TRY(copy_variant(to, from));
    to->role = role;
    to->fixed_state = to->fixed_state && !*b->keep;
    to->budget = budget;
    snprintf(name, sizeof name, "%.150s%s%.150s%s", from->name, study->budget_count > 1 ? ", " : "",
             study->budget_count > 1 ? b->name : "",
             role == SR_ROLE_SCRATCH ? " from scratch" : "");
    return copy_text(&to->name, name);
}

static srnn_status add_teacher(sr_study *study) {
    sr_study_variant *to = &study->variants[study->variant_count++];
    *to = (sr_study_variant){.role = SR_ROLE_TEACHER};
    SR_TRY(copy_text(&to->name, "teacher"));
    SR_TRY(copy_text(&to->system, "teacher"));
    if (study->teacher.model) { /* which has the attention of each of its layers */
        to->by_layers = true;
        return copy_text(&to->attention, "");
    }
    SR_TRY(copy_text(&to->attention, study->teacher.attention));
    return srnn_attention_parse(&to->descriptor, to->attention);
}

static srnn_status check(const sr_study *study) {
    const char *wrong = study->size_count         ? "sizes"
                        : study->rate_count       ? "learning-rates"
                        : study->tune_count       ? "tune"
                        : study->settle > 0       ? "settle"
                        : study->optimizers.count ? "optimizers"
                                                  : NULL;
    if (wrong)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: %s is not a key of a study with a teacher: its students have the "
                       "teacher's shape, and the rates of their stages",
                       study->where, wrong);
    for (size_t i = 0; i < study->variant_count; i++)
        if (study->variants[i].by_layers || study->variants[i].mixer != SR_MIXER_ATTENTION)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: variant %s: students have one attention in the layers that a "
                           "budget does not keep",
                           study->where, study->variants[i].name);
    for (size_t i = 0; i < study->variant_count; i++)
        if (strcmp(study->variants[i].name, "teacher") == 0)
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "%s: the teacher is a control of its own: give the variant \"teacher\" "
                           "another name",
                           study->where);
    return SRNN_OK;
}

/* A study without budgets replaces every layer. */
static srnn_status settle_budgets(sr_study *study) {
    if (study->budget_count)
        return SRNN_OK;
    study->budgets = calloc(1, sizeof *study->budgets);
    if (!study->budgets)
        return no_memory();
    study->budget_count = 1;
    SR_TRY(copy_text(&study->budgets[0].name, "all layers"));
    return copy_text(&study->budgets[0].keep, "");
}

srnn_status sr_study_add_students(sr_study *study) {
    if (!study->teacher.wanted)
        return study->budget_count || study->student_settings.count || study->scratch_settings.count
                   ? SR_FAIL(SRNN_ERR_FORMAT,
                             "%s: budgets, students and controls belong to a study with a teacher",
                             study->where)
                   : SRNN_OK;
    SR_TRY(check(study));
    SR_TRY(settle_budgets(study));
    sr_study_variant *systems = study->variants;
    const size_t count = study->variant_count;
    if (count > MOST_STUDENTS / study->budget_count)
        return SR_FAIL(SRNN_ERR_LIMIT,
                       "%s: %zu variants with %zu budgets are more than %d students", study->where,
                       count, study->budget_count, MOST_STUDENTS);
    study->variants = calloc(1 + 2 * count * study->budget_count, sizeof *study->variants);
    study->variant_count = 0;
    srnn_status status = study->variants ? add_teacher(study) : no_memory();
    for (sr_study_role role = SR_ROLE_STUDENT; role <= SR_ROLE_SCRATCH; role++)
        for (size_t v = 0; v < count; v++)
            for (size_t b = 0; b < study->budget_count && status == SRNN_OK; b++)
                status = add_pair(study, &systems[v], b, role);
    for (size_t v = 0; v < count; v++)
        sr_study_variant_free(&systems[v]);
    free(systems);
    study->baseline = 0;
    return status;
}

/* ---- settings */

/* What learns comes last, whatever the order in the file: a rank counts with adapters alone. */
static srnn_status set_request(sr_distil_request *request, const sr_pairs *pairs) {
    const char *learn = sr_distil_learns[SR_LEARN_ALL];
    bool known;
    for (size_t i = 0; i < pairs->count; i++)
        if (strcmp(pairs->names[i], "learn") == 0)
            learn = pairs->values[i];
        else
            SR_TRY(sr_distil_request_set(request, &known, pairs->names[i], pairs->values[i]));
    return sr_distil_request_set(request, &known, "learn", learn);
}

static int64_t steps_of_stages(const sr_distil_request *r) {
    int64_t steps = 0;
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++)
        steps += r->stages[stage] ? r->steps[stage] : 0;
    return steps;
}

srnn_status sr_study_plan_role(sr_study_run *run, const sr_study *study, const char *teacher) {
    const sr_study_variant *v = &study->variants[run->variant];
    sr_run_settings *s = &run->settings;
    sr_distil_request request = sr_distil_request_usual();
    SR_TRY(set_request(&request, &study->student_settings));
    s->steps = steps_of_stages(&request);
    s->stop_step = s->stop_tokens = 0;
    if (v->role == SR_ROLE_TEACHER) {
        s->hidden_weight = 0;
        SR_TRY(sr_run_settings_text(&s->attention, ""));
        return sr_run_settings_text(&s->model, teacher);
    }
    request.keep = study->budgets[v->budget].keep;
    if (v->role == SR_ROLE_SCRATCH) {
        request.stages[SR_STAGE_ALIGN] = request.stages[SR_STAGE_DISTIL] = false;
        request.stages[SR_STAGE_TUNE] = request.from_scratch = true;
        request.decays_of_teacher = false;
        request.steps[SR_STAGE_TUNE] = s->steps;
        request.rates[SR_STAGE_TUNE] = 0;
        sr_distil_learn(&request, SR_LEARN_ALL, 0);
    }
    run->request = request;
    return sr_run_settings_text(&s->teacher, teacher);
}

bool sr_study_is_stage_setting(const char *name) {
    sr_distil_request request = {0};
    bool known;
    (void)sr_distil_request_set(&request, &known, name, "");
    return known;
}

srnn_status sr_study_student_config(sr_model_config *config, const sr_model_config *teacher,
                                    const sr_study *study, const sr_study_run *run) {
    const sr_study_variant *v = &study->variants[run->variant];
    bool *replace = calloc((size_t)teacher->L, sizeof *replace);
    if (!replace)
        return no_memory();
    srnn_status status = sr_layers_parse(replace, teacher->L, study->budgets[v->budget].keep);
    int replaced = 0;
    for (int layer = 0; layer < teacher->L; layer++) {
        replace[layer] = !replace[layer];
        replaced += replace[layer];
    }
    if (status == SRNN_OK && !replaced)
        status = SR_FAIL(SRNN_ERR_FORMAT, "%s: budget %s keeps every layer: nothing is replaced",
                         study->where, study->budgets[v->budget].name);
    if (status == SRNN_OK)
        status = sr_student_config(config, teacher, &run->settings, replace);
    free(replace);
    return status;
}

/* ---- the teachers, as a study of their own */

srnn_status sr_study_teachers(sr_study *teachers, const sr_study *study, const char *text) {
    sr_pairs none = {0};
    SR_TRY(sr_study_read(teachers, study->where, study->text, strlen(study->text)));
    teachers->folder = study->folder ? strdup(study->folder) : NULL;
    if (study->folder && !teachers->folder)
        return no_memory();
    for (size_t v = 1; v < teachers->variant_count; v++)
        sr_study_variant_free(&teachers->variants[v]);
    teachers->variant_count = 1;
    teachers->variants[0].role = SR_ROLE_VARIANT;
    teachers->variants[0].settings = teachers->teacher.settings;
    teachers->teacher.settings = none;
    teachers->teacher.wanted = false;
    teachers->seed_count = 1;
    sr_word_list_free(&teachers->only);
    sr_word_list_free(&teachers->skip);
    for (size_t t = 0; t < teachers->task_count; t++)
        sr_word_list_free(&teachers->tasks[t].variants);
    return sr_study_expand(teachers, text);
}
