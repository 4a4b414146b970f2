/* config.c: checks of a model's shape, and the attention of its layers as text. */
#include "model/config/config.h"

#include "base/memory.h"
#include "equation/facts.h"
#include "files/memory_stream.h"
#include "model/conv/conv.h"
#include "model/mixers.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sr_model_config_free(sr_model_config *config) {
    free(config->attention);
    free(config->sizes);
    free(config->parallel);
    free(config->parallel_sizes);
    free(config->source);
    *config = (sr_model_config){0};
}

static srnn_status copy_bytes(void **to, const void *from, size_t count, size_t size) {
    SR_TRY(sr_alloc(to, count, size));
    memcpy(*to, from, count * size);
    return SRNN_OK;
}

srnn_status sr_model_config_copy(sr_model_config *to, const sr_model_config *from) {
    const size_t L = (size_t)from->L, source_bytes = from->source ? strlen(from->source) + 1 : 0;
    enum { COPIES = 5 };
    const void *const have[COPIES] = {from->attention, from->sizes, from->parallel,
                                      from->parallel_sizes, from->source};
    const size_t bytes[COPIES] = {L * sizeof *from->attention, L * sizeof *from->sizes,
                                  L * sizeof *from->parallel, L * sizeof *from->parallel_sizes,
                                  source_bytes};
    void *copies[COPIES] = {NULL};
    srnn_status status = SRNN_OK;
    *to = (sr_model_config){0};
    for (int i = 0; i < COPIES && status == SRNN_OK; i++)
        if (have[i])
            status = copy_bytes(&copies[i], have[i], bytes[i], 1);
    if (status != SRNN_OK) {
        for (int i = 0; i < COPIES; i++)
            free(copies[i]);
        return status;
    }
    *to = *from;
    to->attention = copies[0];
    to->sizes = copies[1];
    to->parallel = copies[2];
    to->parallel_sizes = copies[3];
    to->source = copies[4];
    return SRNN_OK;
}

int sr_model_config_attention_layers(const sr_model_config *c) {
    return sr_mixer_row_of(c)->attends ? c->L : 0;
}

bool sr_model_config_has_mlp(const sr_model_config *c) {
    return sr_mixer_row_of(c)->attends && c->mlp != SR_MLP_NONE;
}

bool sr_model_config_has_experts(const sr_model_config *c, int layer) {
    return c->experts.count > 0 && !(c->experts.plain[layer / 8] >> layer % 8 & 1);
}

srnn_block_norm sr_model_config_block_norm(const sr_model_config *c, int layer) {
    return sr_mixer_row_of(c)->attends ? c->attention[layer].wiring.block_norm
                                       : SRNN_BLOCK_NORM_BEFORE;
}

static bool has_plain_layer(const sr_model_config *config, int layer) {
    const srnn_layer form = config->attention[layer].wiring.layer;
    return form == SRNN_LAYER_PLAIN || form == SRNN_LAYER_NALA;
}

float sr_model_config_factor(const sr_model_config *config, sr_factor which) {
    return config->factors[which] == 0 ? 1.0f : (float)config->factors[which];
}

/* What the dims of both mixers have. */
static sr_layer_dims dims_of(const sr_model_config *config, const sr_layer_sizes *sizes,
                             int layer) {
    sr_layer_dims dims = sr_layer_sizes_dims(sizes, config->C);
    dims.layers = config->L;
    dims.layer = layer;
    dims.conv_unbiased = config->conv_unbiased;
    dims.norm_epsilon = config->norm_epsilon;
    dims.norm_is_minus_one = config->norm_is_minus_one;
    return dims;
}

sr_layer_dims sr_model_config_parallel_dims(const sr_model_config *config, int layer) {
    sr_layer_dims dims = dims_of(config, &config->parallel_sizes[layer], layer);
    dims.qkv_bias = config->parallel_bias;
    dims.o_bias = config->parallel_o_bias;
    for (int i = 0; i < SR_PART_FACTORS; i++)
        dims.part_factors[i] = config->factors[SR_FACTOR_PARTS + i];
    return dims;
}

sr_layer_dims sr_model_config_dims(const sr_model_config *config, int layer) {
    sr_layer_dims dims = dims_of(config, &config->sizes[layer], layer);
    for (int earlier = 0; earlier < layer && sr_layer_mixes_values(&config->attention[layer]);
         earlier++)
        dims.later = dims.later || sr_layer_mixes_values(&config->attention[earlier]);
    const bool biased = !config->linear_unbiased || has_plain_layer(config, layer);
    dims.qkv_bias = config->qkv_bias && biased;
    dims.o_bias = config->o_bias && biased;
    if (sr_layer_is_conv(&config->attention[layer]))
        dims.qkv_bias = dims.o_bias = config->conv_layer_bias;
    return dims;
}

bool sr_model_config_is_softmax(const sr_model_config *c) {
    static const srnn_attention softmax;
    const sr_layer_sizes sizes = {.H = c->H, .Hkv = c->Hkv, .D = c->D, .Dv = c->D};
    for (int layer = 0; layer < sr_model_config_attention_layers(c); layer++)
        if (c->parallel || !sr_attention_same(&c->attention[layer], &softmax) ||
            memcmp(&c->sizes[layer], &sizes, sizeof sizes) != 0)
            return false;
    return sr_mixer_row_of(c)->attends;
}

static bool is_one(double multiplier) {
    return multiplier == 0 || multiplier == 1;
}

bool sr_model_config_is_plain(const sr_model_config *c) {
    for (int i = 0; i < SR_FACTORS; i++)
        if (!is_one(c->factors[i]))
            return false;
    return !c->parallel && !c->linear_unbiased && !c->conv_unbiased && !c->conv_layer_bias &&
           c->mlp != SR_MLP_GATED && c->mlp != SR_MLP_PLAIN && !c->layer_norm &&
           !c->norm_is_minus_one && is_one(c->embedding_multiplier) &&
           is_one(c->residual_multiplier) && is_one(c->logit_multiplier) && c->logit_cap == 0 &&
           c->experts.count == 0;
}

sr_rope_angles_of sr_model_config_rope(const sr_model_config *c, int layer) {
    const srnn_attention *a = &c->attention[layer];
    if (!sr_mixer_row_of(c)->attends || a->position != SRNN_POSITION_ROPE)
        return (sr_rope_angles_of){0};
    const int width = sr_layer_rope_width(a, c->sizes[layer].D);
    if (a->wiring.rope_theta > 0)
        return (sr_rope_angles_of){.width = width, .theta = a->wiring.rope_theta};
    return (sr_rope_angles_of){width, c->rope_theta, c->rope_scaling};
}

int sr_model_config_rope_first(const sr_model_config *c, int layer) {
    const sr_rope_angles_of own = sr_model_config_rope(c, layer);
    for (int earlier = 0; earlier < layer; earlier++) {
        const sr_rope_angles_of other = sr_model_config_rope(c, earlier);
        if (other.width == own.width && other.theta == own.theta &&
            other.scaling.kind == own.scaling.kind)
            return earlier;
    }
    return layer;
}

typedef struct bound {
    const char *name;
    int value, least, most;
} bound;

static srnn_status check_bounds(const bound *bounds, size_t count, const char *where) {
    for (size_t i = 0; i < count; i++)
        if (bounds[i].value < bounds[i].least || bounds[i].value > bounds[i].most)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "%s%s is %d; it must be %d to %d", where,
                           bounds[i].name, bounds[i].value, bounds[i].least, bounds[i].most);
    return SRNN_OK;
}

static srnn_status check_sizes(const sr_layer_sizes *s, const srnn_attention *a, int layer) {
    const bound bounds[] = {
        {"heads", s->H, 1, SR_WIDTH_MAX},        {"groups of heads", s->Hkv, 1, s->H},
        {"key size", s->D, 1, SR_HEAD_SIZE_MAX}, {"value size", s->Dv, 1, SR_VALUE_SIZE_MAX},
        {"rank", s->rank, 0, SR_WIDTH_MAX},      {"levels", s->levels, 0, SR_LEVELS_MAX},
    };
    char where[64];
    snprintf(where, sizeof where, "layer %d: ", layer);
    SR_TRY(check_bounds(bounds, sizeof bounds / sizeof *bounds, where));
    if (s->H % s->Hkv)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "layer %d: %d heads cannot share %d", layer, s->H,
                       s->Hkv);
    if (a->position != SRNN_POSITION_ROPE)
        return SRNN_OK;
    const int width = sr_layer_rope_width(a, s->D);
    if (width < 2 || width % 2)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "RoPE rotates pairs of channels: keys need an even width, not %d; use "
                       "position=none",
                       width);
    return SRNN_OK;
}

/* What the second mixer of a layer may be. */
static srnn_status check_parallel(const sr_model_config *c, int layer) {
    const srnn_attention *a = &c->parallel[layer];
    SR_TRY(srnn_attention_check(a));
    if (a->position == SRNN_POSITION_ROPE || a->wiring.prefix_tokens || a->wiring.block_norm ||
        sr_layer_mixes_values(a) || sr_layer_mixes_values(&c->attention[layer]))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "layer %d: of two mixers side by side the second has no RoPE, prefix_tokens "
                       "and block_norm, and none is layer=rwkv7",
                       layer);
    return check_sizes(&c->parallel_sizes[layer], a, layer);
}

static srnn_status check_activation(const sr_model_config *c) {
    if (c->activation == SR_ACTIVATION_SILU_CLAMPED &&
        !(c->activation_limit > 0 && c->activation_sharpness > 0))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "the clamped activation has limit %g and sharpness %g; both must be above 0",
                       c->activation_limit, c->activation_sharpness);
    return SRNN_OK;
}

static srnn_status check_experts(const sr_model_config *c) {
    const sr_experts *e = &c->experts;
    const bound bounds[] = {
        {"experts", e->count, 1, SR_EXPERTS_MAX},
        {"experts of a token", e->chosen, 1, e->count},
        {"width of an expert", e->width, 1, SR_WIDTH_MAX},
        {"width of the shared expert", e->shared_width, 0, SR_WIDTH_MAX},
    };
    if (e->count == 0)
        return SRNN_OK;
    if (c->mlp != SR_MLP_SWIGLU && c->mlp != SR_MLP_GATED)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "experts are computed with a gate alone");
    return check_bounds(bounds, sizeof bounds / sizeof *bounds, "");
}

srnn_status sr_model_config_check_common(const sr_model_config *c) {
    const bound bounds[] = {
        {"vocab_size", c->V, 1, SR_VOCAB_MAX},
        {"hidden_size", c->C, 1, SR_WIDTH_MAX},
        {"intermediate_size", c->F, sr_model_config_has_mlp(c) ? 1 : 0, SR_WIDTH_MAX},
        {"num_hidden_layers", c->L, 1, SR_LAYERS_MAX},
        {"num_attention_heads", c->H, 1, SR_WIDTH_MAX},
        {"num_key_value_heads", c->Hkv, 1, c->H},
        {"head_dim", c->D, 1, SR_VALUE_SIZE_MAX},
        {"max_position_embeddings", c->positions, 1, SR_POSITIONS_MAX},
    };
    SR_TRY(check_bounds(bounds, sizeof bounds / sizeof *bounds, ""));
    if (c->H % c->Hkv)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "num_attention_heads (%d) is not a multiple of num_key_value_heads (%d)",
                       c->H, c->Hkv);
    if (!(c->norm_epsilon >= 0) || !(c->rope_theta > 0))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "rms_norm_eps must be 0 or more, rope_theta above 0");
    return SRNN_OK;
}

srnn_status sr_model_config_check(const sr_model_config *c) {
    SR_TRY(sr_model_config_check_common(c));
    SR_TRY(check_activation(c));
    SR_TRY(check_experts(c));
    for (int layer = 0; layer < sr_model_config_attention_layers(c); layer++) {
        SR_TRY(srnn_attention_check(&c->attention[layer]));
        SR_TRY(check_sizes(&c->sizes[layer], &c->attention[layer], layer));
        if (c->parallel)
            SR_TRY(check_parallel(c, layer));
    }
    return SRNN_OK;
}

/* A range of layers at the start of a text: "3:", "3-5:", "3-:". NULL if there is none, else what
 * follows it. `last` is -1 if open. */
static const char *range_read(const char *text, long *first, long *last) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return NULL;
    *first = strtol(text, &end, 10);
    *last = *first;
    if (*end == '-') {
        *last = -1;
        text = end + 1;
        if (isdigit((unsigned char)*text))
            *last = strtol(text, &end, 10);
        else
            end++;
    }
    return *end == ':' ? end + 1 : NULL;
}

/* A count of layers at the start of a text: "3*". NULL if there is none, else what follows it. */
static const char *count_read(const char *text, long *count) {
    char *end;
    if (!isdigit((unsigned char)*text))
        return NULL;
    *count = strtol(text, &end, 10);
    return *end == '*' ? end + 1 : NULL;
}

/* Where the next range or count starts after a comma, or the end of the text. */
static const char *range_next(const char *text) {
    long first, last;
    for (const char *p = text; *p; p++)
        if (*p == ',' && (range_read(p + 1, &first, &last) || count_read(p + 1, &first)))
            return p;
    return text + strlen(text);
}

/* Where the text of a second mixer starts, after the + that no digit follows (those of numbers do);
 * NULL: there is none. */
static const char *second_of(const char *variant) {
    for (const char *at = strchr(variant, '+'); at; at = strchr(at + 1, '+'))
        if (!isdigit((unsigned char)at[1]))
            return at;
    return NULL;
}

static srnn_status take_parallel(sr_model_config *config) {
    void *memory;
    if (config->parallel)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *config->parallel));
    config->parallel = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *config->parallel_sizes));
    config->parallel_sizes = memory;
    return SRNN_OK;
}

/* One mixer, or two with a + between them. */
static srnn_status parse_mixers(srnn_attention mixers[2], bool *two, char *variant) {
    const char *second = second_of(variant);
    *two = second;
    if (!second)
        return srnn_attention_parse(&mixers[0], variant);
    variant[second - variant] = '\0';
    SR_TRY(srnn_attention_parse(&mixers[0], variant));
    return srnn_attention_parse(&mixers[1], second + 1);
}

static srnn_status set_range(sr_model_config *config, bool *known, const char *text, size_t length,
                             long first, long last) {
    srnn_attention mixers[2];
    bool two;
    char *variant = strndup(text, length);
    if (!variant)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text of %zu bytes", length);
    const srnn_status status = parse_mixers(mixers, &two, variant);
    free(variant);
    SR_TRY(status);
    if (two)
        SR_TRY(take_parallel(config));
    if (last < 0)
        last = config->L - 1;
    if (first > last || last >= config->L)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention of layers %ld-%ld: the model has layers 0-%d",
                       first, last, config->L - 1);
    for (long layer = first; layer <= last; layer++) {
        if (known[layer])
            return SR_FAIL(SRNN_ERR_FORMAT, "the attention of layer %ld is given twice", layer);
        known[layer] = true;
        config->attention[layer] = mixers[0];
        if (two) {
            config->parallel[layer] = mixers[1];
            config->parallel_sizes[layer].H = 1; /* it is there */
        }
    }
    return SRNN_OK;
}

static srnn_status mixed_up(const char *text) {
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "attention of layers: \"%s\" follows layers of the other notation; write either "
                   "ranges (0-2:A,3-:B) or counts that are repeated (3*A,1*B)",
                   text);
}

/* Counts of layers, from the first layer on and again after the last count. */
static srnn_status set_pattern(sr_model_config *config, bool *known, const char *text) {
    long layer = 0;
    for (const char *at = text; layer < config->L;) {
        long count;
        const char *variant = count_read(at, &count);
        if (!variant)
            return mixed_up(at);
        if (count < 1 || count > SR_LAYERS_MAX)
            return SR_FAIL(SRNN_ERR_FORMAT, "attention of layers: %ld* is from 1* to %d*", count,
                           SR_LAYERS_MAX);
        const char *end = range_next(variant);
        const long last = layer + count < config->L ? layer + count - 1 : config->L - 1;
        SR_TRY(set_range(config, known, variant, (size_t)(end - variant), layer, last));
        layer = last + 1;
        at = *end ? end + 1 : text;
    }
    return SRNN_OK;
}

static srnn_status set_ranges(sr_model_config *config, bool *known, const char *text) {
    long first, last;
    bool other;
    SR_TRY(sr_mixer_parse(config, &other, text));
    if (other)
        return SRNN_OK;
    if (count_read(text, &first))
        return set_pattern(config, known, text);
    if (!range_read(text, &first, &last))
        return set_range(config, known, text, strlen(text), 0, -1);
    while (true) {
        const char *variant = range_read(text, &first, &last);
        if (!variant)
            return mixed_up(text);
        const char *end = range_next(variant);
        SR_TRY(set_range(config, known, variant, (size_t)(end - variant), first, last));
        if (!*end)
            break;
        text = end + 1;
    }
    for (int layer = 0; layer < config->L; layer++)
        if (!known[layer])
            return SR_FAIL(SRNN_ERR_FORMAT, "no attention is given for layer %d; end with \"%d-:\"",
                           layer, layer);
    return SRNN_OK;
}

static srnn_status set_sizes(sr_model_config *c) {
    for (int layer = 0; layer < c->L; layer++) {
        c->sizes[layer] = sr_layer_sizes_usual(&c->attention[layer], c->H, c->Hkv, c->D, &c->given);
        if (!c->parallel)
            continue;
        if (!c->parallel_sizes[layer].H)
            return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                           "layer %d has one mixer and others have two side by side", layer);
        c->parallel_sizes[layer] =
            sr_layer_sizes_usual(&c->parallel[layer], c->H, c->Hkv, c->D, &c->given);
    }
    return SRNN_OK;
}

srnn_status sr_model_config_attention(sr_model_config *config, const char *text) {
    void *memory;
    if (config->L < 1 || config->L > SR_LAYERS_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "num_hidden_layers is %d; it must be 1 to %d", config->L,
                       SR_LAYERS_MAX);
    free(config->attention);
    free(config->sizes);
    free(config->parallel);
    free(config->parallel_sizes);
    config->attention = config->parallel = NULL;
    config->sizes = config->parallel_sizes = NULL;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *config->attention));
    config->attention = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *config->sizes));
    config->sizes = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof(bool)));
    const srnn_status status = set_ranges(config, memory, text);
    free(memory);
    return status == SRNN_OK ? set_sizes(config) : status;
}

/* How many layers a text names: up to the end of its ranges, or once through its counts, and one
 * more for a range among counts, so that it is read and refused. 0: no attention by layers. */
static long layers_named(const char *text) {
    long layers = 0, first, last;
    const bool counts = count_read(text, &first) != NULL;
    for (const char *at = text; *at && layers <= SR_LAYERS_MAX;) {
        if (count_read(at, &first))
            layers += first < SR_LAYERS_MAX ? first : SR_LAYERS_MAX + 1;
        else if (!range_read(at, &first, &last))
            break;
        else if (counts)
            layers++;
        else {
            const long end = last >= first ? last : first;
            layers = end < SR_LAYERS_MAX ? end + 1 : SR_LAYERS_MAX + 1;
        }
        if (layers < 1)
            break;
        const char *next = range_next(at);
        at = *next ? next + 1 : next;
    }
    return layers;
}

srnn_status sr_attention_by_layers(sr_model_config *config, bool *several, const char *text) {
    const long named = layers_named(text), layers = !named && second_of(text) ? 1 : named;
    *config = (sr_model_config){.H = 1, .Hkv = 1, .D = 1};
    *several = layers != 0;
    if (!*several)
        return SRNN_OK;
    if (layers < 1 || layers > SR_LAYERS_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention of layers: \"%s\" names none, or more than %d",
                       text, SR_LAYERS_MAX);
    config->L = (int)layers;
    const srnn_status status = sr_model_config_attention(config, text);
    if (status != SRNN_OK)
        sr_model_config_free(config);
    return status;
}

int sr_model_config_prefix_tokens(const sr_model_config *config) {
    int most = 0;
    for (int layer = 0; layer < config->L; layer++)
        if (config->attention[layer].wiring.prefix_tokens > most)
            most = config->attention[layer].wiring.prefix_tokens;
    return most;
}

int64_t sr_model_config_most_positions(const sr_model_config *config) {
    for (int layer = 0; layer < sr_model_config_attention_layers(config); layer++)
        if (config->attention[layer].position == SRNN_POSITION_ROPE)
            return config->positions;
    return INT64_MAX;
}

bool sr_model_config_ends(const sr_model_config *config, int32_t token) {
    bool ends = token == config->eos;
    for (int i = 0; i < config->other_end_count; i++)
        ends = ends || token == config->other_ends[i];
    for (int i = 0; i < config->stop_count; i++)
        ends = ends || token == config->stops[i];
    return ends;
}

srnn_status sr_model_config_attention_text(char **text, const sr_model_config *config) {
    size_t length;
    FILE *out = sr_memory_stream(text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text");
    for (int first = 0, next; first < config->L; first = next) {
        char variant[2 * SR_ATTENTION_TEXT];
        for (next = first + 1; next < config->L; next++)
            if (!sr_attention_same(&config->attention[first], &config->attention[next]) ||
                (config->parallel &&
                 !sr_attention_same(&config->parallel[first], &config->parallel[next])))
                break;
        sr_mixer_row_of(config)->print(variant, sizeof variant, config, first);
        if (first == 0 && next == config->L)
            fputs(variant, out);
        else
            fprintf(out, "%s%d-%d:%s", first ? "," : "", first, next - 1, variant);
    }
    if (fclose(out) != 0)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text");
    return SRNN_OK;
}
