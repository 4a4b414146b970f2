/* rope.c: rotary position in config.json. */
#include "model/config/rope.h"

#include <math.h>
#include <string.h>

static void read_original(sr_config_reader *r, const json_t *scaling, sr_model_config *config) {
    static const char name[] = "original_max_position_embeddings";
    const double original =
        sr_config_real(r, r->root, name, sr_config_real(r, scaling, name, config->positions));
    if (!(original >= 1 && original <= SR_POSITIONS_MAX))
        sr_config_refuse(r, name, "makes no sense");
    else
        config->rope_scaling.original_positions = (int64_t)original;
}

static void read_llama3(sr_config_reader *r, const json_t *scaling, sr_model_config *config) {
    sr_rope_scaling *s = &config->rope_scaling;
    s->kind = SR_ROPE_LLAMA3;
    s->low_frequency_factor = sr_config_real(r, scaling, "low_freq_factor", 1.0);
    s->high_frequency_factor = sr_config_real(r, scaling, "high_freq_factor", 4.0);
    read_original(r, scaling, config);
    if (!(s->high_frequency_factor > s->low_frequency_factor))
        sr_config_refuse(r, "rope_scaling", "needs high_freq_factor above low_freq_factor");
}

static double yarn_amplitude(double factor, double size) {
    return factor <= 1 ? 1.0 : 0.1 * size * log(factor) + 1.0;
}

/* Zero stands for "not given" where transformers takes it so. */
static double given(sr_config_reader *r, const json_t *scaling, const char *key, double otherwise) {
    const double number = sr_config_real(r, scaling, key, 0);
    return number != 0 ? number : otherwise;
}

static void read_yarn(sr_config_reader *r, const json_t *scaling, const json_t *outer,
                      sr_model_config *config) {
    sr_rope_scaling *s = &config->rope_scaling;
    s->kind = SR_ROPE_YARN;
    read_original(r, scaling, config);
    if (!sr_config_value(scaling, "factor") && s->original_positions)
        s->factor = (double)config->positions / (double)s->original_positions;
    s->fast_rotations = given(r, scaling, "beta_fast", 32);
    s->slow_rotations = given(r, scaling, "beta_slow", 1);
    s->fractional = !sr_config_flag(r, outer, "truncate", true);
    const double over = given(r, scaling, "mscale", 0),
                 under = given(r, scaling, "mscale_all_dim", 0);
    const double inferred = over != 0 && under != 0
                                ? yarn_amplitude(s->factor, over) / yarn_amplitude(s->factor, under)
                                : yarn_amplitude(s->factor, 1);
    s->amplitude = sr_config_real(r, scaling, "attention_factor", inferred);
    if (!(s->slow_rotations > 0 && s->fast_rotations >= s->slow_rotations) ||
        !isfinite(s->amplitude) || !(config->rope_theta > 1))
        sr_config_refuse(r, "rope_scaling",
                         "of yarn needs beta_fast of beta_slow or more, both above 0, a finite "
                         "attention_factor, and a rope_theta above 1");
}

/* Divisors of the frequencies of short texts. Those of texts beyond the original positions are
 * others, for all of their tokens: such texts are refused. */
static void read_longrope(sr_config_reader *r, const json_t *scaling, sr_model_config *config,
                          int width) {
    sr_rope_scaling *s = &config->rope_scaling;
    const json_t *list = sr_config_value(scaling, "short_factor"), *value;
    size_t i;
    s->kind = SR_ROPE_LONG;
    read_original(r, scaling, config);
    if (!json_is_array(list) || json_array_size(list) > SR_ROPE_DIVISORS ||
        s->original_positions < 2)
        sr_config_refuse(r, "rope_scaling", "of longrope needs short_factor, a list of numbers");
    if (width && json_array_size(list) != (size_t)width / 2)
        sr_config_refuse(r, "rope_scaling",
                         "of longrope needs short_factor with one number for each angle, half the "
                         "rotated channels of a head");
    json_array_foreach(list, i, value) {
        if (!(json_number_value(value) > 0))
            sr_config_refuse(r, "rope_scaling", "of longrope needs a short_factor above 0");
        if (i < SR_ROPE_DIVISORS)
            s->divisors[i] = json_number_value(value);
    }
    const double factor = sr_config_value(scaling, "factor")
                              ? s->factor
                              : (double)config->positions / (double)s->original_positions;
    const double inferred =
        factor <= 1 ? 1 : sqrt(1 + log(factor) / log((double)s->original_positions));
    s->amplitude = sr_config_real(r, scaling, "attention_factor", inferred);
    if (config->positions > s->original_positions)
        config->positions = (int)s->original_positions;
}

static const json_t *object_of(sr_config_reader *r, const char *key) {
    const json_t *found = sr_config_value(r->root, key);
    if (found && !json_is_object(found))
        sr_config_refuse(r, key, "is not an object");
    return json_object_size(found) ? found : NULL;
}

const json_t *sr_config_rope_object(sr_config_reader *r) {
    const json_t *scaling = object_of(r, "rope_scaling");
    const json_t *parameters = object_of(r, "rope_parameters");
    return scaling ? scaling : parameters;
}

const char *sr_config_rope_kind(sr_config_reader *r, const json_t *scaling) {
    return sr_config_word(r, scaling, "rope_type", sr_config_word(r, scaling, "type", "default"));
}

void sr_config_rope_read(sr_config_reader *r, sr_model_config *config) {
    const json_t *scaling = sr_config_rope_object(r);
    config->rope_theta =
        sr_config_real(r, scaling, "rope_theta", sr_config_real(r, r->root, "rope_theta", 10000.0));
    /* A layer's text may rotate a part of its heads. */
    const int width = sr_config_value(r->root, "softrnn_attention") ? 0 : config->D;
    if (scaling)
        sr_config_rope_set(r, config, scaling, scaling, sr_config_rope_kind(r, scaling), width);
}

void sr_config_rope_set(sr_config_reader *r, sr_model_config *config, const json_t *scaling,
                        const json_t *outer, const char *kind, int width) {
    config->rope_scaling.factor = sr_config_real(r, scaling, "factor", 1.0);
    if (strcmp(kind, "linear") == 0)
        config->rope_scaling.kind = SR_ROPE_LINEAR;
    else if (strcmp(kind, "llama3") == 0)
        read_llama3(r, scaling, config);
    else if (strcmp(kind, "yarn") == 0)
        read_yarn(r, scaling, outer, config);
    else if (strcmp(kind, "longrope") == 0 || strcmp(kind, "su") == 0)
        read_longrope(r, scaling, config, width);
    else if (strcmp(kind, "default") != 0 &&
             strcmp(kind, "dynamic") != 0) /* which changes nothing within the model's positions */
        sr_config_refuse(r, "rope_scaling",
                         "must be default, linear, dynamic, llama3, yarn or longrope");
    if (!(config->rope_scaling.factor > 0))
        sr_config_refuse(r, "rope_scaling", "needs a factor above 0");
}

static json_t *longrope_json(const sr_rope_scaling *s) {
    json_t *list = json_array();
    for (int i = 0; i < SR_ROPE_DIVISORS && s->divisors[i] > 0; i++)
        json_array_append_new(list, json_real(s->divisors[i]));
    return json_pack("{s:s, s:f, s:O, s:o, s:I}", "rope_type", "longrope", "attention_factor",
                     s->amplitude, "short_factor", list, "long_factor", list,
                     "original_max_position_embeddings", (json_int_t)s->original_positions);
}

json_t *sr_config_rope_json(const sr_rope_scaling *s) {
    switch (s->kind) {
    case SR_ROPE_DEFAULT:
        return json_null();
    case SR_ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", s->factor);
    case SR_ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", s->factor,
                         "low_freq_factor", s->low_frequency_factor, "high_freq_factor",
                         s->high_frequency_factor, "original_max_position_embeddings",
                         (json_int_t)s->original_positions);
    case SR_ROPE_LONG:
        return longrope_json(s);
    case SR_ROPE_YARN:
        return json_pack("{s:s, s:f, s:f, s:f, s:f, s:b, s:I}", "rope_type", "yarn", "factor",
                         s->factor, "beta_fast", s->fast_rotations, "beta_slow", s->slow_rotations,
                         "attention_factor", s->amplitude, "truncate", (int)!s->fractional,
                         "original_max_position_embeddings", (json_int_t)s->original_positions);
    }
    return NULL;
}
