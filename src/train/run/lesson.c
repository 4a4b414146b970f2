/* lesson.c: the teacher of a run, and which layers it teaches. */
#include "train/run/lesson.h"

#include "base/memory.h"
#include "model/config/layers.h"
#include "train/model_open.h"

#include <stdlib.h>

static srnn_status check(const sr_run_settings *s) {
    if (s->objective != SR_OBJECTIVE_TEXT && !*s->teacher)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "this objective needs a teacher: name one with "
                                          "--teacher");
    if (s->objective != SR_OBJECTIVE_TEXT && s->z_loss > 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "z-loss %g is a part of the cross entropy, which this objective has not: "
                       "leave it out, or learn with objective text",
                       s->z_loss);
    if (s->hidden_weight > 0 && s->objective != SR_OBJECTIVE_KL &&
        s->objective != SR_OBJECTIVE_REVERSE_KL)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "hidden-weight %g goes with objective kl or reverse-kl: leave it out",
                       s->hidden_weight);
    return SRNN_OK;
}

static srnn_status open_all(sr_run_lesson *l, sr_backend *backend, const sr_run_settings *s,
                            int L) {
    void *memory;
    SR_TRY(check(s));
    if (*s->attention_of) {
        SR_TRY(sr_alloc(&memory, (size_t)L, sizeof *l->layers));
        l->layers = memory;
        SR_TRY(sr_layers_parse(l->layers, L, s->attention_of));
    }
    l->lesson = (sr_lesson){.objective = (sr_objective)s->objective,
                            .temperature = s->temperature,
                            .z_loss = (float)s->z_loss,
                            .hidden_weight = (float)s->hidden_weight,
                            .layers = l->layers};
    return *s->teacher ? sr_model_open(&l->lesson.teacher, backend, s->teacher, NULL) : SRNN_OK;
}

srnn_status sr_run_lesson_open(sr_run_lesson *l, sr_backend *backend, const sr_run_settings *s,
                               int L) {
    *l = (sr_run_lesson){0};
    const srnn_status status = open_all(l, backend, s, L);
    if (status != SRNN_OK)
        sr_run_lesson_free(l);
    return status;
}

void sr_run_lesson_free(sr_run_lesson *l) {
    sr_model_free(l->lesson.teacher);
    free(l->layers);
    *l = (sr_run_lesson){0};
}
