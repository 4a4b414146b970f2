/* equation.c: a variant's equation as MathML. */
#include "report/draw/equation.h"

#include <math.h>

#define VARIABLE(name, index) "<msub><mi>" name "</mi><mi>" index "</mi></msub>"
#define PAIR(name)            "<msub><mi>" name "</mi><mrow><mi>i</mi><mi>j</mi></mrow></msub>"
#define SUM_OVER(index) \
    "<munder><mo>\u2211</mo><mrow><mi>" index "</mi><mo>\u2264</mo><mi>i</mi></mrow></munder>"
#define SIGMOID(gate) "<mi>\u03c3</mi><mo>(</mo>" gate "<mo>)</mo>"
#define OUTPUT_GATE   VARIABLE("g", "i")
#define SUM_OF_GATES  SUM_OVER("m") "<mi>exp</mi><mo>(</mo>" VARIABLE("g", "m") "<mo>)</mo>"
#define VALUE_POWER   "<msup><mi>j</mi><mrow>" SIGMOID("<mi>c</mi>") "</mrow></msup>"
#define TIMES         "<mo>\u22c5</mo>"

static void write_feature(FILE *out, srnn_feature feature, const char *vector) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
        fputs(vector, out);
        break;
    case SRNN_FEATURE_RELU:
        fprintf(out, "<mi>relu</mi><mo>(</mo>%s<mo>)</mo>", vector);
        break;
    case SRNN_FEATURE_ELU1:
        fprintf(out, "<mn>1</mn><mo>+</mo><mi>elu</mi><mo>(</mo>%s<mo>)</mo>", vector);
        break;
    case SRNN_FEATURE_UNIT:
        fprintf(out, "<mfrac>%s<mrow><mo>\u2016</mo>%s<mo>\u2016</mo></mrow></mfrac>", vector,
                vector);
        break;
    case SRNN_FEATURE_UNIT_HEADS:
        fprintf(out,
                "<mfrac>%s<msub><mrow><mo>\u2016</mo>%s<mo>\u2016</mo></mrow>"
                "<mtext>heads</mtext></msub></mfrac>",
                vector, vector);
        break;
    case SRNN_FEATURE_UNIT_SMOOTH:
        fprintf(out,
                "<mfrac>%s<msqrt><msup><mrow><mo>\u2016</mo>%s<mo>\u2016</mo></mrow><mn>2</mn>"
                "</msup><mo>+</mo><msup><mn>10</mn><mn>-6</mn></msup></msqrt></mfrac>",
                vector, vector);
        break;
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        fprintf(out, "<mi>\u03c6</mi><mo>(</mo>%s<mo>)</mo>", vector);
        break;
    }
}

#define FADED(now, then) \
    "<mi>exp</mi><mo>(</mo>" VARIABLE("C", now) "<mo>\u2212</mo>" VARIABLE("C", then) "<mo>)</mo>"

/* A decay per channel: the product becomes a sum over channels with their decays. */
static void write_channels(FILE *out, srnn_feature feature) {
    fputs("<munder><mo>\u2211</mo><mi>c</mi></munder>", out);
    write_feature(out, feature, VARIABLE("q", "ic"));
    write_feature(out, feature, VARIABLE("k", "jc"));
    fputs(TIMES FADED("ic", "jc"), out);
}

static void write_product(FILE *out, const srnn_attention *a) {
    if (a->scale == SRNN_SCALE_INVERSE_SQRT)
        fputs("<mfrac><mn>1</mn><msqrt><mi>d</mi></msqrt></mfrac>", out);
    const bool decays = a->decay != SRNN_DECAY_NONE;
    if (decays && a->decay_width == SRNN_WIDTH_CHANNEL) {
        write_channels(out, a->feature);
        return;
    }
    fputs("<mo>\u27e8</mo>", out);
    write_feature(out, a->feature, VARIABLE("q", "i"));
    fputs("<mo>,</mo>", out);
    write_feature(out, a->feature, VARIABLE("k", "j"));
    fputs("<mo>\u27e9</mo>", out);
    if (decays && a->decay_place == SRNN_DECAY_PLACE_LOGIT)
        fputs(TIMES FADED("i", "j"), out);
}

static void write_logit(FILE *out, const srnn_attention *a) {
    fputs(PAIR("s") "</mtd><mtd><mo>=</mo>", out);
    if (a->cap > 0)
        fprintf(out,
                "<mn>%g</mn>" TIMES "<mi>tanh</mi><mo>(</mo><mfrac><mn>1</mn><mn>%g</mn></mfrac>",
                a->cap, a->cap);
    write_product(out, a);
    if (a->cap > 0)
        fputs("<mo>)</mo>", out);
}

static void write_clamped(FILE *out, const srnn_attention *a) {
    if (a->clamp > 0)
        fprintf(out, "<mi>min</mi><mo>(</mo>" PAIR("s") "<mo>,</mo><mn>%g</mn><mo>)</mo>",
                a->clamp);
    else
        fputs(PAIR("s"), out);
}

static void write_power(FILE *out, const srnn_attention *a, const char *exponent) {
    fputs("<msup><mrow>", out);
    if (a->clamp > 0) {
        write_clamped(out, a);
        fprintf(out, "</mrow>%s</msup>", exponent);
    } else {
        fprintf(out, "<mi>s</mi></mrow>%s</msup>", exponent);
    }
}

static void write_score(FILE *out, const srnn_attention *a) {
    char exponent[32];
    switch (a->score) {
    case SRNN_SCORE_EXP:
        fputs("<mi>exp</mi><mo>(</mo>", out);
        write_clamped(out, a);
        fputs("<mo>)</mo>", out);
        break;
    case SRNN_SCORE_LINEAR:
        write_clamped(out, a);
        break;
    case SRNN_SCORE_TAYLOR:
        fprintf(out,
                "<munderover><mo>\u2211</mo><mrow><mi>n</mi><mo>=</mo><mn>0</mn></mrow>"
                "<mn>%d</mn></munderover><mfrac>",
                a->order);
        write_power(out, a, "<mi>n</mi>");
        fputs("<mrow><mi>n</mi><mo>!</mo></mrow></mfrac>", out);
        break;
    case SRNN_SCORE_POWER:
        snprintf(exponent, sizeof exponent, "<mn>%d</mn>", a->order);
        write_power(out, a, exponent);
        break;
    case SRNN_SCORE_SIGMOID:
        fputs("<mi>\u03c3</mi><mo>(</mo>", out);
        write_clamped(out, a);
        if (a->score_bias != 0)
            fprintf(out, "<mo>%s</mo><mn>%g</mn>", a->score_bias < 0 ? "\u2212" : "+",
                    fabs(a->score_bias));
        fputs("<mo>)</mo>", out);
        break;
    }
}

static void write_weight(FILE *out, const srnn_attention *a) {
    fputs(PAIR("w") "</mtd><mtd><mo>=</mo>", out);
    write_score(out, a);
    if (a->levels == SRNN_LEVELS_FENWICK)
        fputs(TIMES "<msub><mi>\u03bb</mi><mi>i</mi></msub><mo>[</mo><mtext>level</mtext><mo>(</mo>"
                    "<mi>i</mi><mo>,</mo><mi>j</mi><mo>)</mo><mo>]</mo>",
              out);
    if (a->decay != SRNN_DECAY_NONE && a->decay_place == SRNN_DECAY_PLACE_WEIGHT &&
        a->decay_width == SRNN_WIDTH_HEAD)
        fputs(TIMES FADED("i", "j"), out);
}

static void write_sum(FILE *out, const srnn_attention *a) {
    fputs("<mrow>" SUM_OVER("j") PAIR("w"), out);
    if (a->write != SRNN_WRITE_ADD) {
        fputs(VARIABLE("u", "j") "</mrow>", out);
        return;
    }
    switch (a->value_gate) {
    case SRNN_VALUE_GATE_OFF:
        break;
    case SRNN_VALUE_GATE_SIGMOID:
        fputs(TIMES SIGMOID(VARIABLE("b", "j")), out);
        break;
    case SRNN_VALUE_GATE_TIME_STEP:
        fputs(TIMES VARIABLE("\u0394", "j"), out);
        break;
    }
    if (a->normaliser == SRNN_NORMALISER_VALUE_POWER)
        fputs("<mfrac>" VARIABLE("v", "j") VALUE_POWER "</mfrac>", out);
    else
        fputs(VARIABLE("v", "j"), out);
    fputs("</mrow>", out);
}

static const char *divisor(srnn_normaliser normaliser) {
    switch (normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        return SUM_OVER("j") PAIR("w");
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        return "<mi>max</mi><mo>(</mo>" SUM_OVER("j") PAIR("w") "<mo>,</mo><mn>1</mn><mo>)</mo>";
    case SRNN_NORMALISER_ROW_LENGTH:
        return "<mi>i</mi>";
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        return "<mi>max</mi><mo>(</mo>" SUM_OF_GATES "<mo>,</mo><mn>1</mn><mo>)</mo>";
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    return NULL;
}

static const char *sink(srnn_sink sink) {
    switch (sink) {
    case SRNN_SINK_NONE:
        break;
    case SRNN_SINK_ZERO:
        return "<mo>+</mo><mn>1</mn>";
    case SRNN_SINK_LEARNED:
        return "<mo>+</mo><mi>exp</mi><mo>(</mo><mi>b</mi><mo>)</mo>";
    }
    return "";
}

static void write_quotient(FILE *out, const srnn_attention *a) {
    const char *below = divisor(a->normaliser);
    fputs(VARIABLE("y", "i") "</mtd><mtd><mo>=</mo>", out);
    if (below)
        fputs("<mfrac>", out);
    write_sum(out, a);
    if (below) {
        fprintf(out, "<mrow>%s", below);
        fputs(sink(a->sink), out);
        if (a->epsilon > 0)
            fprintf(out, "<mo>+</mo><mn>%g</mn>", a->epsilon);
        fputs("</mrow></mfrac>", out);
    }
    if (a->skip != SRNN_SKIP_NONE && a->skip != SRNN_SKIP_BONUS)
        fputs("<mo>+</mo>" VARIABLE("skip", "i"), out);
}

static const char *shaped(srnn_gate_shape shape) {
    switch (shape) {
    case SRNN_GATE_SHAPE_SIGMOID:
        break;
    case SRNN_GATE_SHAPE_SILU:
        return "<mi>SiLU</mi><mo>(</mo>" OUTPUT_GATE "<mo>)</mo>" TIMES;
    case SRNN_GATE_SHAPE_SILU_SQUARE:
        return "<msup><mrow><mi>SiLU</mi><mo>(</mo>" OUTPUT_GATE
               "<mo>)</mo></mrow><mn>2</mn></msup>" TIMES;
    case SRNN_GATE_SHAPE_IDENTITY:
        return OUTPUT_GATE TIMES;
    }
    return SIGMOID(OUTPUT_GATE) TIMES;
}

static const char *gate(const srnn_attention *a) {
    switch (a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return shaped(a->gate_shape);
    case SRNN_GATE_INVERSE_EXP:
        return "<mi>exp</mi><mo>(</mo><mo>\u2212</mo>" OUTPUT_GATE "<mo>)</mo>" TIMES;
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return "<mfrac><mn>1</mn><mrow>" SUM_OF_GATES "</mrow></mfrac>" TIMES;
    }
    return "";
}

static void write_output(FILE *out, const srnn_attention *a) {
    fprintf(out, VARIABLE("o", "i") "</mtd><mtd><mo>=</mo>%s",
            a->post_gate ? shaped(a->gate_shape) : "");
    const char *factor = gate(a);
    const char *inner = VARIABLE("y", "i");
    switch (a->norm) {
    case SRNN_NORM_NONE:
        fprintf(out, "%s%s", factor, inner);
        break;
    case SRNN_NORM_LAYER:
        fprintf(out, "<mi>LayerNorm</mi><mo>(</mo>%s%s<mo>)</mo>", factor, inner);
        break;
    case SRNN_NORM_RMS:
        fprintf(out, "<mi>RMSNorm</mi><mo>(</mo>%s%s<mo>)</mo>", factor, inner);
        break;
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        fprintf(out,
                "%s<mfrac><mrow>%s%s</mrow><mrow><mo>\u2016</mo>%s%s<mo>\u2016</mo></mrow></mfrac>",
                a->norm == SRNN_NORM_L2_SCALED ? "<mi>d</mi>" TIMES : "", factor, inner, factor,
                inner);
        break;
    }
}

void sr_equation_write(FILE *out, const srnn_attention *a) {
    fputs("<math display=\"block\"><mtable class=\"equation\" displaystyle=\"true\">\n<mtr><mtd>",
          out);
    write_logit(out, a);
    fputs("</mtd></mtr>\n<mtr><mtd>", out);
    write_weight(out, a);
    fputs("</mtd></mtr>\n<mtr><mtd>", out);
    write_quotient(out, a);
    fputs("</mtd></mtr>\n<mtr><mtd>", out);
    write_output(out, a);
    fputs("</mtd></mtr>\n</mtable></math>\n", out);
}

void sr_equation_write_remarks(FILE *out, const srnn_attention *a) {
    if (a->position == SRNN_POSITION_NONE)
        fputs("Positions are not marked. ", out);
    if (a->position == SRNN_POSITION_ROPE_FEATURES)
        fputs("Features are rotated by their positions in the weights of the values, and not in "
              "the row sum below. ",
              out);
    if (a->position == SRNN_POSITION_ROPE_CHUNKS)
        fputs("Positions are the numbers of chunks. ", out);
    if (a->feature == SRNN_FEATURE_NORM_SPLIT || a->feature == SRNN_FEATURE_NORM_COSINE)
        fputs("\u03c6, different for q and k, has twice as many numbers, given below. ", out);
    if (a->wiring.short_conv)
        fprintf(out, "A causal convolution of width %d runs over q, k and v first%s. ",
                a->wiring.short_conv,
                a->wiring.conv_activation == SRNN_CONV_ACTIVATION_SILU ? ", and SiLU" : "");
    if (a->wiring.prefix_tokens)
        fprintf(out, "%d empty tokens stand in front of every sequence. ", a->wiring.prefix_tokens);
    if (a->wiring.qk_norm)
        fputs("q and k are normalised before the equation reads them. ", out);
    if (a->wiring.softmax_scale != 0)
        fprintf(out, "The product of q and k is scaled by %g. ", a->wiring.softmax_scale);
    if (a->detach)
        fputs("The denominator counts as a constant in the backward pass. ", out);
    if (a->window)
        fprintf(out, "Row i sees the last %d keys, its own included. ", a->window);
    if (a->sink == SRNN_SINK_LEARNED)
        fputs("b is a learned number per head. ", out);
    if (a->decay == SRNN_DECAY_LEARNED)
        fputs("C is the running sum of a learned gate. ", out);
    if (a->decay != SRNN_DECAY_NONE && a->decay != SRNN_DECAY_LEARNED)
        fputs("C is the running sum of the logarithms of learned gates. ", out);
    if (a->value_gate == SRNN_VALUE_GATE_TIME_STEP)
        fputs("\u0394 is softplus of a learned number, which drives the decay too. ", out);
    if (a->skip == SRNN_SKIP_HEAD || a->skip == SRNN_SKIP_CHANNEL)
        fputs("skip is the value itself times a learned number. ", out);
    if (a->skip == SRNN_SKIP_CONV)
        fprintf(out, "skip is SiLU of a causal convolution of the values, %d wide. ", a->skip_conv);
    if (a->levels == SRNN_LEVELS_FENWICK)
        fputs("\u03bb is a learned positive number for each level, the bit length of i xor j, "
              "both counted from 0. ",
              out);
    if (a->write == SRNN_WRITE_DELTA)
        fputs("u is what the delta rule makes of v: v less what its key reads from earlier writes, "
              "times a learned gate. ",
              out);
    if (a->write_width == SRNN_WIDTH_CHANNEL)
        fputs("What is taken back and what is written have a gate for every channel. ", out);
    if (a->write == SRNN_WRITE_REMOVAL)
        fputs("u is v, and with every token what a removal key of its own reads from earlier "
              "writes is taken back, under that key times a learned gate. ",
              out);
    if (a->skip == SRNN_SKIP_BONUS)
        fputs("After the norm the value itself is added, times the product of q, k and a learned "
              "vector. ",
              out);
    if (a->write_range == SRNN_WRITE_RANGE_2)
        fputs("That gate is between 0 and 2. ", out);
    if (a->pool)
        fprintf(out,
                "k and v are gated running averages that restart every %d tokens; of the chunks "
                "before its own, row i sees only the last token, and of its own only itself. ",
                a->pool);
}
