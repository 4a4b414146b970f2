/* config.c: checks of a model's shape, and the attention of its layers as text. */
#include "model/config.h"

#include "attention/attention.h"
#include "base/memory.h"
#include "base/memory_stream.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sr_model_config_free(sr_model_config *config) {
    free(config->attention);
    *config = (sr_model_config){0};
}

srnn_status sr_model_config_copy(sr_model_config *to, const sr_model_config *from) {
    void *attention;
    *to = (sr_model_config){0};
    SR_TRY(sr_alloc(&attention, (size_t)from->L, sizeof *from->attention));
    memcpy(attention, from->attention, (size_t)from->L * sizeof *from->attention);
    *to = *from;
    to->attention = attention;
    return SRNN_OK;
}

sr_layer_dims sr_model_config_dims(const sr_model_config *config) {
    return (sr_layer_dims){.C = config->C,
                           .H = config->H,
                           .Hkv = config->Hkv,
                           .D = config->D,
                           .qkv_bias = config->qkv_bias,
                           .o_bias = config->o_bias};
}

typedef struct bound {
    const char *name;
    int value, most;
} bound;

srnn_status sr_model_config_check(const sr_model_config *c) {
    const bound bounds[] = {
        {"vocab_size", c->V, SR_VOCAB_MAX},
        {"hidden_size", c->C, SR_WIDTH_MAX},
        {"intermediate_size", c->F, SR_WIDTH_MAX},
        {"num_hidden_layers", c->L, SR_LAYERS_MAX},
        {"num_attention_heads", c->H, SR_WIDTH_MAX},
        {"num_key_value_heads", c->Hkv, c->H},
        {"head_dim", c->D, SR_HEAD_SIZE_MAX},
        {"max_position_embeddings", c->positions, SR_POSITIONS_MAX},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (bounds[i].value < 1 || bounds[i].value > bounds[i].most)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "%s is %d; it must be 1 to %d", bounds[i].name,
                           bounds[i].value, bounds[i].most);
    if (c->H % c->Hkv)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "num_attention_heads (%d) is not a multiple of num_key_value_heads (%d)",
                       c->H, c->Hkv);
    if (!(c->norm_epsilon >= 0) || !(c->rope_theta > 0))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "rms_norm_eps must be 0 or more, rope_theta above 0");
    for (int layer = 0; layer < c->L; layer++) {
        SR_TRY(srnn_attention_check(&c->attention[layer]));
        if (sr_beyond_plain(&c->attention[layer]))
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "no layer is wired for this %s yet",
                           sr_beyond_plain(&c->attention[layer]));
        if (c->attention[layer].position == SRNN_POSITION_ROPE && c->D % 2)
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           "rotary position needs an even head_dim, not %d; use position=none",
                           c->D);
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

/* Where the next range starts after a comma, or the end of the text. */
static const char *range_next(const char *text) {
    long first, last;
    for (const char *p = text; *p; p++)
        if (*p == ',' && range_read(p + 1, &first, &last))
            return p;
    return text + strlen(text);
}

static srnn_status set_range(sr_model_config *config, bool *known, const char *text, size_t length,
                             long first, long last) {
    srnn_attention attention;
    char *variant = strndup(text, length);
    if (!variant)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text of %zu bytes", length);
    const srnn_status status = srnn_attention_parse(&attention, variant);
    free(variant);
    SR_TRY(status);
    if (last < 0)
        last = config->L - 1;
    if (first > last || last >= config->L)
        return SR_FAIL(SRNN_ERR_FORMAT, "attention of layers %ld-%ld: the model has layers 0-%d",
                       first, last, config->L - 1);
    for (long layer = first; layer <= last; layer++) {
        if (known[layer])
            return SR_FAIL(SRNN_ERR_FORMAT, "the attention of layer %ld is given twice", layer);
        known[layer] = true;
        config->attention[layer] = attention;
    }
    return SRNN_OK;
}

static srnn_status set_ranges(sr_model_config *config, bool *known, const char *text) {
    long first, last;
    if (!range_read(text, &first, &last))
        return set_range(config, known, text, strlen(text), 0, -1);
    while (true) {
        const char *variant = range_read(text, &first, &last);
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

srnn_status sr_model_config_attention(sr_model_config *config, const char *text) {
    void *memory;
    if (config->L < 1 || config->L > SR_LAYERS_MAX)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "num_hidden_layers is %d; it must be 1 to %d", config->L,
                       SR_LAYERS_MAX);
    free(config->attention);
    config->attention = NULL;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *config->attention));
    config->attention = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof(bool)));
    const srnn_status status = set_ranges(config, memory, text);
    free(memory);
    return status;
}

int sr_model_config_front_tokens(const sr_model_config *config) {
    int most = 0;
    for (int layer = 0; layer < config->L; layer++)
        if (config->attention[layer].front_tokens > most)
            most = config->attention[layer].front_tokens;
    return most;
}

bool sr_model_config_ends(const sr_model_config *config, int32_t token) {
    bool ends = token == config->eos;
    for (int i = 0; i < config->other_end_count; i++)
        ends = ends || token == config->other_ends[i];
    return ends;
}

srnn_status sr_model_config_attention_text(char **text, const sr_model_config *config) {
    size_t length;
    FILE *out = sr_memory_stream(text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text");
    for (int first = 0, next; first < config->L; first = next) {
        char variant[SR_ATTENTION_TEXT];
        for (next = first + 1; next < config->L; next++)
            if (!sr_attention_same(&config->attention[first], &config->attention[next]))
                break;
        srnn_attention_print(variant, sizeof variant, &config->attention[first]);
        if (first == 0 && next == config->L)
            fputs(variant, out);
        else
            fprintf(out, "%s%d-%d:%s", first ? "," : "", first, next - 1, variant);
    }
    if (fclose(out) != 0)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a text");
    return SRNN_OK;
}
