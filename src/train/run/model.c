/* model.c: the model that a run trains, and its initial weights. */
#include "train/run/model.h"

#include "model/files/model_folder.h"
#include "model/mixers.h"
#include "train/run/checkpoint.h"
#include "train/run/tests.h"

#include <stdlib.h>
#include <string.h>

static srnn_status new_config(sr_model_config *config, sr_run_settings *s, int vocab) {
    SR_TRY(sr_run_settings_apply_preset(s));
    s->V = s->V ? s->V : vocab;
    int longest;
    SR_TRY(sr_run_tests_check(&longest, s, s->V));
    if (!*s->attention)
        SR_TRY(sr_run_settings_text(&s->attention, "softmax"));
    if (s->mlp == SR_MLP_GATED || s->mlp == SR_MLP_PLAIN)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "mlp %s is that of a model which --model names, with its own activation; a "
                       "new model has swiglu, gelu or none",
                       s->mlp == SR_MLP_GATED ? "gated" : "plain");
    *config = (sr_model_config){
        .V = s->V,
        .C = s->C,
        .F = s->F,
        .L = s->L,
        .H = s->H,
        .Hkv = s->Hkv,
        .D = s->D,
        .given = {.D = s->key_size, .Dv = s->value_size, .rank = s->rank, .levels = s->levels},
        .positions = s->T > longest ? s->T : longest,
        .mlp = (sr_mlp)s->mlp,
        .norm_epsilon = s->norm_epsilon,
        .rope_theta = s->rope_theta,
        .tied = s->tied,
        .bos = -1,
        .eos = -1};
    return sr_model_config_attention(config, s->attention);
}

/* ---- settings next to an existing model */

static srnn_status refuse(const char *name, double requested, double has, const char *where) {
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "%s %g does not go with the model in %s, which has %g: a model's shape cannot "
                   "be changed",
                   name, requested, where, has);
}

typedef struct size_setting {
    const char *name;
    int *requested; /* 0: not given */
    int has;
} size_setting;

static srnn_status settle_sizes(sr_run_settings *s, const sr_model_config *c, const char *where) {
    const size_setting sizes[] = {{"vocab", &s->V, c->V},      {"hidden", &s->C, c->C},
                                  {"mlp-hidden", &s->F, c->F}, {"layers", &s->L, c->L},
                                  {"heads", &s->H, c->H},      {"kv-heads", &s->Hkv, c->Hkv},
                                  {"head-size", &s->D, c->D}};
    if (*s->preset && strcmp(s->preset, SR_PRESET_DEFAULT) != 0)
        SR_TRY(sr_run_settings_apply_preset(s));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (*sizes[i].requested && *sizes[i].requested != sizes[i].has)
            return refuse(sizes[i].name, *sizes[i].requested, sizes[i].has, where);
        *sizes[i].requested = sizes[i].has;
    }
    return SRNN_OK;
}

typedef struct number_setting {
    const char *name;
    double requested, otherwise, has;
} number_setting;

/* These have effective defaults: only a value other than the default was certainly given. */
static srnn_status settle_others(sr_run_settings *s, const sr_run_settings *defaults,
                                 const sr_model_config *c, const char *where) {
    const number_setting numbers[] = {{"mlp", s->mlp, defaults->mlp, c->mlp},
                                      {"tied", s->tied, defaults->tied, c->tied},
                                      {"rope-theta", s->rope_theta, defaults->rope_theta,
                                       c->rope_theta},
                                      {"norm-epsilon", s->norm_epsilon, defaults->norm_epsilon,
                                       c->norm_epsilon}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].requested != numbers[i].has && numbers[i].requested != numbers[i].otherwise)
            return refuse(numbers[i].name, numbers[i].requested, numbers[i].has, where);
    s->mlp = (int)c->mlp;
    s->tied = c->tied;
    s->rope_theta = c->rope_theta;
    s->norm_epsilon = c->norm_epsilon;
    return SRNN_OK;
}

static srnn_status settle(sr_run_settings *s, const sr_model_config *c, const char *where) {
    sr_run_settings defaults = {0};
    SR_TRY(settle_sizes(s, c, where));
    srnn_status status = sr_run_settings_create(&defaults);
    if (status == SRNN_OK)
        status = settle_others(s, &defaults, c, where);
    sr_run_settings_free(&defaults);
    return status;
}

/* The requested attention, in which layers that have it already keep their sizes: a student's need
 * not be the usual ones, and a run that is resumed before its first checkpoint has the attention of
 * its model by name. */
static srnn_status take_attention(sr_model_config *config, const char *text) {
    sr_model_config before;
    srnn_status status = sr_model_config_copy(&before, config);
    if (status == SRNN_OK)
        status = sr_model_config_attention(config, text);
    const bool comparable = status == SRNN_OK && before.sizes && config->sizes;
    for (int layer = 0; comparable && layer < config->L; layer++)
        if (sr_attention_same(&before.attention[layer], &config->attention[layer]))
            config->sizes[layer] = before.sizes[layer];
    for (int layer = 0; comparable && before.parallel && config->parallel && layer < config->L;
         layer++)
        if (sr_attention_same(&before.parallel[layer], &config->parallel[layer]))
            config->parallel_sizes[layer] = before.parallel_sizes[layer];
    sr_model_config_free(&before);
    return status;
}

/* The requested attention, or the model's. */
static srnn_status settle_attention(sr_model_config *config, sr_run_settings *s) {
    if (*s->attention)
        return take_attention(config, s->attention);
    char *text = NULL;
    srnn_status status = sr_model_config_attention_text(&text, config);
    if (status == SRNN_OK)
        status = sr_run_settings_text(&s->attention, text);
    free(text);
    return status;
}

static bool same_mixers(const sr_model_config *a, const sr_model_config *b, int layer) {
    if (!a->parallel != !b->parallel)
        return false;
    return sr_attention_same(&a->attention[layer], &b->attention[layer]) &&
           (!a->parallel || sr_attention_same(&a->parallel[layer], &b->parallel[layer]));
}

/* The weights of a checkpoint belong to its attention. */
static srnn_status check_attention(const sr_model_config *config, const sr_run_settings *s,
                                   const char *checkpoint) {
    sr_model_config requested = {.L = config->L};
    srnn_status status =
        *s->attention ? sr_model_config_attention(&requested, s->attention) : SRNN_OK;
    const bool other = !sr_mixer_same(&requested, config);
    for (int layer = 0; status == SRNN_OK && requested.attention && layer < config->L; layer++)
        if (other || !same_mixers(&requested, config, layer))
            status = SR_FAIL(SRNN_ERR_FORMAT,
                             "%s: layer %d has another attention than run.yaml says; to continue "
                             "with another one start a new run with --model and --attention",
                             checkpoint, layer);
    sr_model_config_free(&requested);
    return status;
}

static srnn_status adjust(sr_model_config *config, sr_run_settings *s, const char *checkpoint) {
    if (!*checkpoint) {
        SR_TRY(settle(s, config, s->model));
        return settle_attention(config, s);
    }
    SR_TRY(settle(s, config, checkpoint));
    return check_attention(config, s, checkpoint);
}

/* Adapters are added to a model that is there. */
static srnn_status check_adapters(const sr_run_settings *s) {
    return !s->adapter_rank || *s->model
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_ARGUMENT,
                         "lora-rank %d: adapters need a model to be added to: "
                         "name it with --model",
                         s->adapter_rank);
}

static srnn_status check_tests(const sr_model_config *config, const sr_run_settings *s) {
    int longest;
    SR_TRY(sr_run_tests_check(&longest, s, config->V));
    if (longest > config->positions)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "test: rows of %d tokens; the model has %d positions",
                       longest, config->positions);
    return SRNN_OK;
}

srnn_status sr_run_model_config(sr_model_config *config, sr_run_settings *s, const char *checkpoint,
                                int vocab) {
    char folder[SR_PATH_BYTES];
    *config = (sr_model_config){0};
    SR_TRY(check_adapters(s));
    srnn_status status;
    if (!*checkpoint && !*s->model) {
        status = new_config(config, s, vocab);
    } else {
        /* A checkpoint that is resumed was checked when it was found. */
        SR_TRY(*checkpoint ? sr_path_print(folder, "%s", checkpoint)
                           : sr_checkpoint_model(folder, s->model));
        SR_TRY(sr_model_load_config(config, folder));
        status = adjust(config, s, checkpoint);
    }
    if (status == SRNN_OK && vocab > config->V)
        status = SR_FAIL(SRNN_ERR_ARGUMENT, "the data has %d tokens, the model only %d", vocab,
                         config->V);
    if (status == SRNN_OK)
        status = check_tests(config, s);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    return status;
}

srnn_status sr_run_model_begin(sr_model *model, size_t *fresh, const sr_run_settings *s) {
    char folder[SR_PATH_BYTES];
    size_t shared = 0;
    SR_TRY(sr_model_initialise(model, s->initial_range, (uint64_t)s->seed));
    if (*s->model) {
        SR_TRY(sr_checkpoint_model(folder, s->model));
        SR_TRY(sr_model_load_shared(model, &shared, folder));
    }
    *fresh = model->table.count - shared;
    return SRNN_OK;
}
