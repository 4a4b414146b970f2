/* mixers.c: the table of what can mix the tokens in a model's blocks. */
#include "model/mixers.h"

#include "model/conv/conv.h"
#include "model/tensors.h"

#include <math.h>
#include <string.h>

/* ---- attention */

static size_t attention_print(char *text, size_t size, const sr_model_config *c, int layer) {
    return srnn_attention_print(text, size, &c->attention[layer]);
}

static bool attention_same(const sr_model_config *a, const sr_model_config *b) {
    (void)a;
    (void)b;
    return true; /* layers are compared by their descriptors */
}

static bool attention_is_causal(const sr_model_config *c) {
    (void)c;
    return true;
}

static srnn_status attention_create(sr_mixer *mixer, const sr_model *model,
                                    const sr_layer_setup *setup, int layer) {
    const sr_model_config *c = &model->config;
    sr_layer_setup own = *setup;
    own.attention = c->attention[layer];
    own.dims = sr_model_config_dims(c, layer);
    own.rope_theta = c->rope_theta;
    own.rope_table = model->rope_tables[layer];
    own.rope_positions = c->positions;
    return sr_layer_is_conv(&own.attention) ? sr_mixer_of_conv(mixer, model->backend, &own)
                                            : sr_mixer_of_attention(mixer, model->backend, &own);
}

/* Value heads; each has a separate state per level. */
static double states_of(const sr_model_config *c, int layer) {
    const sr_layer_sizes *s = &c->sizes[layer];
    const int heads = sr_shares_queries(&c->attention[layer]) ? s->H : s->Hkv;
    return (double)heads * (s->levels ? s->levels : 1);
}

/* Of one layer; 0: it has no state of fixed size. */
static double layer_state_bytes(const sr_model_config *c, int layer) {
    const sr_layer_sizes *s = &c->sizes[layer];
    if (sr_layer_is_conv(&c->attention[layer]))
        return (double)sr_conv_state_numbers(&c->attention[layer], c->C) * (double)sizeof(float);
    return (double)srnn_attention_state_numbers(&c->attention[layer], s->D, s->Dv) *
           states_of(c, layer) * (double)sizeof(float);
}

static double attention_state_bytes(const sr_model_config *c) {
    double bytes = 0;
    for (int layer = 0; layer < c->L; layer++) {
        const double own = layer_state_bytes(c, layer);
        if (own == 0)
            return NAN;
        bytes += own;
    }
    return bytes;
}

/* Keys and values of T tokens; of the chunks, where they are pooled, and of a window. In a hybrid,
 * layers that have a state keep that instead. */
static double attention_cache_bytes(const sr_model_config *c, double T) {
    double bytes = 0;
    const bool some_need_caches = isnan(attention_state_bytes(c));
    for (int layer = 0; layer < c->L; layer++) {
        const double state = layer_state_bytes(c, layer);
        if (some_need_caches && state > 0) {
            bytes += state;
            continue;
        }
        const sr_layer_sizes *s = &c->sizes[layer];
        const srnn_attention *a = &c->attention[layer];
        const bool wide = sr_shares_queries(a) && a->pool; /* pooled with gates of each head */
        const int values = sr_shares_queries(a) ? s->H : s->Hkv, keys = wide ? s->H : s->Hkv;
        const double rows = a->pool ? ceil(T / a->pool) : (double)sr_keys_seen(a, (int64_t)T);
        bytes += ((double)keys * s->D + (double)values * s->Dv) * rows * (double)sizeof(float);
    }
    return bytes;
}

sr_layer_flops sr_attention_layer_flops(const sr_model_config *c, int layer, double T) {
    const sr_layer_sizes *s = &c->sizes[layer];
    const srnn_attention *a = &c->attention[layer];
    const double keys = (a->pool ? T / a->pool : T) / 2;
    const size_t numbers = srnn_attention_state_numbers(a, s->D, s->Dv);
    const double taps = 2.0 * c->C * a->wiring.short_conv;
    if (sr_layer_is_conv(a))
        return (sr_layer_flops){.pairs = taps, .state = taps};
    const double readings = (double)s->H * (s->levels ? s->levels : 1);
    return (sr_layer_flops){.pairs = 2.0 * s->H * (s->D + s->Dv) * keys,
                            .state = numbers
                                         ? 2.0 * (double)numbers * (readings + states_of(c, layer))
                                         : INFINITY};
}

/* Whichever is less, as form=auto chooses. */
static double layer_flops(const sr_model_config *c, int layer, double T) {
    const sr_layer_flops flops = sr_attention_layer_flops(c, layer, T);
    return fmin(flops.pairs, flops.state);
}

static double attention_flops(const sr_model_config *c, double T) {
    double flops = 0;
    for (int layer = 0; layer < c->L; layer++)
        flops += layer_flops(c, layer, T);
    return flops;
}

/* ---- Avey */

/* One text for all layers, a tied head, its own epsilon. */
static srnn_status avey_parse(sr_model_config *c, bool *known, const char *text) {
    SR_TRY(sr_avey_parse(&c->avey, known, text));
    if (*known) {
        c->tied = true;
        c->norm_epsilon = SR_AVEY_EPSILON;
    }
    return SRNN_OK;
}

static size_t avey_print(char *text, size_t size, const sr_model_config *c, int layer) {
    (void)layer;
    return (size_t)sr_avey_print(text, size, &c->avey);
}

static bool avey_same(const sr_model_config *a, const sr_model_config *b) {
    return memcmp(&a->avey, &b->avey, sizeof a->avey) == 0;
}

static bool avey_is_causal(const sr_model_config *c) {
    return c->avey.causal;
}

/* B * T rows are whole contexts. */
static srnn_status avey_create(sr_mixer *mixer, const sr_model *model, const sr_layer_setup *setup,
                               int layer) {
    (void)layer;
    return sr_mixer_of_avey(mixer, model->backend, &model->config.avey, model->config.C,
                            (int64_t)setup->B * setup->T);
}

static double avey_state_bytes(const sr_model_config *c) {
    (void)c;
    return NAN;
}

/* Every embedding, which the ranker reads. */
static double avey_cache_bytes(const sr_model_config *c, double T) {
    return (double)c->C * T * (double)sizeof(float);
}

/* As softmax of the same heads. */
static double avey_flops(const sr_model_config *c, double T) {
    return 2.0 * c->L * c->H * c->D * T;
}

/* ---- the table */

static const sr_mixer_row rows[] = {
    [SR_MIXER_ATTENTION] = {.title = "an attention model",
                            .attends = true,
                            .print = attention_print,
                            .same = attention_same,
                            .is_causal = attention_is_causal,
                            .tensors = sr_attention_model_tensors,
                            .create = attention_create,
                            .state_bytes = attention_state_bytes,
                            .cache_bytes = attention_cache_bytes,
                            .flops = attention_flops},
    [SR_MIXER_AVEY] = {.title = "an Avey model",
                       .contexts = true,
                       .parse = avey_parse,
                       .print = avey_print,
                       .same = avey_same,
                       .is_causal = avey_is_causal,
                       .tensors = sr_avey_model_tensors,
                       .create = avey_create,
                       .state_bytes = avey_state_bytes,
                       .cache_bytes = avey_cache_bytes,
                       .flops = avey_flops},
};

const sr_mixer_row *sr_mixer_row_at(sr_mixer_kind kind) {
    return &rows[kind];
}

const sr_mixer_row *sr_mixer_row_of(const sr_model_config *config) {
    return &rows[config->mixer];
}

srnn_status sr_mixer_parse(sr_model_config *config, bool *known, const char *text) {
    *known = false;
    for (size_t kind = 0; kind < sizeof rows / sizeof *rows && !*known; kind++) {
        if (!rows[kind].parse)
            continue;
        SR_TRY(rows[kind].parse(config, known, text));
        if (*known)
            config->mixer = (sr_mixer_kind)kind;
    }
    return SRNN_OK;
}

bool sr_mixer_leaks(const char *text) {
    sr_model_config named = {0};
    bool known;
    return sr_mixer_parse(&named, &known, text) == SRNN_OK && known &&
           !sr_mixer_row_of(&named)->is_causal(&named);
}

bool sr_mixer_same(const sr_model_config *a, const sr_model_config *b) {
    return a->mixer == b->mixer && sr_mixer_row_of(a)->same(a, b);
}
