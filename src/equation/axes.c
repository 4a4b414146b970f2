/* axes.c: the table of axes. */
#include "equation/axes.h"

#include "equation/facts.h"

#include <string.h>

#define FIELD(name) offsetof(srnn_attention, name)
#define WORDS(...)  ((const char *const[]){__VA_ARGS__, NULL})

/* The score first, then in the order of the struct's members. */
static const sr_axis axes[] = {
    {.name = "score",
     .always = true,
     .offset = FIELD(score),
     .words = WORDS("exp", "linear", "taylor", "power", "sigmoid"),
     .counted = 1U << SRNN_SCORE_TAYLOR | 1U << SRNN_SCORE_POWER,
     .count_offset = FIELD(order)},
    {.name = "position",
     .offset = FIELD(position),
     .words = WORDS("rope", "none", "rope_features", "rope_chunks")},
    {.name = "short_conv",
     .of = SR_AXIS_OF_LAYER,
     .kind = SR_AXIS_COUNT,
     .offset = FIELD(wiring.short_conv),
     .words = WORDS("none")},
    {.name = "conv_activation",
     .of = SR_AXIS_OF_LAYER,
     .offset = FIELD(wiring.conv_activation),
     .words = WORDS("silu", "none")},
    {.name = "prefix_tokens",
     .of = SR_AXIS_OF_LAYER,
     .kind = SR_AXIS_COUNT,
     .offset = FIELD(wiring.prefix_tokens),
     .words = WORDS("none")},
    {.name = "layer",
     .of = SR_AXIS_OF_LAYER,
     .offset = FIELD(wiring.layer),
     .words = WORDS("plain", "power", "mamba2", "mamba_layer", "mamba_block", "gla", "delta_net",
                    "rat", "grela", "nala", "kda", "kda_fla", "2mamba", "gdn2", "rwkv7", "conv")},
    {.name = "share", .offset = FIELD(share), .words = WORDS("kv", "qk", "qk_tiled")},
    {.name = "scale", .offset = FIELD(scale), .words = WORDS("inverse_sqrt", "one")},
    {.name = "feature",
     .offset = FIELD(feature),
     .words = WORDS("identity", "relu", "elu1", "unit", "unit_heads", "unit_smooth", "norm_split",
                    "norm_cosine")},
    {.name = "cap", .kind = SR_AXIS_NUMBER, .offset = FIELD(cap), .words = WORDS("none")},
    {.name = "clamp", .kind = SR_AXIS_NUMBER, .offset = FIELD(clamp), .words = WORDS("none")},
    {.name = "score_bias",
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(score_bias),
     .words = WORDS("none")},
    {.name = "decay",
     .offset = FIELD(decay),
     .words =
         WORDS("none", "learned", "log_sigmoid", "softplus", "bounded", "neg_softplus", "given"),
     .alone = true},
    {.name = "decay_divisor",
     .of_decay = true,
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(decay_divisor),
     .words = WORDS("1")},
    {.name = "decay_bound",
     .of_decay = true,
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(decay_bound),
     .words = WORDS("none")},
    {.name = "decay_width",
     .of_decay = true,
     .offset = FIELD(decay_width),
     .words = WORDS("head", "channel")},
    {.name = "decay_place",
     .of_decay = true,
     .offset = FIELD(decay_place),
     .words = WORDS("weight", "logit")},
    {.name = "dt_width",
     .of_decay = true,
     .offset = FIELD(dt_width),
     .words = WORDS("head", "channel", "none")},
    {.name = "pool", .kind = SR_AXIS_COUNT, .offset = FIELD(pool), .words = WORDS("none")},
    {.name = "window", .kind = SR_AXIS_COUNT, .offset = FIELD(window), .words = WORDS("none")},
    {.name = "value_gate",
     .offset = FIELD(value_gate),
     .words = WORDS("off", "sigmoid", "time_step"),
     .alone = true},
    {.name = "write", .offset = FIELD(write), .words = WORDS("add", "delta", "removal")},
    {.name = "write_range", .offset = FIELD(write_range), .words = WORDS("1", "2")},
    {.name = "write_width", .offset = FIELD(write_width), .words = WORDS("head", "channel")},
    {.name = "write_gate", .offset = FIELD(write_gate), .words = WORDS("sigmoid", "given")},
    {.name = "levels", .offset = FIELD(levels), .words = WORDS("none", "fenwick")},
    {.name = "normaliser",
     .offset = FIELD(normaliser),
     .words =
         WORDS("row_sum", "row_sum_min1", "row_length", "none", "cumulative_gate", "value_power")},
    {.name = "detach",
     .kind = SR_AXIS_SWITCH,
     .offset = FIELD(detach),
     .words = WORDS("off", "on"),
     .alone = true},
    {.name = "epsilon", .kind = SR_AXIS_NUMBER, .offset = FIELD(epsilon), .words = WORDS("none")},
    {.name = "sink", .offset = FIELD(sink), .words = WORDS("none", "zero", "learned")},
    {.name = "skip",
     .offset = FIELD(skip),
     .words = WORDS("none", "head", "channel", "conv", "bonus"),
     .counted = 1U << SRNN_SKIP_CONV,
     .count_offset = FIELD(skip_conv)},
    {.name = "output_gate",
     .offset = FIELD(output_gate),
     .words = WORDS("none", "sigmoid", "inverse_exp", "inverse_cumulative"),
     .alone = true},
    {.name = "post_gate",
     .kind = SR_AXIS_SWITCH,
     .offset = FIELD(post_gate),
     .words = WORDS("off", "sigmoid"),
     .alone = true},
    {.name = "gate_width", .offset = FIELD(gate_width), .words = WORDS("head", "channel")},
    {.name = "gate_shape",
     .offset = FIELD(gate_shape),
     .words = WORDS("sigmoid", "silu", "silu_square", "identity")},
    {.name = "norm",
     .offset = FIELD(norm),
     .words = WORDS("none", "layer", "rms", "l2", "l2_scaled")},
    {.name = "norm_width", .offset = FIELD(norm_width), .words = WORDS("head", "row")},
    {.name = "norm_weight", .offset = FIELD(norm_weight), .words = WORDS("shared", "head")},
    {.name = "norm_epsilon",
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(norm_epsilon),
     .words = WORDS("own")},
    {.name = "qk_norm",
     .of = SR_AXIS_OF_LAYER,
     .offset = FIELD(wiring.qk_norm),
     .words = WORDS("none", "head", "row", "head_rotated", "layer")},
    {.name = "rope_part",
     .of = SR_AXIS_OF_LAYER,
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(wiring.rope_part),
     .words = WORDS("whole")},
    {.name = "rope_pairs",
     .of = SR_AXIS_OF_LAYER,
     .offset = FIELD(wiring.rope_pairs),
     .words = WORDS("halves", "neighbours")},
    {.name = "rope_theta",
     .of = SR_AXIS_OF_LAYER,
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(wiring.rope_theta),
     .words = WORDS("model")},
    {.name = "softmax_scale",
     .of = SR_AXIS_OF_LAYER,
     .kind = SR_AXIS_NUMBER,
     .offset = FIELD(wiring.softmax_scale),
     .words = WORDS("own")},
    {.name = "block_norm",
     .of = SR_AXIS_OF_LAYER,
     .offset = FIELD(wiring.block_norm),
     .words = WORDS("before", "after", "both", "parallel")},
    {.name = NULL},
};

enum { AXES = sizeof axes / sizeof *axes - 1 };

const sr_axis *sr_axis_at(size_t index) {
    return index < AXES ? &axes[index] : NULL;
}

bool sr_axis_matters(const sr_axis *axis, const srnn_attention *a) {
    return !axis->of_decay || a->decay != SRNN_DECAY_NONE;
}

size_t sr_axis_words(const sr_axis *axis) {
    size_t count = 0;
    while (axis->words[count])
        count++;
    return count;
}

static const char *field_of(size_t offset, const srnn_attention *a) {
    return (const char *)a + offset;
}

static int read_int(size_t offset, const srnn_attention *a) {
    int value;
    memcpy(&value, field_of(offset, a), sizeof value);
    return value;
}

double sr_axis_value(const sr_axis *axis, const srnn_attention *a) {
    double number;
    switch (axis->kind) {
    case SR_AXIS_WORD: /* enumerations have the size of an int; an invalid one may be negative */
        return (double)(unsigned)read_int(axis->offset, a);
    case SR_AXIS_COUNT:
        return (double)read_int(axis->offset, a);
    case SR_AXIS_SWITCH:
        return *(const bool *)(const void *)field_of(axis->offset, a);
    case SR_AXIS_NUMBER:
        memcpy(&number, field_of(axis->offset, a), sizeof number);
        return number;
    }
    return 0;
}

void sr_axis_set(const sr_axis *axis, srnn_attention *a, double value) {
    char *field = (char *)a + axis->offset;
    const bool on = value != 0;
    int whole = 0;
    switch (axis->kind) {
    case SR_AXIS_WORD:
    case SR_AXIS_COUNT:
        whole = (int)value;
        memcpy(field, &whole, sizeof whole);
        break;
    case SR_AXIS_SWITCH:
        memcpy(field, &on, sizeof on);
        break;
    case SR_AXIS_NUMBER:
        memcpy(field, &value, sizeof value);
        break;
    }
}

int sr_axis_count(const sr_axis *axis, const srnn_attention *a) {
    return axis->counted ? read_int(axis->count_offset, a) : 0;
}

void sr_axis_set_count(const sr_axis *axis, srnn_attention *a, int count) {
    if (axis->counted)
        memcpy((char *)a + axis->count_offset, &count, sizeof count);
}

bool sr_attention_same(const srnn_attention *a, const srnn_attention *b) {
    const sr_axis *axis;
    for (size_t i = 0; (axis = sr_axis_at(i)); i++)
        if (sr_axis_value(axis, a) != sr_axis_value(axis, b) ||
            sr_axis_count(axis, a) != sr_axis_count(axis, b))
            return false;
    return true;
}
