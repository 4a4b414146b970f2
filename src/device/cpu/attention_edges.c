/* attention_edges.c: features, value factors and running sums before the core; compiled per number
 * type. */
#include "device/cpu/attention_edges.h"

#include "attention/attention.h"
#include "attention/operands.h"
#include "attention/score.h"
#include "base/threads.h"
#include "device/cpu/attention_rows.h"
#include "device/cpu/attention_simd.h"

#include <math.h>

enum { DECAY_DIVISOR = 1024, TOKENS = 64 };
static const double NORM_FLOOR = 1e-12;

void SR_ISA_REAL(sr_edges_place)(sr_edges *edges, const srnn_plan *plan, bool backward,
                                 sr_layout *layout) {
    const srnn_problem *p = &plan->problem;
    const srnn_attention *a = &p->attention;
    size_t rows = (size_t)p->B * (size_t)p->T, q_rows = rows * (size_t)p->H;
    size_t k_rows = rows * (size_t)p->Hkv;
    bool decay = sr_operand_used(SR_OPERAND_DECAY, a);
    bool gate = sr_operand_used(SR_OPERAND_VALUE_GATE, a);
    bool power = sr_operand_used(SR_OPERAND_VALUE_POWER, a);
    bool across = a->feature == SRNN_FEATURE_UNIT_HEADS;
    bool cumulative = a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
                      a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
#define TAKE(field, wanted, count) \
    edges->field = (wanted) ? sr_layout_take(layout, (count), sizeof *edges->field) : NULL
    TAKE(value_factor, gate || power, k_rows);
    TAKE(decay, decay, k_rows);
    TAKE(cumulative, cumulative, q_rows);
    TAKE(q_inverse, across, rows * (size_t)p->D);
    TAKE(k_inverse, across, rows * (size_t)p->D);
    TAKE(d_numerator, backward, q_rows * (size_t)p->Dv);
    TAKE(d_row_sum, backward, q_rows);
    TAKE(d_cumulative, backward && cumulative, q_rows);
    TAKE(row_dot, backward && decay, q_rows);
    TAKE(value_dot, backward && (decay || gate || power), k_rows);
    TAKE(column_dot, backward && decay, k_rows);
    TAKE(norm_partial, backward && sr_operand_used(SR_OPERAND_NORM_WEIGHT, a),
         (size_t)p->B * (size_t)p->H * 2 * (size_t)p->Dv);
#undef TAKE
}

/* ---- running sums and value factors ---- */

typedef struct prepare_context {
    const sr_edges *edges;
    const srnn_plan *plan;
    const srnn_operands *in;
    sr_carry *carry;
} prepare_context;

static void prepare_kv_head(const prepare_context *x, const sr_span *span, int h) {
    const srnn_problem *p = &x->plan->problem;
    const sr_edges *edges = x->edges;
    int64_t position = x->carry ? *x->carry->position : 0;
    int64_t base = sr_row_index(p, p->Hkv, span->b, h, span->start);
    if (edges->value_factor) {
        bool power = p->attention.normaliser == SRNN_NORMALISER_VALUE_POWER;
        double exponent = power ? sr_sigmoid((double)((const real *)x->in->value_power)[h]) : 0.0;
        for (int64_t t = 0; t < span->length; t++) {
            double factor = 1.0;
            if (p->attention.value_gate)
                factor =
                    sr_sigmoid((double)*tensor_row(x->in->value_gate, span->b, h, span->start + t));
            if (power)
                factor *= pow((double)(position + t + 1), -exponent);
            edges->value_factor[base + t] = (real)factor;
        }
    }
    if (edges->decay) {
        double *carried = x->carry ? &x->carry->decay[span->b * p->Hkv + h] : NULL;
        double sum = carried ? *carried : 0.0;
        for (int64_t t = 0; t < span->length; t++) {
            edges->decay[base + t] = sum;
            sum += (double)*tensor_row(x->in->decay, span->b, h, span->start + t) / DECAY_DIVISOR;
        }
        if (carried)
            *carried = sum;
    }
}

static void prepare_q_head(const prepare_context *x, const sr_span *span, int h) {
    const srnn_problem *p = &x->plan->problem;
    if (!x->edges->cumulative)
        return;
    int64_t base = sr_row_index(p, p->H, span->b, h, span->start);
    double *carried = x->carry ? &x->carry->cumulative[span->b * p->H + h] : NULL;
    double sum = carried ? *carried : 0.0;
    for (int64_t t = 0; t < span->length; t++) {
        sum += exp((double)*tensor_row(x->in->output_gate, span->b, h, span->start + t));
        x->edges->cumulative[base + t] = sum;
    }
    if (carried)
        *carried = sum;
}

/* out (D) = 1 / max(norm of x across the heads, floor), channel by channel. */
static void inverse_across(real *out, srnn_tensor x, int heads, int64_t b, int64_t t, int D) {
    double square[SR_HEAD_SIZE_MAX] = {0};
    for (int h = 0; h < heads; h++) {
        const real *row = tensor_row(x, b, h, t);
        for (int d = 0; d < D; d++)
            square[d] += (double)row[d] * (double)row[d];
    }
    for (int d = 0; d < D; d++)
        out[d] = (real)(1.0 / fmax(sqrt(square[d]), NORM_FLOOR));
}

static void prepare_task(void *context, int64_t task, int worker) {
    const prepare_context *x = context;
    const srnn_problem *p = &x->plan->problem;
    const int heads = p->Hkv + p->H, h = (int)(task % heads);
    const sr_span *span = &x->plan->spans[task / heads];
    (void)worker;
    if (h < p->Hkv)
        prepare_kv_head(x, span, h);
    else
        prepare_q_head(x, span, h - p->Hkv);
}

static void inverse_task(void *context, int64_t task, int worker) {
    const prepare_context *x = context;
    const srnn_problem *p = &x->plan->problem;
    (void)worker;
    for (int64_t n = task * TOKENS; n < (task + 1) * TOKENS && n < p->B * p->T; n++) {
        const int64_t b = n / p->T, t = n % p->T;
        inverse_across(x->edges->q_inverse + n * p->D, x->in->q, p->H, b, t, p->D);
        inverse_across(x->edges->k_inverse + n * p->D, x->in->k, p->Hkv, b, t, p->D);
    }
}

/* Runs a task for each TOKENS tokens of the batch. */
static void for_tokens(sr_task *run, void *context, const srnn_problem *p) {
    const double work = (double)p->B * p->T * p->D * (p->H + p->Hkv);
    sr_parallel(run, context, (p->B * p->T + TOKENS - 1) / TOKENS,
                sr_workers_worth(work, p->threads));
}

void SR_ISA_REAL(sr_edges_prepare)(const sr_edges *edges, const srnn_plan *plan,
                                   const srnn_operands *in, sr_carry *carry) {
    const srnn_problem *p = &plan->problem;
    prepare_context context = {edges, plan, in, carry};
    const int heads = p->H + p->Hkv;
    if (edges->value_factor || edges->decay || edges->cumulative)
        sr_parallel(prepare_task, &context, plan->span_count * heads,
                    sr_workers_worth(100.0 * (double)p->B * p->T * heads, p->threads));
    if (edges->q_inverse)
        for_tokens(inverse_task, &context, p);
}

/* ---- features of q and k ---- */

/* out = factor * feature(x), D numbers; `inverse` only for unit_heads. */
static void feature_row(real *out, const real *x, const real *inverse, srnn_feature feature,
                        double factor, int D) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * x[d];
        return;
    case SRNN_FEATURE_RELU:
        for (int d = 0; d < D; d++)
            out[d] = x[d] < 0 ? 0 : (real)factor * x[d]; /* this way round a NaN stays one */
        return;
    case SRNN_FEATURE_ELU1:
        for (int d = 0; d < D; d += LANES) {
            vec v = vec_load_part(x + d, D - d);
            v = vec_select((vec_bits)(v > (vec){0}), v + (real)1, vec_exp(v));
            vec_store_part(out + d, (real)factor * v, D - d);
        }
        return;
    case SRNN_FEATURE_UNIT:
        factor /= fmax(row_norm(x, D), NORM_FLOOR);
        for (int d = 0; d < D; d++)
            out[d] = (real)(factor * (double)x[d]);
        return;
    case SRNN_FEATURE_UNIT_HEADS:
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * x[d] * inverse[d];
        return;
    case SRNN_FEATURE_UNIT_SMOOTH:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        return;
    }
}

/* out = gradient of x from the gradient of factor * feature(x). For unit_heads only the factor is
 * applied here: the rest needs all heads. */
static void feature_row_backward(real *out, const real *gradient, const real *x,
                                 srnn_feature feature, double factor, int D) {
    switch (feature) {
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT_HEADS:
        for (int d = 0; d < D; d++)
            out[d] = (real)factor * gradient[d];
        return;
    case SRNN_FEATURE_UNIT_SMOOTH:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        return;
    case SRNN_FEATURE_RELU:
        for (int d = 0; d < D; d++)
            out[d] = x[d] > 0 ? (real)factor * gradient[d] : 0;
        return;
    case SRNN_FEATURE_ELU1:
        for (int d = 0; d < D; d += LANES) {
            vec v = vec_load_part(x + d, D - d);
            v = vec_select((vec_bits)(v > (vec){0}), vec_all(1), vec_exp(v));
            vec_store_part(out + d, (real)factor * v * vec_load_part(gradient + d, D - d), D - d);
        }
        return;
    case SRNN_FEATURE_UNIT:
        unit_backward(out, gradient, x, factor, NORM_FLOOR, D);
        return;
    }
}

void SR_ISA_REAL(sr_edges_query_rows)(real *out, int64_t ld, const sr_edges *edges,
                                      const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const double scale = sr_scale_factor(&p->attention, p->D);
    const real *inverse =
        edges->q_inverse ? edges->q_inverse + (rows.b * p->T + rows.t) * p->D : NULL;
    for (int64_t r = 0; r < rows.count; r++)
        feature_row(out + r * ld, tensor_row(call->in->q, rows.b, rows.h, rows.t + r),
                    inverse ? inverse + r * p->D : NULL, p->attention.feature, scale, p->D);
}

void SR_ISA_REAL(sr_edges_key_rows)(real *out, int64_t ld, const sr_edges *edges,
                                    const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const real *inverse =
        edges->k_inverse ? edges->k_inverse + (rows.b * p->T + rows.t) * p->D : NULL;
    for (int64_t r = 0; r < rows.count; r++)
        feature_row(out + r * ld, tensor_row(call->in->k, rows.b, rows.h, rows.t + r),
                    inverse ? inverse + r * p->D : NULL, p->attention.feature, 1.0, p->D);
}

void SR_ISA_REAL(sr_edges_query_rows_backward)(const real *gradient, int64_t ld,
                                               const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    if (!call->gradients->q.data)
        return;
    for (int64_t r = 0; r < rows.count; r++)
        feature_row_backward(tensor_row(call->gradients->q, rows.b, rows.h, rows.t + r),
                             gradient + r * ld, tensor_row(call->in->q, rows.b, rows.h, rows.t + r),
                             p->attention.feature, sr_scale_factor(&p->attention, p->D), p->D);
}

void SR_ISA_REAL(sr_edges_key_rows_backward)(const real *gradient, int64_t ld,
                                             const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    if (!call->gradients->k.data)
        return;
    for (int64_t r = 0; r < rows.count; r++)
        feature_row_backward(tensor_row(call->gradients->k, rows.b, rows.h, rows.t + r),
                             gradient + r * ld, tensor_row(call->in->k, rows.b, rows.h, rows.t + r),
                             p->attention.feature, 1.0, p->D);
}

/* ---- values ---- */

void SR_ISA_REAL(sr_edges_value_rows)(real *out, int64_t ld, const sr_edges *edges,
                                      const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const real *factor = edges->value_factor
                             ? edges->value_factor + sr_row_index(p, p->Hkv, rows.b, rows.h, rows.t)
                             : NULL;
    for (int64_t r = 0; r < rows.count; r++) {
        const real *v = tensor_row(call->in->v, rows.b, rows.h, rows.t + r);
        const real f = factor ? factor[r] : (real)1;
        for (int d = 0; d < p->Dv; d++)
            out[r * ld + d] = f * v[d];
    }
}

void SR_ISA_REAL(sr_edges_value_rows_backward)(const real *gradient, const real *value, int64_t ld,
                                               const sr_edges *edges, const sr_attention_call *call,
                                               sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const int64_t base = sr_row_index(p, p->Hkv, rows.b, rows.h, rows.t);
    for (int64_t r = 0; r < rows.count; r++) {
        if (edges->value_dot)
            edges->value_dot[base + r] = row_dot(gradient + r * ld, value + r * ld, p->Dv);
        if (!call->gradients->v.data)
            continue;
        const real f = edges->value_factor ? edges->value_factor[base + r] : (real)1;
        real *out = tensor_row(call->gradients->v, rows.b, rows.h, rows.t + r);
        for (int d = 0; d < p->Dv; d++)
            out[d] = f * gradient[r * ld + d];
    }
}

/* ---- the last pass of the backward ---- */

/* In place: gradients of x from gradients of x / norm across the heads. Its parameters are the forward's and the gradient. */
static void across_backward(srnn_tensor gradient, srnn_tensor x, const real *inverse, int heads,
                            int64_t b, int64_t t, int D) {
    double along[SR_HEAD_SIZE_MAX] = {
        0}; /* <x, gradient> / norm^2, 0 where the norm is at its floor */
    for (int h = 0; h < heads; h++) {
        const real *row = tensor_row(x, b, h, t), *g = tensor_row(gradient, b, h, t);
        for (int d = 0; d < D; d++)
            along[d] += (double)row[d] * (double)g[d];
    }
    for (int d = 0; d < D; d++) {
        const real floored = (real)(1.0 / NORM_FLOOR);
        along[d] *= inverse[d] < floored ? (double)inverse[d] * (double)inverse[d] : 0.0;
    }
    for (int h = 0; h < heads; h++) {
        const real *row = tensor_row(x, b, h, t);
        real *g = tensor_row(gradient, b, h, t);
        for (int d = 0; d < D; d++)
            g[d] = (real)((double)inverse[d] * ((double)g[d] - along[d] * (double)row[d]));
    }
}

/* Gradients of the value gate and of the decay for one kv head of one document. */
static void kv_head_backward(const sr_edges *edges, const sr_attention_call *call,
                             const sr_span *span, int h) {
    const srnn_problem *p = &call->plan->problem;
    int64_t base = sr_row_index(p, p->Hkv, span->b, h, span->start);
    int group = p->H / p->Hkv;
    if (sr_operand_used(SR_OPERAND_VALUE_GATE, &p->attention) && call->gradients->value_gate.data)
        for (int64_t t = 0; t < span->length; t++) {
            double gate =
                sr_sigmoid((double)*tensor_row(call->in->value_gate, span->b, h, span->start + t));
            *tensor_row(call->gradients->value_gate, span->b, h, span->start + t) =
                (real)(edges->value_dot[base + t] * (1.0 - gate));
        }
    if (!edges->decay || !call->gradients->decay.data)
        return;
    double later = 0.0; /* sum over rows i > m of dC_i */
    for (int64_t t = span->length - 1; t >= 0; t--) {
        *tensor_row(call->gradients->decay, span->b, h, span->start + t) =
            (real)(later / DECAY_DIVISOR);
        for (int g = 0; g < group; g++)
            later += edges->row_dot[sr_row_index(p, p->H, span->b, h * group + g, span->start + t)];
        later -= edges->value_dot[base + t] + edges->column_dot[base + t];
    }
}

static void value_power_backward(const sr_edges *edges, const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    for (int h = 0; h < p->Hkv; h++) {
        double sum = 0.0;
        for (int64_t n = 0; n < call->plan->span_count; n++) {
            const sr_span *span = &call->plan->spans[n];
            int64_t base = sr_row_index(p, p->Hkv, span->b, h, span->start);
            for (int64_t t = 0; t < span->length; t++)
                sum -= edges->value_dot[base + t] * log((double)(t + 1));
        }
        double c = sr_sigmoid((double)((const real *)call->in->value_power)[h]);
        ((real *)call->gradients->value_power)[h] = (real)(sum * c * (1.0 - c));
    }
}

static void norm_parameters_backward(const sr_edges *edges, const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    int64_t parts = (int64_t)p->B * p->H;
    for (int d = 0; d < p->Dv; d++) {
        double weight = 0.0, bias = 0.0;
        for (int64_t n = 0; n < parts; n++) {
            weight += edges->norm_partial[n * 2 * p->Dv + d];
            bias += edges->norm_partial[n * 2 * p->Dv + p->Dv + d];
        }
        if (call->gradients->norm_weight)
            ((real *)call->gradients->norm_weight)[d] = (real)weight;
        if (call->gradients->norm_bias && sr_operand_used(SR_OPERAND_NORM_BIAS, &p->attention))
            ((real *)call->gradients->norm_bias)[d] = (real)bias;
    }
}

typedef struct inputs_context {
    const sr_edges *edges;
    const sr_attention_call *call;
} inputs_context;

static void inputs_task(void *context, int64_t task, int worker) {
    const inputs_context *x = context;
    const srnn_plan *plan = x->call->plan;
    const int heads = plan->problem.Hkv;
    (void)worker;
    kv_head_backward(x->edges, x->call, &plan->spans[task / heads], (int)(task % heads));
}

static void across_task(void *context, int64_t task, int worker) {
    const inputs_context *x = context;
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->problem;
    (void)worker;
    for (int64_t n = task * TOKENS; n < (task + 1) * TOKENS && n < p->B * p->T; n++) {
        const int64_t b = n / p->T, t = n % p->T;
        if (call->gradients->q.data)
            across_backward(call->gradients->q, call->in->q, x->edges->q_inverse + n * p->D, p->H,
                            b, t, p->D);
        if (call->gradients->k.data)
            across_backward(call->gradients->k, call->in->k, x->edges->k_inverse + n * p->D, p->Hkv,
                            b, t, p->D);
    }
}

void SR_ISA_REAL(sr_edges_backward_inputs)(const sr_edges *edges, const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->problem;
    inputs_context context = {edges, call};
    if (edges->value_dot)
        sr_parallel(inputs_task, &context, plan->span_count * p->Hkv,
                    sr_workers_worth(100.0 * (double)p->B * p->T * p->Hkv, p->threads));
    if (edges->q_inverse)
        for_tokens(across_task, &context, p);
    if (sr_operand_used(SR_OPERAND_VALUE_POWER, &p->attention) && call->gradients->value_power)
        value_power_backward(edges, call);
    if (edges->norm_partial)
        norm_parameters_backward(edges, call);
}
