/* epilogue.c: normaliser, gates and norm after the core, and their backward; compiled per
 * type. */
#include "equation/epilogue.h"
#include "attention/cpu/shared/heads.h"
#include "attention/cpu/shared/prologue.h"
#include "attention/cpu/shared/rows.h"
#include "attention/cpu/shared/simd.h"
#include "base/threads.h"
#include "equation/operands.h"

#include <math.h>
#include <string.h>

/* The parameters of a norm, in double; the floor depends on the row. */
typedef struct norm_numbers {
    double weight[SR_VALUE_SIZE_MAX], bias[SR_VALUE_SIZE_MAX];
} norm_numbers;

static void load_norm(double *weight, double *bias, const srnn_problem *p, const srnn_operands *in,
                      int64_t from, int n) {
    const real *w = in->norm_weight, *b = in->norm_bias;
    const bool weighted = sr_operand_used(SR_OPERAND_NORM_WEIGHT, &p->attention);
    const bool biased = sr_operand_used(SR_OPERAND_NORM_BIAS, &p->attention);
    for (int d = 0; d < n; d++) {
        weight[d] = weighted ? (double)w[from + d] : 1.0;
        bias[d] = biased ? (double)b[from + d] : 0.0;
    }
}

/* True if the norm covers the channels of several heads. */
static bool norm_is_wide(const srnn_attention *a) {
    return a->norm != SRNN_NORM_NONE && a->norm_width == SRNN_NORM_WIDTH_ROW;
}

/* The norm of a single row of head h; none if the norm covers several heads. */
static sr_row_norm norm_of(const srnn_problem *p, const srnn_operands *in, norm_numbers *numbers,
                           int64_t h) {
    const bool wide = norm_is_wide(&p->attention);
    if (!wide)
        load_norm(numbers->weight, numbers->bias, p, in,
                  sr_norm_weighs_heads(&p->attention) ? h * p->Dv : 0, p->Dv);
    return (sr_row_norm){.norm = wide ? SRNN_NORM_NONE : p->attention.norm,
                         .n = p->Dv,
                         .epsilon = sr_row_norm_epsilon(&p->attention, p->Dv),
                         .weight = numbers->weight,
                         .bias = numbers->bias};
}

/* out = post * norm(factor * x). Without a norm, the common case, a single multiplication. */
static void norm_row(real *out, const real *x, const sr_row_norm *rule, double factor,
                     double post) {
    double row[SR_VALUE_SIZE_MAX];
    if (rule->norm == SRNN_NORM_NONE) {
        const real whole = (real)(factor * post);
        for (int d = 0; d < rule->n; d++)
            out[d] = whole * x[d];
        return;
    }
    for (int d = 0; d < rule->n; d++)
        row[d] = (double)x[d];
    sr_row_normalise(row, rule, factor, post);
    for (int d = 0; d < rule->n; d++)
        out[d] = (real)row[d];
}

/* dx = gradient of x = factor * numerator through the norm, given du; adds the gradients of weight
 * (n) and bias (n) to `partial`. `scratch` has 2 n numbers. */
static void norm_row_backward(double *dx, double *partial, const double *du, const double *x,
                              const sr_row_norm *rule, double *scratch) {
    const double *weight = rule->weight;
    const int n = rule->n;
    switch (rule->norm) {
    case SRNN_NORM_NONE:
        memcpy(dx, du, (size_t)n * sizeof *dx);
        return;
    case SRNN_NORM_LAYER: {
        double *hat = scratch, *d_hat = scratch + n;
        memcpy(hat, x, (size_t)n * sizeof *hat);
        const double inverse = sr_row_centre(hat, n, rule->epsilon);
        for (int d = 0; d < n; d++) {
            hat[d] *= inverse;
            d_hat[d] = du[d] * weight[d];
            partial[d] += du[d] * hat[d];
            partial[n + d] += du[d];
        }
        const double mean = sr_row_total(d_hat, n) / n, along = sr_row_dot(d_hat, hat, n) / n;
        for (int d = 0; d < n; d++)
            dx[d] = inverse * (d_hat[d] - mean - hat[d] * along);
        return;
    }
    case SRNN_NORM_RMS: {
        double *d_hat = scratch;
        const double inverse = 1.0 / sqrt(sr_row_dot(x, x, n) / n + rule->epsilon);
        for (int d = 0; d < n; d++) {
            d_hat[d] = du[d] * weight[d];
            partial[d] += du[d] * x[d] * inverse;
        }
        const double along = sr_row_dot(d_hat, x, n) * inverse * inverse / n;
        for (int d = 0; d < n; d++)
            dx[d] = inverse * (d_hat[d] - x[d] * along);
        return;
    }
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED: {
        const double length = sqrt(sr_row_dot(x, x, n));
        const bool floored = length < rule->floor;
        const double inverse = 1.0 / (floored ? rule->floor : length);
        const double factor = sr_norm_length_factor(rule->norm, n);
        const double along = floored ? 0.0 : sr_row_dot(x, du, n) * inverse * inverse;
        for (int d = 0; d < n; d++)
            dx[d] = factor * inverse * (du[d] - along * x[d]);
        return;
    }
    }
}

/* True if the output is more than a scalar times the numerator, normed per head, times a scalar. */
static bool row_is_wide(const srnn_attention *a) {
    const bool gated = a->output_gate == SRNN_GATE_SIGMOID || a->post_gate;
    return a->skip != SRNN_SKIP_NONE || norm_is_wide(a) ||
           (gated && a->gate_width == SRNN_WIDTH_CHANNEL);
}

/* The inputs of a row's output gate: one number, or Dv. */
static const real *gate_numbers(const sr_attention_call *call, int64_t b, int h, int64_t t) {
    const srnn_attention *a = &call->plan->problem.attention;
    return sr_operand_used(SR_OPERAND_OUTPUT_GATE, a) ? tensor_row(call->in->output_gate, b, h, t)
                                                      : NULL;
}

/* The smallest normal number of the type. */
static const double REAL_LEAST = sizeof(real) == sizeof(double) ? DBL_MIN : (double)FLT_MIN;

/* The logit of a head's sink: learned, or 0. */
static double sink_logit(const srnn_problem *p, const srnn_operands *in, int h) {
    const bool learned = sr_operand_used(SR_OPERAND_SINKS, &p->attention);
    return learned ? (double)((const real *)in->sinks)[h] : 0.0;
}

static double keys_seen(const srnn_attention *a, int64_t length) {
    return (double)sr_keys_seen(a, length);
}

/* Everything that a row's output depends on. */
typedef struct row_facts {
    const real *numerator; /* (n) */
    sr_query_row row;
    sr_row_factors factors;
} row_facts;

/* The scalar factors of a row; for a wide row, without the gate that gate_row computes. */
static sr_row_factors factors_of(const srnn_attention *a, const sr_query_row *row, bool wide) {
    if (!wide)
        return sr_row_factors_of(a, row);
    const bool later = a->output_gate == SRNN_GATE_SIGMOID;
    return (sr_row_factors){sr_row_normaliser(a, row), later ? 1.0 : sr_row_output_gate(a, row),
                            1.0};
}

/* The value of a gate at z, and its slope. */
static inline vec gate_of(vec *slope, srnn_gate_shape shape, vec z) {
    vec rest;
    const vec sigmoid = vec_sigmoid_parts(z, &rest);
    const vec silu = z * sigmoid, silu_slope = sigmoid * ((real)1 + z * rest);
    switch (shape) {
    case SRNN_GATE_SHAPE_SIGMOID:
        break;
    case SRNN_GATE_SHAPE_SILU:
        *slope = silu_slope;
        return silu;
    case SRNN_GATE_SHAPE_SILU_SQUARE:
        *slope = (real)2 * silu * silu_slope;
        return silu * silu;
    case SRNN_GATE_SHAPE_IDENTITY:
        *slope = vec_all(1);
        return z;
    }
    *slope = sigmoid * rest;
    return sigmoid;
}

/* value (n) and, unless NULL, slope (n) of a row's gate. */
static void gate_row(double *value, double *slope, const srnn_attention *a, const real *z, int n) {
    const int own = a->gate_width == SRNN_WIDTH_CHANNEL ? n : 1;
    for (int d = 0; d < own; d += LANES) {
        vec slopes;
        vec_to_doubles(value + d, gate_of(&slopes, a->gate_shape, vec_load_part(z + d, own - d)),
                       own - d);
        if (slope)
            vec_to_doubles(slope + d, slopes, own - d);
    }
    for (int d = own; d < n; d++) {
        value[d] = value[0];
        if (slope)
            slope[d] = slope[0];
    }
}

/* Adds the skip to y (Dv) of a row. */
static void add_skip(double *y, const sr_attention_call *call, sr_rows at) {
    const srnn_problem *p = &call->plan->problem;
    const srnn_skip skip = p->attention.skip;
    if (skip == SRNN_SKIP_NONE || skip == SRNN_SKIP_BONUS)
        return;
    const bool conv = skip == SRNN_SKIP_CONV, channel = skip == SRNN_SKIP_CHANNEL;
    const real *from =
        tensor_row(conv ? call->in->skip : call->in->v, at.b, sr_value_head(p, at.h), at.t);
    const real *weight = call->in->skip_weight;
    const double whole = conv || channel ? 1.0 : (double)weight[at.h];
    for (int d = 0; d < p->Dv; d++)
        y[d] += (channel ? (double)weight[at.h * p->Dv + d] : whole) * (double)from[d];
}

/* gate (Dv) and y (Dv) of a row, whose product is the input of the norm; slope (Dv) of the gate
 * unless NULL. */
static void wide_row(double *gate, double *slope, double *y, const sr_attention_call *call,
                     sr_rows at, const row_facts *facts) {
    const srnn_problem *p = &call->plan->problem;
    const double inverse = 1.0 / facts->factors.normaliser;
    for (int d = 0; d < p->Dv; d++) {
        y[d] = (double)facts->numerator[d] * inverse;
        gate[d] = facts->factors.gate;
    }
    add_skip(y, call, at);
    if (p->attention.output_gate == SRNN_GATE_SIGMOID)
        gate_row(gate, slope, &p->attention, gate_numbers(call, at.b, at.h, at.t), p->Dv);
}

static void post_row(double *row, const srnn_attention *a, const real *z, int n) {
    double gate[SR_VALUE_SIZE_MAX];
    if (!a->post_gate)
        return;
    gate_row(gate, NULL, a, z, n);
    for (int d = 0; d < n; d++)
        row[d] *= gate[d];
}

/* sum_c q_c k_c rho_c of a row; stores q_c k_c in terms (D) unless NULL. */
static double bonus_of(const sr_attention_call *call, sr_rows at, double *terms) {
    const srnn_problem *p = &call->plan->problem;
    const int kv = sr_value_head(p, at.h);
    const real *q = tensor_row(call->in->q, at.b, sr_shared_head(p, at.h), at.t);
    const real *k = tensor_row(call->in->k, at.b, sr_shared_head(p, kv), at.t);
    const real *rho = (const real *)call->in->skip_weight + (int64_t)at.h * p->D;
    double sum = 0.0;
    for (int c = 0; c < p->D; c++) {
        const double own = (double)q[c] * (double)k[c];
        sum += own * (double)rho[c];
        if (terms)
            terms[c] = own;
    }
    return sum;
}

/* Adds the bonus, if the variant has one, to a row (Dv) after its norm. */
static void add_bonus(double *row, const sr_attention_call *call, sr_rows at) {
    const srnn_problem *p = &call->plan->problem;
    if (p->attention.skip != SRNN_SKIP_BONUS)
        return;
    const real *v = tensor_row(call->in->v, at.b, sr_value_head(p, at.h), at.t);
    const double bonus = bonus_of(call, at, NULL);
    for (int d = 0; d < p->Dv; d++)
        row[d] += bonus * (double)v[d];
}

/* Writes one row of call->o, except for a norm over several heads and what follows it. */
static void write_wide_row(const sr_attention_call *call, sr_rows at, const row_facts *facts,
                           const sr_row_norm *rule) {
    const srnn_attention *a = &call->plan->problem.attention;
    double row[SR_VALUE_SIZE_MAX], y[SR_VALUE_SIZE_MAX];
    wide_row(row, NULL, y, call, at, facts);
    for (int d = 0; d < rule->n; d++)
        row[d] *= y[d];
    if (rule->norm != SRNN_NORM_NONE)
        sr_row_normalise(row, rule, 1.0, 1.0);
    add_bonus(row, call, at);
    if (!norm_is_wide(a))
        post_row(row, a, gate_numbers(call, at.b, at.h, at.t), rule->n);
    real *out = tensor_row(call->o, at.b, at.h, at.t);
    for (int d = 0; d < rule->n; d++)
        out[d] = (real)row[d];
}

void SR_ISA_REAL(sr_epilogue_rows)(sr_row_results results, const sr_row_workspace *row_work,
                                   const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const srnn_attention *a = &p->attention;
    const srnn_operands *in = call->in;
    const bool gated = a->output_gate != SRNN_GATE_NONE || a->post_gate, wide = row_is_wide(a);
    const double sink = sink_logit(p, in, rows.h);
    norm_numbers numbers;
    sr_row_norm rule = norm_of(p, in, &numbers, rows.h);
    const double *cumulative =
        row_work->cumulative ? row_work->cumulative + sr_row_index(p, p->H, rows.b, rows.h, rows.t)
                             : NULL;
    for (int64_t r = 0; r < rows.count; r++) {
        const double logit =
            gated ? (double)*tensor_row(in->output_gate, rows.b, rows.h, rows.t + r) : 0.0;
        const double row_sum = (double)results.row_sum[r];
        const double maximum = results.maximum ? (double)results.maximum[r] : 0.0;
        row_facts facts = {.numerator = results.numerator + r * results.ld,
                           .row = {row_sum,
                                   keys_seen(a,
                                             results.length + r +
                                                 sr_tokens_before(call->plan, rows.b, rows.t + r)),
                                   logit, cumulative ? cumulative[r] : 0.0, REAL_LEAST,
                                   sr_row_sink(a, sink, maximum)}};
        const sr_row_factors f = facts.factors = factors_of(a, &facts.row, wide);
        rule.floor = sr_row_norm_floor(a, row_sum);
        if (wide)
            write_wide_row(call, (sr_rows){rows.b, rows.h, rows.t + r, 1}, &facts, &rule);
        else
            norm_row(tensor_row(call->o, rows.b, rows.h, rows.t + r), facts.numerator, &rule,
                     f.gate / f.normaliser, f.post);
    }
}

/* ---- norms over several heads ---- */

/* Number of heads that a norm over a row covers. */
static int norm_heads(const srnn_problem *p) {
    return p->attention.share == SRNN_SHARE_QK ? p->H / p->Hkv : p->H;
}

typedef struct wide_norm {
    const sr_row_workspace *row_work;
    const sr_attention_call *call;
} wide_norm;

static sr_row_norm wide_rule(const srnn_problem *p, const double *weight, const double *bias) {
    return (sr_row_norm){.norm = p->attention.norm,
                         .n = norm_heads(p) * p->Dv,
                         .floor = SR_L2_FLOOR,
                         .epsilon = sr_row_norm_epsilon(&p->attention, p->Dv),
                         .weight = weight,
                         .bias = bias};
}

/* TOKENS tokens of one group of heads; call->o holds the norm's input. Each worker has its part of
 * row_work->norm_workspace: weight, bias and a row. */
static void finish_task(void *context, int64_t task, int worker) {
    const wide_norm *x = context;
    const srnn_problem *p = &x->call->plan->problem;
    const int heads = norm_heads(p), groups = p->H / heads, n = heads * p->Dv;
    const int64_t strips = (p->T + TOKENS - 1) / TOKENS, from = task % strips * TOKENS;
    const int64_t b = task / strips / groups;
    const int first = (int)(task / strips % groups) * heads;
    double *weight =
        x->row_work->norm_workspace + worker * SR_NORM_WORKSPACE * (int64_t)p->H * p->Dv;
    double *bias = weight + n, *row = bias + n;
    load_norm(weight, bias, p, x->call->in, (int64_t)first * p->Dv, n);
    const sr_row_norm rule = wide_rule(p, weight, bias);
    for (int64_t t = from; t < from + TOKENS && t < p->T; t++) {
        for (int h = 0; h < heads; h++) {
            const real *in = tensor_row(x->call->o, b, first + h, t);
            for (int d = 0; d < p->Dv; d++)
                row[h * p->Dv + d] = (double)in[d];
        }
        sr_row_normalise(row, &rule, 1.0, 1.0);
        for (int h = 0; h < heads; h++) {
            double *own = row + (int64_t)h * p->Dv;
            real *out = tensor_row(x->call->o, b, first + h, t);
            post_row(own, &p->attention, gate_numbers(x->call, b, first + h, t), p->Dv);
            for (int d = 0; d < p->Dv; d++)
                out[d] = (real)own[d];
        }
    }
}

void SR_ISA_REAL(sr_epilogue_finish)(const sr_row_workspace *row_work,
                                     const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    const int64_t strips = (p->T + TOKENS - 1) / TOKENS;
    wide_norm context = {row_work, call};
    if (norm_is_wide(&p->attention))
        sr_parallel(finish_task, &context, (int64_t)p->B * (p->H / norm_heads(p)) * strips,
                    sr_workers_worth(20.0 * (double)p->B * p->T * p->H * p->Dv, p->threads));
}

/* The sink of row `at`, relative to the saved maximum, as in the forward. */
static double saved_sink(const sr_attention_call *call, int h, int64_t at) {
    const srnn_problem *p = &call->plan->problem;
    return sr_row_sink(&p->attention, sink_logit(p, call->in, h),
                       (double)((const real *)call->saved.maximum)[at]);
}

/* The scalar gradients of one row through post gate, norm, gate and normaliser. */
typedef struct row_gradient {
    double logit;      /* of the output gate, directly */
    double cumulative; /* of the output gate's running sum */
    double row_sum;
} row_gradient;

static void gate_backward(row_gradient *g, const srnn_attention *a, double gate, double d_gate) {
    switch (a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        g->logit += d_gate * gate * (1.0 - gate);
        break;
    case SRNN_GATE_INVERSE_EXP:
        g->logit -= d_gate * gate;
        break;
    case SRNN_GATE_INVERSE_CUMULATIVE:
        g->cumulative -= d_gate * gate * gate;
        break;
    }
}

static void denominator_backward(row_gradient *g, const srnn_attention *a, double d_denominator,
                                 double row_sum, double cumulative) {
    if (a->detach)
        return;
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        g->row_sum = d_denominator;
        break;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        g->row_sum = row_sum < 1.0 ? 0.0 : d_denominator;
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        g->cumulative += cumulative < 1.0 ? 0.0 : d_denominator;
        break;
    case SRNN_NORMALISER_ROW_LENGTH:
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
}

/* Computes d_numerator (n) and the scalar gradients of one row from d_o (n). Adds gradients of the
 * norm's parameters to `partial`. */
static row_gradient row_backward(real *d_numerator, double *partial, const real *d_o,
                                 const row_facts *row, const srnn_attention *a,
                                 const sr_row_norm *rule) {
    const sr_row_factors s = row->factors;
    const real *numerator = row->numerator;
    const int n = rule->n;
    double x[SR_VALUE_SIZE_MAX], du[SR_VALUE_SIZE_MAX], dx[SR_VALUE_SIZE_MAX];
    double scratch[2 * SR_VALUE_SIZE_MAX];
    row_gradient g = {0};
    for (int d = 0; d < n; d++)
        x[d] = s.gate / s.normaliser * (double)numerator[d];
    if (a->post_gate) {
        real unscaled[SR_VALUE_SIZE_MAX];
        norm_row(unscaled, numerator, rule, s.gate / s.normaliser, 1.0);
        g.logit = row_dot(d_o, unscaled, n) * s.post * (1.0 - s.post);
    }
    for (int d = 0; d < n; d++)
        du[d] = s.post * (double)d_o[d];
    norm_row_backward(dx, partial, du, x, rule, scratch);
    for (int d = 0; d < n; d++)
        du[d] = (double)numerator[d] / s.normaliser;
    const double d_gate = sr_row_dot(dx, du, n); /* <dx, y> */
    gate_backward(&g, a, s.gate, d_gate);
    denominator_backward(&g, a, -s.gate * d_gate / s.normaliser, row->row.row_sum,
                         row->row.gate_sum);
    for (int d = 0; d < n; d++)
        d_numerator[d] = (real)(s.gate / s.normaliser * dx[d]);
    return g;
}

typedef struct outputs_context {
    const sr_row_workspace *row_work;
    const sr_attention_call *call;
} outputs_context;

/* Arguments of the backward of one wide row. */
typedef struct wide_place {
    const outputs_context *x;
    sr_rows at;
    const row_facts *facts;
    const sr_row_norm *rule;
    double *partial; /* of norm parameters */
} wide_place;

/* Adds d_z (Dv) to the gradient of a row's output gate, or stores it if `set`. */
static void put_gate_gradient(const sr_attention_call *call, sr_rows at, const double *d_z,
                              bool set) {
    const srnn_problem *p = &call->plan->problem;
    if (!sr_operand_used(SR_OPERAND_OUTPUT_GATE, &p->attention) ||
        !call->gradients->output_gate.data)
        return;
    real *out = tensor_row(call->gradients->output_gate, at.b, at.h, at.t);
    const bool channels = p->attention.gate_width == SRNN_WIDTH_CHANNEL;
    if (!channels)
        *out = (real)((set ? 0.0 : (double)*out) + sr_row_total(d_z, p->Dv));
    for (int d = 0; channels && d < p->Dv; d++)
        out[d] = (real)((set ? 0.0 : (double)out[d]) + d_z[d]);
}

/* du (n) = post * d_o, and d_z (n) of the post gate, given d_o and the gate's other factor. */
static void post_backward(double *du, double *d_z, const sr_attention_call *call, sr_rows at,
                          const double *before) {
    const srnn_attention *a = &call->plan->problem.attention;
    const real *d_o = tensor_row(call->o, at.b, at.h, at.t);
    const int n = call->plan->problem.Dv;
    double gate[SR_VALUE_SIZE_MAX], slope[SR_VALUE_SIZE_MAX];
    for (int d = 0; d < n; d++) {
        gate[d] = 1.0;
        slope[d] = 0.0;
    }
    if (a->post_gate)
        gate_row(gate, slope, a, gate_numbers(call, at.b, at.h, at.t), n);
    for (int d = 0; d < n; d++) {
        du[d] = gate[d] * (double)d_o[d];
        d_z[d] = (double)d_o[d] * before[d] * slope[d];
    }
}

/* Backward of the bonus, given du (Dv), the gradient of the row after its norm: d_skip, and the
 * row's contribution to the gradient of the weights. */
static void bonus_backward(const wide_place *w, const double *du) {
    const sr_attention_call *call = w->x->call;
    const sr_row_workspace *row_work = w->x->row_work;
    const srnn_problem *p = &call->plan->problem;
    if (p->attention.skip != SRNN_SKIP_BONUS)
        return;
    const real *v = tensor_row(call->in->v, w->at.b, sr_value_head(p, w->at.h), w->at.t);
    real *d_skip = row_work->d_skip + sr_row_index(p, p->H, w->at.b, w->at.h, w->at.t) * p->Dv;
    double *partial = row_work->skip_partial + (w->at.b * p->H + w->at.h) * p->D;
    double terms[SR_HEAD_SIZE_MAX], d_sum = 0.0;
    bonus_of(call, w->at, terms);
    for (int d = 0; d < p->Dv; d++) {
        d_sum += du[d] * (double)v[d];
        d_skip[d] = (real)du[d];
    }
    for (int c = 0; c < p->D; c++)
        partial[c] += d_sum * terms[c];
}

/* dx (n): gradient of the norm's input, whose value is row (n). Includes the post gate's
 * contribution. */
static void wide_norm_backward(double *dx, const wide_place *w, double *row) {
    const sr_attention_call *call = w->x->call;
    const int n = w->rule->n;
    double normed[SR_VALUE_SIZE_MAX], du[SR_VALUE_SIZE_MAX], d_z[SR_VALUE_SIZE_MAX];
    double scratch[2 * SR_VALUE_SIZE_MAX];
    memcpy(normed, row, (size_t)n * sizeof *normed);
    if (w->rule->norm != SRNN_NORM_NONE)
        sr_row_normalise(normed, w->rule, 1.0, 1.0);
    add_bonus(normed, call, w->at);
    post_backward(du, d_z, call, w->at, normed);
    put_gate_gradient(call, w->at, d_z, true);
    bonus_backward(w, du);
    norm_row_backward(dx, w->partial, du, row, w->rule, scratch);
}

/* d_numerator, d_skip, the row's contribution to the gradients of the skip's weights, and its
 * scalar gradients, given dx. In double as long as terms may cancel through the norm: those of a
 * gate if the norm is per head, those of a skip if it dominates the row. */
static row_gradient wide_row_backward(const wide_place *w) {
    const sr_attention_call *call = w->x->call;
    const sr_row_workspace *row_work = w->x->row_work;
    const srnn_problem *p = &call->plan->problem;
    const srnn_attention *a = &p->attention;
    const sr_row_factors f = w->facts->factors;
    const int64_t at = sr_row_index(p, p->H, w->at.b, w->at.h, w->at.t);
    double gate[SR_VALUE_SIZE_MAX], y[SR_VALUE_SIZE_MAX], dx[SR_VALUE_SIZE_MAX];
    double d_gate[SR_VALUE_SIZE_MAX], row[SR_VALUE_SIZE_MAX], slope[SR_VALUE_SIZE_MAX];
    const real *v = tensor_row(call->in->v, w->at.b, sr_value_head(p, w->at.h), w->at.t);
    const bool bonus = a->skip == SRNN_SKIP_BONUS;
    double *skipped = row_work->skip_partial && !bonus
                          ? row_work->skip_partial + (w->at.b * p->H + w->at.h) * p->Dv
                          : NULL;
    row_gradient g = {0};
    wide_row(gate, slope, y, call, w->at, w->facts);
    for (int d = 0; d < p->Dv; d++)
        row[d] = gate[d] * y[d];
    if (row_work->d_before)
        memcpy(dx, row_work->d_before + at * p->Dv, (size_t)p->Dv * sizeof *dx);
    else
        wide_norm_backward(dx, w, row);
    const double inverse = 1.0 / f.normaliser;
    real *d_numerator = row_work->d_numerator + at * p->Dv;
    for (int d = 0; d < p->Dv; d++) {
        d_gate[d] = dx[d] * y[d];
        dx[d] *= gate[d]; /* of y from here on */
        row[d] = dx[d] * (double)w->facts->numerator[d];
    }
    for (int d = 0; d < p->Dv; d++)
        d_numerator[d] = (real)(dx[d] * inverse);
    for (int d = 0; row_work->d_skip && !bonus && d < p->Dv; d++)
        row_work->d_skip[at * p->Dv + d] = (real)dx[d];
    for (int d = 0; skipped && d < p->Dv; d++)
        skipped[d] += dx[d] * (double)v[d];
    const double divided = sr_row_total(row, p->Dv) * inverse * inverse;
    denominator_backward(&g, a, -divided, w->facts->row.row_sum, w->facts->row.gate_sum);
    if (a->output_gate == SRNN_GATE_SIGMOID) {
        for (int d = 0; d < p->Dv; d++)
            d_gate[d] *= slope[d];
        put_gate_gradient(call, w->at, d_gate, false);
    } else if (a->output_gate != SRNN_GATE_NONE) {
        gate_backward(&g, a, f.gate, sr_row_total(d_gate, p->Dv));
        memset(d_gate, 0, sizeof d_gate);
        d_gate[0] = g.logit;
        put_gate_gradient(call, w->at, d_gate, false);
    }
    return g;
}

/* Backward of a norm over several heads, one token: writes dx to d_before and adds the gradients of
 * its parameters. `normed` is its output, `row` its input. */
static void wide_token_backward(const outputs_context *x, const sr_row_norm *rule, int64_t b,
                                int first, int64_t t, double *rows) {
    const srnn_problem *p = &x->call->plan->problem;
    const int n = rule->n, heads = n / p->Dv;
    double *row = rows, *normed = row + n, *du = normed + n, *dx = du + n, *scratch = dx + n;
    for (int h = first; h < first + heads; h++) {
        const int64_t at = sr_row_index(p, p->H, b, h, t), from = (int64_t)(h - first) * p->Dv;
        const real *z = gate_numbers(x->call, b, h, t);
        const int64_t seen =
            t - x->call->plan->first[b * p->T + t] + 1 + sr_tokens_before(x->call->plan, b, t);
        row_facts facts = {.numerator = (const real *)x->call->saved.numerator + at * p->Dv,
                           .row = {(double)((const real *)x->call->saved.row_sum)[at],
                                   keys_seen(&p->attention, seen), z ? (double)*z : 0.0,
                                   x->row_work->cumulative ? x->row_work->cumulative[at] : 0.0,
                                   REAL_LEAST, saved_sink(x->call, h, at)}};
        facts.factors = factors_of(&p->attention, &facts.row, true);
        double y[SR_VALUE_SIZE_MAX];
        wide_row(row + from, NULL, y, x->call, (sr_rows){b, h, t, 1}, &facts);
        for (int d = 0; d < p->Dv; d++)
            normed[from + d] = row[from + d] *= y[d];
    }
    sr_row_normalise(normed, rule, 1.0, 1.0);
    for (int h = first; h < first + heads; h++) {
        const int64_t from = (int64_t)(h - first) * p->Dv;
        double d_z[SR_VALUE_SIZE_MAX];
        post_backward(du + from, d_z, x->call, (sr_rows){b, h, t, 1}, normed + from);
        put_gate_gradient(x->call, (sr_rows){b, h, t, 1}, d_z, true);
    }
    double *partial = scratch + 2 * n; /* gradients of weight and bias of the whole group */
    norm_row_backward(dx, partial, du, row, rule, scratch);
    for (int h = 0; h < heads; h++)
        memcpy(x->row_work->d_before + sr_row_index(p, p->H, b, first + h, t) * p->Dv,
               dx + (int64_t)h * p->Dv, (size_t)p->Dv * sizeof *dx);
}

static void wide_task(void *context, int64_t task, int worker) {
    const outputs_context *x = context;
    const srnn_problem *p = &x->call->plan->problem;
    const int heads = norm_heads(p), groups = p->H / heads, n = heads * p->Dv;
    const int64_t b = task / groups;
    const int first = (int)(task % groups) * heads;
    double *weight = x->row_work->norm_workspace + task * SR_NORM_WORKSPACE * n, *bias = weight + n;
    double *rows = bias + n, *partial = rows + 6 * n;
    (void)worker;
    load_norm(weight, bias, p, x->call->in, (int64_t)first * p->Dv, n);
    const sr_row_norm rule = wide_rule(p, weight, bias);
    for (int d = 0; d < 2 * n; d++)
        partial[d] = 0.0;
    for (int64_t t = 0; t < p->T; t++)
        wide_token_backward(x, &rule, b, first, t, rows);
    for (int d = 0; x->row_work->norm_partial && d < n; d++) {
        double *own = x->row_work->norm_partial + (b * p->H + first + d / p->Dv) * 2 * p->Dv;
        own[d % p->Dv] = partial[d];
        own[p->Dv + d % p->Dv] = partial[n + d];
    }
}

/* Gradient of the output gate through its running sum: adds exp(g_m) times the sum of later
 * gradients. */
static void cumulative_backward(const outputs_context *x, const sr_document_range *document,
                                int h) {
    const srnn_problem *p = &x->call->plan->problem;
    int64_t base = sr_row_index(p, p->H, document->b, h, document->start);
    double later = 0.0;
    for (int64_t t = document->length - 1; t >= 0; t--) {
        later += x->row_work->d_cumulative[base + t];
        double logit =
            (double)*tensor_row(x->call->in->output_gate, document->b, h, document->start + t);
        real *out =
            tensor_row(x->call->gradients->output_gate, document->b, h, document->start + t);
        *out = (real)((double)*out + exp(logit) * later);
    }
    if (x->call->plan->sums.d_before && document->start == 0)
        x->call->plan->sums.d_before[document->b * p->H + h] = document->before > 0 ? later : 0.0;
}

/* One head of one document; adds gradients of the norm's parameters to `partial`. */
static void document_backward(const outputs_context *x, const sr_document_range *document, int h,
                              sr_row_norm *rule, double *partial) {
    const sr_attention_call *call = x->call;
    const sr_row_workspace *row_work = x->row_work;
    const srnn_problem *p = &call->plan->problem;
    const srnn_attention *a = &p->attention;
    bool uses_gate = sr_operand_used(SR_OPERAND_OUTPUT_GATE, a);
    bool wants_gate = uses_gate && call->gradients->output_gate.data;
    bool wide = row_is_wide(a) || a->gate_shape != SRNN_GATE_SHAPE_SIGMOID;
    for (int64_t t = 0; t < document->length; t++) {
        int64_t at = sr_row_index(p, p->H, document->b, h, document->start + t);
        const double logit = uses_gate ? (double)*tensor_row(call->in->output_gate, document->b, h,
                                                             document->start + t)
                                       : 0.0;
        row_facts facts = {.numerator = (const real *)call->saved.numerator + at * p->Dv,
                           .row = {(double)((const real *)call->saved.row_sum)[at],
                                   keys_seen(a, document->before + t + 1), logit,
                                   row_work->cumulative ? row_work->cumulative[at] : 0.0,
                                   REAL_LEAST, saved_sink(call, h, at)}};
        facts.factors = factors_of(a, &facts.row, wide);
        rule->floor = sr_row_norm_floor(a, facts.row.row_sum);
        const wide_place place = {
            x, {document->b, h, document->start + t, 1}, &facts, rule, partial};
        row_gradient g =
            wide ? wide_row_backward(&place)
                 : row_backward(row_work->d_numerator + at * p->Dv, partial,
                                tensor_row(call->o, document->b, h, document->start + t), &facts, a,
                                rule);
        row_work->d_row_sum[at] = (real)g.row_sum;
        if (row_work->sink_partial) /* g.row_sum is the gradient of the whole normaliser */
            row_work->sink_partial[document->b * p->H + h] += g.row_sum * facts.row.sink;
        if (row_work->d_cumulative)
            row_work->d_cumulative[at] = g.cumulative;
        if (wants_gate && !wide)
            *tensor_row(call->gradients->output_gate, document->b, h, document->start + t) =
                (real)g.logit;
    }
    if (wants_gate && row_work->cumulative)
        cumulative_backward(x, document, h);
}

static void outputs_task(void *context, int64_t task, int worker) {
    const outputs_context *x = context;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->problem;
    int64_t b = task / p->H;
    double *partial =
        x->row_work->norm_partial ? x->row_work->norm_partial + task * 2 * p->Dv : NULL;
    (void)worker;
    for (int d = 0; partial && !norm_is_wide(&p->attention) && d < 2 * p->Dv; d++)
        partial[d] = 0.0;
    const int skips = sr_skip_partials(p);
    for (int d = 0; x->row_work->skip_partial && d < skips; d++)
        x->row_work->skip_partial[task * skips + d] = 0.0;
    if (x->row_work->sink_partial)
        x->row_work->sink_partial[task] = 0.0;
    norm_numbers numbers;
    sr_row_norm rule = norm_of(p, x->call->in, &numbers, task % p->H);
    for (int64_t n = plan->row_documents[b]; n < plan->row_documents[b + 1]; n++)
        document_backward(x, &plan->documents[n], (int)(task % p->H), &rule, partial);
}

void SR_ISA_REAL(sr_epilogue_backward)(const sr_row_workspace *row_work,
                                       const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->problem;
    outputs_context context = {row_work, call};
    if (norm_is_wide(&p->attention))
        sr_parallel(wide_task, &context, (int64_t)p->B * (p->H / norm_heads(p)), p->threads);
    sr_parallel(outputs_task, &context, (int64_t)plan->problem.B * plan->problem.H,
                plan->problem.threads);
}
