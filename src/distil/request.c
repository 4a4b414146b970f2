/* request.c: the settings of stages by name, and as a record. */
#include "base/text.h"
#include "distil/stages.h"
#include "files/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sr_distil_request sr_distil_request_usual(void) {
    return (sr_distil_request){.keep = "",
                               .stages = {true, true, true, false},
                               .steps = {0, 200, 1000, 200},
                               .decays_of_teacher = true};
}

/* "align-steps" of the stage that `suffix` follows; SR_STAGES: another name. */
static int stage_of(const char *name, const char *suffix) {
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++) {
        const char *own = sr_stage_name((sr_stage)stage);
        const size_t length = strlen(own);
        if (strncmp(name, own, length) == 0 && strcmp(name + length, suffix) == 0)
            return stage;
    }
    return SR_STAGES;
}

static srnn_status wrong(const char *name, const char *value, const char *wanted) {
    return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: \"%s\" is not %s", name, value, wanted);
}

static srnn_status set_steps(int64_t *steps, const char *name, const char *value) {
    char *end;
    errno = 0;
    const long long number = strtoll(value, &end, 10);
    if (end == value || *end || errno || number < 1 || number > INT64_MAX / 2)
        return wrong(name, value, "a number of steps");
    *steps = number;
    return SRNN_OK;
}

static srnn_status set_rate(double *rate, const char *name, const char *value) {
    char *end;
    const double number = strtod(value, &end);
    if (end == value || *end || !(number > 0 && number <= 1e3))
        return wrong(name, value, "a learning rate");
    *rate = number;
    return SRNN_OK;
}

/* *second = which of two words it is. */
static srnn_status set_choice(bool *second, const char *name, const char *value,
                              const char *const words[2]) {
    char both[64];
    snprintf(both, sizeof both, "%s or %s", words[0], words[1]);
    *second = strcmp(value, words[1]) == 0;
    return *second || strcmp(value, words[0]) == 0 ? SRNN_OK : wrong(name, value, both);
}

const char *const sr_distil_learns[] = {"all", "attention", "lora", NULL};

void sr_distil_learn(sr_distil_request *r, int learns, int rank) {
    r->attention_only = learns == SR_LEARN_ATTENTION;
    r->adapter_rank = learns == SR_LEARN_ADAPTERS ? rank : 0;
}

/* With a rank that was given before. */
static srnn_status set_learn(sr_distil_request *r, const char *value) {
    for (int i = 0; sr_distil_learns[i]; i++)
        if (strcmp(sr_distil_learns[i], value) == 0) {
            sr_distil_learn(r, i, r->adapter_rank ? r->adapter_rank : SR_ADAPTER_RANK);
            return SRNN_OK;
        }
    return wrong("learn", value, "all, attention or lora");
}

static srnn_status set_rank(sr_distil_request *r, const char *value) {
    int64_t rank = 0;
    SR_TRY(set_steps(&rank, "lora-rank", value));
    if (rank > 1 << 20)
        return wrong("lora-rank", value, "a rank");
    r->adapter_rank = (int)rank;
    return SRNN_OK;
}

srnn_status sr_distil_request_set(sr_distil_request *r, bool *known, const char *name,
                                  const char *value) {
    static const char *const ways[] = {"forward", "reverse"}, *const decays[] = {"usual",
                                                                                 "teacher"};
    const int steps = stage_of(name, "-steps"), rate = stage_of(name, "-rate");
    *known = true;
    if (steps < SR_STAGES)
        return set_steps(&r->steps[steps], name, value);
    if (rate < SR_STAGES)
        return set_rate(&r->rates[rate], name, value);
    if (strcmp(name, "stages") == 0)
        return sr_stages_parse(r->stages, value);
    if (strcmp(name, "kl") == 0)
        return set_choice(&r->reversed, name, value, ways);
    if (strcmp(name, "decays") == 0)
        return set_choice(&r->decays_of_teacher, name, value, decays);
    if (strcmp(name, "learn") == 0)
        return set_learn(r, value);
    if (strcmp(name, "lora-rank") == 0)
        return set_rank(r, value);
    *known = false;
    return SRNN_OK;
}

json_t *sr_distil_request_json(const sr_distil_request *r) {
    json_t *stages = json_array();
    for (int stage = SR_STAGE_ALIGN; stage < SR_STAGES; stage++)
        if (r->stages[stage])
            sr_json_append(stages, json_pack("{s:s, s:I, s:f}", "stage",
                                             sr_stage_name((sr_stage)stage), "steps",
                                             (json_int_t)r->steps[stage], "rate", r->rates[stage]));
    return json_pack("{s:s, s:i, s:o, s:s, s:b, s:b, s:b, s:i, s:b}", "format",
                     "softrnn-distil-request", "version", 1, "stages", stages, "keep", r->keep,
                     "reversed", r->reversed, "attention_only", r->attention_only, "from_scratch",
                     r->from_scratch, "adapter_rank", r->adapter_rank, "decays_of_teacher",
                     r->decays_of_teacher);
}
