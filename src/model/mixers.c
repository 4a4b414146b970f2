/* mixers.c: the table of what can mix the tokens in a model's blocks. */
#include "model/mixers.h"

#include "model/conv/conv.h"
#include "model/layer/pair.h"
#include "model/tensors.h"

#include <math.h>
#include <string.h>

/* ---- attention */

static size_t attention_print(char *text, size_t size, const sr_model_config *c, int layer) {
    const size_t length = srnn_attention_print(text, size, &c->attention[layer]);
    if (!c->parallel)
        return length;
    const bool fits = length + 1 < size;
    if (fits)
        text[length] = '+';
    return length + 1 +
           srnn_attention_print(fits ? text + length + 1 : NULL, fits ? size - length - 1 : 0,
                                &c->parallel[layer]);
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

/* One mixer of a layer: the first, or the second next to it. */
typedef struct layer_mixer {
    const srnn_attention *a;
    const sr_layer_sizes *s;
} layer_mixer;

static int mixers_of(const sr_model_config *c) {
    return c->parallel ? 2 : 1;
}

static layer_mixer mixer_at(const sr_model_config *c, int layer, int n) {
    return n ? (layer_mixer){&c->parallel[layer], &c->parallel_sizes[layer]}
             : (layer_mixer){&c->attention[layer], &c->sizes[layer]};
}

static srnn_status create_one(sr_mixer *mixer, const sr_model *model, sr_layer_setup setup,
                              int layer, int n) {
    const sr_model_config *c = &model->config;
    setup.attention = *mixer_at(c, layer, n).a;
    setup.dims = n ? sr_model_config_parallel_dims(c, layer) : sr_model_config_dims(c, layer);
    setup.rope_theta = c->rope_theta;
    setup.rope_table = model->rope_tables[layer];
    setup.rope_positions = c->positions;
    return sr_layer_is_conv(&setup.attention)
               ? sr_mixer_of_conv(mixer, model->backend, &setup)
               : sr_mixer_of_attention(mixer, model->backend, &setup);
}

static srnn_status create_pair(sr_mixer *mixer, const sr_model *model, const sr_layer_setup *setup,
                               int layer) {
    const sr_model_config *c = &model->config;
    sr_pair_setup pair = {.rows = (int64_t)setup->B * setup->T, .C = c->C};
    if (setup->part)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "two mixers side by side are computed on whole rows, "
                                             "not on the parts of context ranks");
    for (int n = 0; n < 2; n++) {
        pair.in[n] = sr_model_config_factor(c, n ? SR_FACTOR_PARALLEL_IN : SR_FACTOR_IN);
        pair.out[n] = sr_model_config_factor(c, n ? SR_FACTOR_PARALLEL_OUT : SR_FACTOR_OUT);
    }
    SR_TRY(create_one(&pair.parts[0], model, *setup, layer, 0));
    const srnn_status status = create_one(&pair.parts[1], model, *setup, layer, 1);
    if (status != SRNN_OK) {
        sr_mixer_free(&pair.parts[0]);
        return status;
    }
    return sr_mixer_of_pair(mixer, model->backend, &pair);
}

static srnn_status attention_create(sr_mixer *mixer, const sr_model *model,
                                    const sr_layer_setup *setup, int layer) {
    return model->config.parallel ? create_pair(mixer, model, setup, layer)
                                  : create_one(mixer, model, *setup, layer, 0);
}

/* Value heads; each has a separate state per level. */
static double states_of(layer_mixer m) {
    const int heads = sr_shares_queries(m.a) ? m.s->H : m.s->Hkv;
    return (double)heads * (m.s->levels ? m.s->levels : 1);
}

/* NAN: it has no state of fixed size. */
static double mixer_state_bytes(const sr_model_config *c, layer_mixer m) {
    const double numbers = (double)srnn_attention_state_numbers(m.a, m.s->D, m.s->Dv);
    if (sr_layer_is_conv(m.a))
        return (double)sr_conv_state_numbers(m.a, c->C) * (double)sizeof(float);
    return numbers == 0 ? NAN : numbers * states_of(m) * (double)sizeof(float);
}

static double attention_state_bytes(const sr_model_config *c) {
    double bytes = 0;
    for (int layer = 0; layer < c->L; layer++)
        for (int n = 0; n < mixers_of(c); n++)
            bytes += mixer_state_bytes(c, mixer_at(c, layer, n));
    return bytes;
}

/* Of a mixer that has no state, or of a model whose mixers all have one. */
static double mixer_cache_bytes(layer_mixer m, double T) {
    const sr_layer_sizes *s = m.s;
    const srnn_attention *a = m.a;
    const bool wide = sr_shares_queries(a) && a->pool; /* pooled with gates of each head */
    const int values = sr_shares_queries(a) ? s->H : s->Hkv, keys = wide ? s->H : s->Hkv;
    const double rows = a->pool ? ceil(T / a->pool) : (double)sr_keys_seen(a, (int64_t)T);
    return ((double)keys * s->D + (double)values * s->Dv) * rows * (double)sizeof(float);
}

/* Keys and values of T tokens; of the chunks, where they are pooled, and of a window. In a hybrid,
 * mixers that have a state keep that instead, and convolutions always do. */
static double attention_cache_bytes(const sr_model_config *c, double T) {
    double bytes = 0;
    const bool some_need_caches = isnan(attention_state_bytes(c));
    for (int layer = 0; layer < c->L; layer++)
        for (int n = 0; n < mixers_of(c); n++) {
            const layer_mixer m = mixer_at(c, layer, n);
            const double state = mixer_state_bytes(c, m);
            const bool keeps_state = sr_layer_is_conv(m.a) || (some_need_caches && !isnan(state));
            bytes += keeps_state ? state : mixer_cache_bytes(m, T);
        }
    return bytes;
}

static sr_layer_flops mixer_flops(const sr_model_config *c, layer_mixer m, double T) {
    const sr_layer_sizes *s = m.s;
    const double keys = (m.a->pool ? T / m.a->pool : T) / 2;
    const size_t numbers = srnn_attention_state_numbers(m.a, s->D, s->Dv);
    const double readings = (double)s->H * (s->levels ? s->levels : 1);
    const double taps = 2.0 * c->C * m.a->wiring.short_conv;
    if (sr_layer_is_conv(m.a))
        return (sr_layer_flops){.pairs = taps, .state = taps};
    return (sr_layer_flops){.pairs = 2.0 * s->H * (s->D + s->Dv) * keys,
                            .state = numbers ? 2.0 * (double)numbers * (readings + states_of(m))
                                             : INFINITY};
}

sr_layer_flops sr_attention_layer_flops(const sr_model_config *c, int layer, double T) {
    return mixer_flops(c, mixer_at(c, layer, 0), T);
}

/* Whichever is less, as form=auto chooses. */
static double layer_flops(const sr_model_config *c, int layer, double T) {
    double sum = 0;
    for (int n = 0; n < mixers_of(c); n++) {
        const sr_layer_flops flops = mixer_flops(c, mixer_at(c, layer, n), T);
        sum += fmin(flops.pairs, flops.state);
    }
    return sum;
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
