/* call.cu: a call as kernels see it, and the workspace of prologue and epilogue. */
#include "attention/cuda/shared/call.h"

#include "attention/cuda/shared/sums.h"
#include "equation/facts.h"
#include "equation/score.h"

/* ---- scores ---- */

sr_score_class sr_score_class_of(const srnn_attention *a) {
    switch (a->score) {
    case SRNN_SCORE_EXP:
        return SR_CLASS_EXPONENTIAL;
    case SRNN_SCORE_LINEAR:
    case SRNN_SCORE_SIGMOID: /* it is evaluated where polynomials are */
        return SR_CLASS_POLYNOMIAL;
    case SRNN_SCORE_TAYLOR:
    case SRNN_SCORE_POWER:
        break;
    }
    return a->order <= SR_POLYNOMIAL_ORDER ? SR_CLASS_POLYNOMIAL : SR_CLASS_LONG;
}

/* The coefficients in powers of r, and those of the derivative. */
static void fill_polynomial(sr_score_rule *rule, const srnn_attention *a, double scale) {
    double factor = 1.0; /* scale^n / n! */
    rule->degree = sr_highest_order(a);
    for (int n = 0; n <= rule->degree; n++) {
        if (sr_has_order(a, n))
            rule->coefficient[n] =
                (float)(a->score == SRNN_SCORE_POWER ? factor * tgamma(n + 1.0) : factor);
        factor *= scale / (n + 1);
    }
    for (int n = 0; n < rule->degree; n++)
        rule->slope[n] = (float)(n + 1) * rule->coefficient[n + 1];
}

static void fill_long(sr_score_rule *rule, const srnn_attention *a) {
    const double precision = 3e-8, ln_2 = log(2.0);
    rule->power = a->score == SRNN_SCORE_POWER;
    rule->order = a->order;
    rule->log2_factorial[0] = (float)(lgamma(a->order + 1.0) / ln_2);
    rule->log2_factorial[1] = (float)(lgamma((double)a->order) / ln_2);
    rule->exp_from = (float)-sr_taylor_reach(a->order - 1, -1.0, precision);
    rule->exp_to = (float)sr_taylor_reach(a->order - 1, 1.0, precision);
}

sr_score_rule sr_score_rule_of(const srnn_attention *a, int D) {
    const double scale = sr_scale_factor(a, D), log2_e = 1.0 / log(2.0);
    sr_score_rule rule = {};
    rule.kind = sr_score_class_of(a);
    rule.clamped = a->clamp != 0.0;
    rule.clamp = (float)(a->clamp / scale);
    rule.capped = a->cap != 0.0;
    rule.cap_inverse = rule.capped ? (float)(scale / a->cap) : 0;
    rule.sigmoid = a->score == SRNN_SCORE_SIGMOID;
    rule.bias_log2 = (float)(a->score_bias * log2_e);
    rule.scale = (float)scale;
    rule.scale_log2 = (float)(scale * log2_e);
    rule.slope_unit = (float)scale;
    rule.decay_unit = (float)log2_e;
    rule.maximum = sr_row_scale_invariant(a);
    switch (rule.kind) {
    case SR_CLASS_EXPONENTIAL:
        if (!sr_decay_in_logits(a))
            rule.decay_unit = (float)(1.0 / scale);
        break;
    case SR_CLASS_POLYNOMIAL:
        rule.maximum = false;
        rule.slope_unit = rule.sigmoid ? (float)scale : 1;
        fill_polynomial(&rule, a, scale);
        break;
    case SR_CLASS_LONG:
        fill_long(&rule, a);
        break;
    }
    return rule;
}

static sr_choices choices_of(const srnn_attention *a) {
    sr_choices c = {};
    c.feature = a->feature;
    c.normaliser = a->normaliser;
    c.output_gate = a->output_gate;
    c.norm = a->norm;
    c.detach = a->detach;
    c.post_gate = a->post_gate;
    c.value_gate = a->value_gate;
    c.sink = a->sink;
    c.decays = a->decay != SRNN_DECAY_NONE;
    c.decays_logits = sr_decay_in_logits(a);
    c.cumulates = a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
                  a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
    c.gated = sr_uses_output_gate(a);
    c.floor_follows_rows = sr_floor_follows_rows(a);
    c.sums_rows = sr_needs_row_sum(a) || c.floor_follows_rows;
    c.only_divided = c.normaliser == SRNN_NORMALISER_ROW_SUM && !c.detach &&
                     c.norm == SRNN_NORM_NONE && c.output_gate == SRNN_GATE_NONE && !c.post_gate &&
                     c.sink == SRNN_SINK_NONE;
    c.epsilon = (float)a->epsilon;
    return c;
}

/* ---- workspace ---- */

/* (B, heads, T, width) with rows aligned to 16 bytes. */
template <class N>
static sr_strided<N> take_rows(const srnn_problem *p, int heads, int width, sr_layout *layout) {
    const int64_t unit = 16 / (int64_t)sizeof(N), row = (width + unit - 1) / unit * unit;
    const int64_t numbers = (int64_t)p->B * heads * p->T * row;
    N *data = (N *)sr_layout_take(layout, (size_t)numbers, sizeof(N));
    return {data, heads * p->T * row, p->T * row, row};
}

template <class T> static T *take(size_t count, sr_layout *layout) {
    return (T *)sr_layout_take(layout, count, sizeof(T));
}

template <class N>
sr_attention_scratch<N> sr_attention_scratch_place(const srnn_plan *plan, sr_layout *layout,
                                                   sr_feature_maker maker) {
    const srnn_problem *p = &plan->problem;
    const sr_choices c = choices_of(&p->attention);
    const size_t rows = (size_t)p->B * (size_t)p->T;
    const size_t q_rows = rows * (size_t)p->H, k_rows = rows * (size_t)p->Hkv;
    const bool power = c.normaliser == SRNN_NORMALISER_VALUE_POWER;
    sr_attention_scratch<N> s = {};
    if (c.feature != SRNN_FEATURE_IDENTITY && maker == SR_FEATURES_BEFORE) {
        s.q = take_rows<N>(p, p->H, p->D, layout);
        s.k = take_rows<N>(p, p->Hkv, p->D, layout);
    }
    if (c.feature == SRNN_FEATURE_UNIT_HEADS) {
        s.q_inverse = take<float>(rows * (size_t)p->D, layout);
        s.k_inverse = take<float>(rows * (size_t)p->D, layout);
    }
    if (c.value_gate || power) {
        s.v = take_rows<N>(p, p->Hkv, p->Dv, layout);
        s.value_factor = take<float>(k_rows, layout);
        s.value_dot = take<float>(k_rows, layout);
    }
    if (c.decays) {
        s.decay = take<double>(k_rows, layout);
        s.row_dot = take<float>(q_rows, layout);
        s.column_dot = take<float>(k_rows, layout);
        s.d_gate = take<double>(k_rows, layout);
    }
    if (p->attention.window)
        s.seen = take<int32_t>(rows, layout);
    if (c.sink == SRNN_SINK_LEARNED)
        s.d_sink = take<float>(q_rows, layout);
    if (c.sink == SRNN_SINK_LEARNED || sr_decay_has_rate(&p->attention))
        s.partial = take<double>((size_t)SR_SUM_PARTS * (size_t)p->H, layout);
    if (c.cumulates) {
        s.cumulative = take<double>(q_rows, layout);
        s.d_cumulative = take<float>(q_rows, layout);
    }
    s.row_scale = take<float>(q_rows, layout);
    s.d_row_sum = take<float>(q_rows, layout);
    if (c.norm != SRNN_NORM_NONE || sr_score_class_of(&p->attention) == SR_CLASS_LONG)
        s.d_numerator = take_rows<N>(p, p->H, p->Dv, layout);
    if (sr_norm_has_weight(c.norm))
        s.norm_partial = take<float>((size_t)SR_NORM_PARTS * 2 * (size_t)p->Dv, layout);
    return s;
}

/* ---- views ---- */

template <class N> static sr_strided<N> strided(srnn_tensor t) {
    return {(N *)t.data, t.batch, t.head, t.time};
}

template <class N> static sr_strided<const N> constant(sr_strided<N> rows) {
    return {rows.data, rows.batch, rows.head, rows.time};
}

/* What forward and backward have in common. */
template <class N>
static sr_attention_view<N> view_of(const sr_attention_call *call, sr_layout *layout,
                                    sr_feature_maker maker) {
    const srnn_problem *p = &call->plan->problem;
    const srnn_operands *in = call->in;
    sr_attention_view<N> view = {};
    view.B = p->B;
    view.H = p->H;
    view.Hkv = p->Hkv;
    view.T = p->T;
    view.D = p->D;
    view.Dv = p->Dv;
    view.group = p->H / p->Hkv;
    view.choices = choices_of(&p->attention);
    view.score = sr_score_rule_of(&p->attention, p->D);
    view.gate = sr_gate_rule_of(&p->attention, in, p->D);
    view.window = p->attention.window;
    view.document = call->plan->first;
    view.raw_q = strided<const N>(in->q);
    view.raw_k = strided<const N>(in->k);
    view.raw_v = strided<const N>(in->v);
    view.value_gate = strided<const N>(in->value_gate);
    view.output_gate = strided<const N>(in->output_gate);
    view.decay = strided<const N>(in->decay);
    view.norm_weight = (const float *)in->norm_weight;
    view.norm_bias = sr_norm_is_centred(p->attention.norm) ? (const float *)in->norm_bias : nullptr;
    view.value_power = (const float *)in->value_power;
    view.sinks = p->attention.sink == SRNN_SINK_LEARNED ? (const float *)in->sinks : nullptr;
    view.numerator = (N *)call->saved.numerator;
    view.row_sum = (float *)call->saved.row_sum;
    view.maximum = (float *)call->saved.maximum;
    view.scratch = sr_attention_scratch_place<N>(call->plan, layout, maker);
    view.first = view.scratch.seen ? view.scratch.seen : view.document;
    view.q = view.scratch.q.data ? constant(view.scratch.q) : view.raw_q;
    view.k = view.scratch.k.data ? constant(view.scratch.k) : view.raw_k;
    view.v = view.scratch.v.data ? constant(view.scratch.v) : view.raw_v;
    return view;
}

template <class N>
sr_attention_view<N> sr_attention_forward_view(const sr_attention_call *call, sr_layout *layout,
                                               sr_feature_maker maker) {
    sr_attention_view<N> view = view_of<N>(call, layout, maker);
    view.o = strided<N>(call->o);
    return view;
}

template <class N>
sr_attention_view<N> sr_attention_backward_view(const sr_attention_call *call, sr_layout *layout,
                                                sr_feature_maker maker) {
    const srnn_operands *gradients = call->gradients;
    sr_attention_view<N> view = view_of<N>(call, layout, maker);
    view.d_o = strided<const N>(call->o);
    view.d_numerator =
        view.scratch.d_numerator.data ? constant(view.scratch.d_numerator) : view.d_o;
    view.d_q = strided<N>(gradients->q);
    view.d_k = strided<N>(gradients->k);
    view.d_v = strided<N>(gradients->v);
    view.d_value_gate = strided<N>(gradients->value_gate);
    view.d_output_gate = strided<N>(gradients->output_gate);
    view.d_decay = strided<N>(gradients->decay);
    view.d_norm_weight = (float *)gradients->norm_weight;
    view.d_norm_bias = (float *)gradients->norm_bias;
    view.d_value_power = (float *)gradients->value_power;
    view.d_sinks = (float *)gradients->sinks;
    view.d_a_log = (float *)gradients->a_log;
    view.d_dt_bias = (float *)gradients->dt_bias;
    return view;
}

template <class N> bool sr_rows_aligned(const sr_strided<N> &rows) {
    const uint64_t unit = 16 / sizeof(N);
    return (uint64_t)(uintptr_t)rows.data % 16 == 0 && (uint64_t)rows.batch % unit == 0 &&
           (uint64_t)rows.head % unit == 0 && (uint64_t)rows.time % unit == 0;
}

#define INSTANTIATE(N)                                                                          \
    template sr_attention_scratch<N> sr_attention_scratch_place(const srnn_plan *, sr_layout *, \
                                                                sr_feature_maker);              \
    template sr_attention_view<N> sr_attention_forward_view(const sr_attention_call *,          \
                                                            sr_layout *, sr_feature_maker);     \
    template sr_attention_view<N> sr_attention_backward_view(const sr_attention_call *,         \
                                                             sr_layout *, sr_feature_maker);    \
    template bool sr_rows_aligned(const sr_strided<N> &);                                       \
    template bool sr_rows_aligned(const sr_strided<const N> &);
INSTANTIATE(float)
INSTANTIATE(sr_bf16)
