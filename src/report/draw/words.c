/* words.c: a variant of attention in words, for readers who have not read the paper. */
#include "report/draw/words.h"

#include <stdarg.h>

/* Parts of a description, with semicolons between them. */
typedef struct list {
    FILE *out;
    size_t parts;
} list;

static void add(list *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(list *l, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs(l->parts++ ? "; " : "", l->out);
    vfprintf(l->out, format, arguments);
    va_end(arguments);
}

static const char *feature_words(srnn_feature feature) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
        return "";
    case SRNN_FEATURE_RELU:
        return " of relu(q) and relu(k)";
    case SRNN_FEATURE_ELU1:
        return " of elu(q)+1 and elu(k)+1";
    case SRNN_FEATURE_UNIT:
        return " of q and k at length one";
    case SRNN_FEATURE_UNIT_HEADS:
        return " of q and k at length one across heads";
    case SRNN_FEATURE_UNIT_SMOOTH:
        return " of q and k at about length one";
    case SRNN_FEATURE_NORM_SPLIT:
        return " of powers of q that follow its length, and cubes of k, by sign";
    case SRNN_FEATURE_NORM_COSINE:
        return " of powers of q that follow its length, and cubes of k, as phases";
    }
    return "";
}

static void add_score(list *l, const srnn_attention *a) {
    const char *of = feature_words(a->feature);
    switch (a->score) {
    case SRNN_SCORE_EXP:
        if (*of)
            add(l, "exp of the product%s", of);
        break;
    case SRNN_SCORE_LINEAR:
        add(l, "linear attention: the product%s without exp", *of ? of : " q\u00b7k");
        break;
    case SRNN_SCORE_TAYLOR:
        add(l, "exp%s cut after order %d", of, a->order);
        break;
    case SRNN_SCORE_POWER:
        add(l, "the product%s to the power %d in place of exp", of, a->order);
        break;
    case SRNN_SCORE_SIGMOID:
        add(l, "sigmoid of the product%s in place of exp", of);
        break;
    }
    if (a->cap > 0)
        add(l, "products capped at %g by tanh", a->cap);
    if (a->window)
        add(l, "a token sees the last %d tokens", a->window);
    if (a->decay != SRNN_DECAY_NONE)
        add(l, a->decay_width == SRNN_WIDTH_CHANNEL
                   ? "older tokens fade, channel by channel, as learned"
                   : "older tokens fade, as learned");
    if (a->write == SRNN_WRITE_DELTA)
        add(l, "what a key stored before is taken back when it is written again");
    if (a->write == SRNN_WRITE_REMOVAL)
        add(l, "what a key of its own reads is taken back with every token");
    if (a->levels == SRNN_LEVELS_FENWICK)
        add(l, "stretches of the past have learned weights, the longer the older");
    if (a->pool)
        add(l, "keys and values are running averages over %d tokens", a->pool);
}

static void add_normaliser(list *l, const srnn_attention *a) {
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        break;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        add(l, "divided by their sum, or by 1 if that is more");
        break;
    case SRNN_NORMALISER_ROW_LENGTH:
        add(l, "divided by the number of tokens so far");
        break;
    case SRNN_NORMALISER_NONE:
        add(l, "no denominator");
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        add(l, "divided by a sum of learned gates");
        break;
    case SRNN_NORMALISER_VALUE_POWER:
        add(l, "divided by a learned power of the position");
        break;
    }
}

static void add_gates(list *l, const srnn_attention *a) {
    if (a->value_gate)
        add(l, "a learned gate on each value");
    switch (a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        add(l, "a learned gate on the output");
        break;
    case SRNN_GATE_INVERSE_EXP:
        add(l, "the output is divided by a learned number");
        break;
    case SRNN_GATE_INVERSE_CUMULATIVE:
        add(l, "the output is divided by a sum of learned numbers");
        break;
    }
    if (a->post_gate)
        add(l, "a learned gate after the norm");
    if (a->skip != SRNN_SKIP_NONE)
        add(l, "the value itself is added");
}

static void add_norm(list *l, srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_NONE:
        break;
    case SRNN_NORM_LAYER:
        add(l, "layer norm of the output");
        break;
    case SRNN_NORM_RMS:
        add(l, "RMS norm of the output");
        break;
    case SRNN_NORM_L2:
        add(l, "the output scaled to length one");
        break;
    case SRNN_NORM_L2_SCALED:
        add(l, "the output scaled to one length");
        break;
    }
}

static void add_wiring(list *l, const srnn_wiring *w) {
    if (w->qk_norm)
        add(l, "a norm of q and k");
    if (w->rope_part > 0 && w->rope_part < 1)
        add(l, "RoPE on %g of a head", w->rope_part);
    if (w->block_norm == SRNN_BLOCK_NORM_AFTER)
        add(l, "norms after mixer and MLP");
    if (w->block_norm == SRNN_BLOCK_NORM_BOTH)
        add(l, "norms before and after mixer and MLP");
    if (w->block_norm == SRNN_BLOCK_NORM_PARALLEL)
        add(l, "mixer and MLP in parallel");
}

void sr_words_write(FILE *out, const srnn_attention *a) {
    list l = {.out = out};
    if (a->wiring.layer == SRNN_LAYER_CONV) {
        add(&l, "a gated convolution of %d tokens", a->wiring.short_conv);
        add_wiring(&l, &a->wiring);
        return;
    }
    add_score(&l, a);
    add_normaliser(&l, a);
    add_gates(&l, a);
    add_norm(&l, a->norm);
    if (a->wiring.short_conv > 0)
        add(&l, "a short convolution before q, k and v");
    if (a->wiring.prefix_tokens > 0)
        add(&l, "%d empty tokens in front", a->wiring.prefix_tokens);
    if (a->position == SRNN_POSITION_NONE)
        add(&l, "no positions");
    add_wiring(&l, &a->wiring);
    if (l.parts == 0)
        fputs("weights exp(q\u00b7k), divided by their sum", out);
}
