/* call.cu: a call with every axis on the host: descriptor facts, views of operands, workspace. */
#include "attention/cuda/axes/call.h"

#include "equation/facts.h"
#include "equation/operands.h"

template <class T> static T *take(bool wanted, int64_t count, sr_layout *layout) {
    return wanted ? (T *)sr_layout_take(layout, (size_t)count, sizeof(T)) : nullptr;
}

/* Numbers of a decay; 0 without one. */
static int decays_of(const srnn_problem *p) {
    return p->attention.decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(&p->attention, p->D);
}

/* Heads that a norm runs over. */
static int norm_heads_of(const srnn_problem *p) {
    const srnn_attention *a = &p->attention;
    if (a->norm == SRNN_NORM_NONE || a->norm_width == SRNN_NORM_WIDTH_HEAD)
        return 1;
    return a->share == SRNN_SHARE_QK ? p->H / p->Hkv : p->H;
}

static bool cumulates(const srnn_attention *a) {
    return a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
           a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
}

static bool has_value_factor(const srnn_attention *a) {
    return a->value_gate != SRNN_VALUE_GATE_OFF || a->normaliser == SRNN_NORMALISER_VALUE_POWER;
}

/* Columns of the widest sum over rows. */
static int64_t columns_of(const srnn_problem *p) {
    const int64_t wide = p->Dv > p->D ? p->Dv : p->D;
    return (int64_t)p->H * (wide > p->levels ? wide : p->levels);
}

static void place_backward(sr_axes_scratch *s, const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->problem;
    const srnn_attention *a = &p->attention;
    const int64_t rows = (int64_t)p->B * p->T, q_rows = rows * p->H, k_rows = rows * plan->core.Hkv;
    const int64_t F = plan->core.D, decays = decays_of(p);
    const bool rotated = a->position == SRNN_POSITION_ROPE_FEATURES;
    const bool levels = a->levels == SRNN_LEVELS_FENWICK, delta = a->write == SRNN_WRITE_DELTA;
    s->d_numerator = take<float>(true, q_rows * p->Dv, layout);
    s->d_skip = take<float>(a->skip != SRNN_SKIP_NONE, q_rows * p->Dv, layout);
    s->d_row_sum = take<double>(true, q_rows, layout);
    s->d_cumulative = take<double>(cumulates(a), q_rows, layout);
    s->zeroed = (char *)sr_layout_take(layout, 0, 1);
    s->d_q = take<float>(true, q_rows * F, layout);
    s->d_k = take<float>(true, k_rows * F, layout);
    s->d_rotated_q = rotated ? take<float>(true, q_rows * F, layout) : s->d_q;
    s->d_rotated_k = rotated ? take<float>(true, k_rows * F, layout) : s->d_k;
    s->d_v = take<float>(true, k_rows * p->Dv, layout);
    s->row_decay = take<double>(decays > 0, q_rows * decays, layout);
    s->column_decay = take<double>(decays > 0, k_rows * decays, layout);
    s->d_level = take<float>(levels, q_rows * p->levels, layout);
    s->d_beta = take<float>(delta, k_rows, layout);
    s->zeroed_past = (char *)sr_layout_take(layout, 0, 1);
    s->d_gate = take<double>(decays > 0, k_rows * decays, layout);
    s->value_dot = take<double>(has_value_factor(a), k_rows, layout);
    s->d_raw_q = take<float>(true, q_rows * p->D, layout);
    s->d_raw_k = take<float>(true, k_rows * p->D, layout);
    s->partial = take<double>(true, SR_SUM_PARTS * columns_of(p), layout);
}

sr_axes_scratch sr_axes_scratch_place(const srnn_plan *plan, bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->problem;
    const srnn_attention *a = &p->attention;
    const int64_t rows = (int64_t)p->B * p->T, q_rows = rows * p->H, k_rows = rows * plan->core.Hkv;
    const int64_t F = plan->core.D;
    const bool rotated = a->position == SRNN_POSITION_ROPE_FEATURES;
    const bool across = a->feature == SRNN_FEATURE_UNIT_HEADS, pool = a->pool > 0;
    sr_axes_scratch s = {};
    s.q = take<float>(true, q_rows * F, layout);
    s.k = take<float>(true, k_rows * F, layout);
    s.rotated_q = rotated ? take<float>(true, q_rows * F, layout) : s.q;
    s.rotated_k = rotated ? take<float>(true, k_rows * F, layout) : s.k;
    s.v = take<float>(true, k_rows * p->Dv, layout);
    s.value_factor = take<float>(has_value_factor(a), k_rows, layout);
    s.decay = take<double>(decays_of(p) > 0, k_rows * decays_of(p), layout);
    s.cumulative = take<double>(cumulates(a), q_rows, layout);
    s.q_inverse = take<float>(across, rows * p->D, layout);
    s.k_inverse = take<float>(across, rows * p->D, layout);
    s.level = take<float>(a->levels == SRNN_LEVELS_FENWICK, q_rows * p->levels, layout);
    s.beta = take<float>(a->write == SRNN_WRITE_DELTA, k_rows, layout);
    s.pooled_k = take<float>(pool, k_rows * p->D, layout);
    s.pooled_v = take<float>(pool, k_rows * p->Dv, layout);
    s.angles = take<float>(rotated || a->position == SRNN_POSITION_ROPE_CHUNKS,
                           (int64_t)p->T * p->D, layout);
    s.numerator = take<float>(true, q_rows * p->Dv, layout);
    s.row_sum = take<float>(true, q_rows, layout);
    s.maximum = take<float>(true, q_rows, layout);
    s.norm = take<double>(a->norm != SRNN_NORM_NONE, 4 * q_rows, layout);
    if (backward)
        place_backward(&s, plan, layout);
    return s;
}

/* ---- views ---- */

static sr_axes_tensor tensor_of(srnn_tensor t, bool narrow) {
    return {t.data, t.batch, t.head, t.time, narrow};
}

static sr_axes_operands operands_of(const srnn_operands *in, bool narrow) {
    sr_axes_operands out = {};
    out.q = tensor_of(in->q, narrow);
    out.k = tensor_of(in->k, narrow);
    out.v = tensor_of(in->v, narrow);
    out.value_gate = tensor_of(in->value_gate, narrow);
    out.output_gate = tensor_of(in->output_gate, narrow);
    out.decay = tensor_of(in->decay, narrow);
    out.write_gate = tensor_of(in->write_gate, narrow);
    out.level_gate = tensor_of(in->level_gate, narrow);
    out.pool_gate = tensor_of(in->pool_gate, narrow);
    out.skip = tensor_of(in->skip, narrow);
    out.norm_weight = (float *)in->norm_weight;
    out.norm_bias = (float *)in->norm_bias;
    out.value_power = (float *)in->value_power;
    out.a_log = (float *)in->a_log;
    out.dt_bias = (float *)in->dt_bias;
    out.skip_weight = (float *)in->skip_weight;
    out.level_scale = (float *)in->level_scale;
    out.sinks = (float *)in->sinks;
    return out;
}

sr_axes_call sr_axes_facts_of(const srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    const srnn_attention *a = &p->attention;
    sr_axes_call facts = {}, *const call = &facts;
    call->a = *a;
    call->B = p->B;
    call->H = p->H;
    call->Hkv = plan->core.Hkv;
    call->T = p->T;
    call->D = p->D;
    call->F = plan->core.D;
    call->Dv = p->Dv;
    call->group = p->H / plan->core.Hkv;
    call->shared = p->Hkv;
    call->levels = a->levels == SRNN_LEVELS_FENWICK ? p->levels : 0;
    call->decays = decays_of(p);
    call->norm_heads = norm_heads_of(p);
    call->shares_queries = sr_shares_queries(a);
    call->decay_in_logits = sr_decay_in_logits(a);
    call->rotated = a->position == SRNN_POSITION_ROPE_FEATURES;
    call->delta = a->write == SRNN_WRITE_DELTA;
    call->invariant = sr_row_scale_invariant(a);
    call->floor_follows_rows = sr_floor_follows_rows(a);
    call->sums_rows = sr_needs_row_sum(a) || call->floor_follows_rows;
    call->gated = sr_uses_output_gate(a);
    call->cumulates = cumulates(a);
    call->scale = sr_scale_factor(a, p->D);
    call->rope_theta = p->rope_theta;
    call->norm_per_head = sr_norm_weighs_heads(a);
    call->write_range = sr_write_range(a);
    const bool own = a->norm_weight == SRNN_NORM_WEIGHT_HEAD && a->norm == SRNN_NORM_LAYER;
    call->norm_epsilon =
        a->norm_epsilon > 0 ? a->norm_epsilon : sr_norm_usual_epsilon(a->norm) * (own ? p->Dv : 1);
    call->first = plan->first;
    return facts;
}

sr_axes_call sr_axes_call_of(const sr_attention_call *wanted, bool backward, sr_layout *layout) {
    const srnn_plan *plan = wanted->plan;
    const srnn_problem *p = &plan->problem;
    const bool narrow = p->dtype == SRNN_BF16;
    sr_axes_call call = sr_axes_facts_of(plan);
    call.in = operands_of(wanted->in, narrow);
    call.gate = sr_gate_rule_of(&p->attention, wanted->in, p->D);
    if (backward)
        call.out = operands_of(wanted->gradients, narrow);
    call.o = tensor_of(wanted->o, narrow);
    const bool wide = plan->kernel && plan->kernel->saves_wide; /* a state has no kernel */
    call.saved = {wanted->saved.numerator, (int64_t)p->H * p->T * p->Dv, (int64_t)p->T * p->Dv,
                  p->Dv, narrow && !wide};
    call.saved_row_sum = (float *)wanted->saved.row_sum;
    call.saved_maximum = (float *)wanted->saved.maximum;
    call.scratch = sr_axes_scratch_place(plan, backward, layout);
    return call;
}
