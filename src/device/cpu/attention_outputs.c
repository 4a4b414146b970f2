/* attention_outputs.c: normaliser, gates and norm after the core, and their backward; compiled per
 * type. */
#include "attention/operands.h"
#include "attention/row_end.h"
#include "base/threads.h"
#include "device/cpu/attention_edges.h"
#include "device/cpu/attention_rows.h"

#include <math.h>
#include <string.h>

/* The norm and its parameters; the floor is each row's own. */
static sr_row_norm norm_of(const srnn_problem *p, const srnn_operands *in) {
    sr_row_norm rule = {.norm = p->attention.norm, .n = p->Dv};
    const real *weight = in->norm_weight, *bias = in->norm_bias;
    const bool weighted = sr_operand_used(SR_OPERAND_NORM_WEIGHT, &p->attention);
    const bool biased = sr_operand_used(SR_OPERAND_NORM_BIAS, &p->attention);
    for (int d = 0; d < p->Dv; d++) {
        rule.weight[d] = weighted ? (double)weight[d] : 1.0;
        rule.bias[d] = biased ? (double)bias[d] : 0.0;
    }
    return rule;
}

/* out = post * norm(factor * x). Without a norm, which is the usual case, in one multiplication. */
static void norm_row(real *out, const real *x, const sr_row_norm *rule, double factor,
                     double post) {
    double row[SR_HEAD_SIZE_MAX];
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

/* dx = gradient of x = factor * numerator through the norm, from du; adds to the gradients of weight (n)
 * and bias (n) in `partial`. */
static void norm_row_backward(double *dx, double *partial, const double *du, const double *x,
                              const sr_row_norm *rule) {
    const double *weight = rule->weight;
    const int n = rule->n;
    switch (rule->norm) {
    case SRNN_NORM_NONE:
        memcpy(dx, du, (size_t)n * sizeof *dx);
        return;
    case SRNN_NORM_LAYER: {
        double hat[SR_HEAD_SIZE_MAX], d_hat[SR_HEAD_SIZE_MAX];
        memcpy(hat, x, (size_t)n * sizeof *hat);
        const double inverse = sr_row_centre(hat, n);
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
        double d_hat[SR_HEAD_SIZE_MAX];
        const double inverse = 1.0 / sqrt(sr_row_dot(x, x, n) / n + SR_RMS_EPSILON);
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
        const double factor = rule->norm == SRNN_NORM_L2_SCALED ? n : 1.0;
        const double along = floored ? 0.0 : sr_row_dot(x, du, n) * inverse * inverse;
        for (int d = 0; d < n; d++)
            dx[d] = factor * inverse * (du[d] - along * x[d]);
        return;
    }
    }
}

void SR_ISA_REAL(sr_edges_output_rows)(sr_row_results results, const sr_edges *edges,
                                       const sr_attention_call *call, sr_rows rows) {
    const srnn_problem *p = &call->plan->problem;
    const srnn_attention *a = &p->attention;
    const srnn_operands *in = call->in;
    const bool gated = a->output_gate != SRNN_GATE_NONE || a->post_gate;
    sr_row_norm rule = norm_of(p, in);
    const double *cumulative =
        edges->cumulative ? edges->cumulative + sr_row_index(p, p->H, rows.b, rows.h, rows.t)
                          : NULL;
    for (int64_t r = 0; r < rows.count; r++) {
        const double logit =
            gated ? (double)*tensor_row(in->output_gate, rows.b, rows.h, rows.t + r) : 0.0;
        const double row_sum = (double)results.row_sum[r];
        const sr_query_row row = {row_sum, (double)(results.length + r), logit,
                                  cumulative ? cumulative[r] : 0.0};
        const sr_row_factors f = sr_row_factors_of(a, &row);
        rule.floor = sr_row_norm_floor(a, row_sum);
        norm_row(tensor_row(call->o, rows.b, rows.h, rows.t + r),
                 results.numerator + r * results.ld, &rule, f.gate / f.normaliser, f.post);
    }
}

/* One row of the backward through post gate, norm, gate and normaliser. */
typedef struct row_gradient {
    double logit;      /* of the output gate, directly */
    double cumulative; /* of its running sum */
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

/* What the forward pass knew of a row. */
typedef struct row_facts {
    const real *numerator; /* (n) */
    sr_query_row row;
    sr_row_factors factors;
} row_facts;

/* d_numerator (n) and the scalar gradients of one row from d_o (n). `partial` receives norm parameter
 * gradients. */
static row_gradient row_backward(real *d_numerator, double *partial, const real *d_o,
                                 const row_facts *row, const srnn_attention *a,
                                 const sr_row_norm *rule) {
    const sr_row_factors s = row->factors;
    const real *numerator = row->numerator;
    const int n = rule->n;
    double x[SR_HEAD_SIZE_MAX], du[SR_HEAD_SIZE_MAX], dx[SR_HEAD_SIZE_MAX];
    row_gradient g = {0};
    for (int d = 0; d < n; d++)
        x[d] = s.gate / s.normaliser * (double)numerator[d];
    if (a->post_gate) {
        real unscaled[SR_HEAD_SIZE_MAX];
        norm_row(unscaled, numerator, rule, s.gate / s.normaliser, 1.0);
        g.logit = row_dot(d_o, unscaled, n) * s.post * (1.0 - s.post);
    }
    for (int d = 0; d < n; d++)
        du[d] = s.post * (double)d_o[d];
    norm_row_backward(dx, partial, du, x, rule);
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
    const sr_edges *edges;
    const sr_attention_call *call;
} outputs_context;

/* Gradient of the output gate through its running sum: add exp(g_m) times the sum of later
 * gradients. */
static void cumulative_backward(const outputs_context *x, const sr_span *span, int h) {
    const srnn_problem *p = &x->call->plan->problem;
    int64_t base = sr_row_index(p, p->H, span->b, h, span->start);
    double later = 0.0;
    for (int64_t t = span->length - 1; t >= 0; t--) {
        later += x->edges->d_cumulative[base + t];
        double logit = (double)*tensor_row(x->call->in->output_gate, span->b, h, span->start + t);
        real *out = tensor_row(x->call->gradients->output_gate, span->b, h, span->start + t);
        *out = (real)((double)*out + exp(logit) * later);
    }
}

/* One head of one document; `partial` receives norm parameter gradients. */
static void document_backward(const outputs_context *x, const sr_span *span, int h,
                              sr_row_norm *rule, double *partial) {
    const sr_attention_call *call = x->call;
    const sr_edges *edges = x->edges;
    const srnn_problem *p = &call->plan->problem;
    const srnn_attention *a = &p->attention;
    bool uses_gate = sr_operand_used(SR_OPERAND_OUTPUT_GATE, a);
    bool wants_gate = uses_gate && call->gradients->output_gate.data;
    for (int64_t t = 0; t < span->length; t++) {
        int64_t at = sr_row_index(p, p->H, span->b, h, span->start + t);
        const double logit =
            uses_gate ? (double)*tensor_row(call->in->output_gate, span->b, h, span->start + t)
                      : 0.0;
        row_facts facts = {.numerator = (const real *)call->saved.numerator + at * p->Dv,
                           .row = {(double)((const real *)call->saved.row_sum)[at], (double)(t + 1),
                                   logit, edges->cumulative ? edges->cumulative[at] : 0.0}};
        facts.factors = sr_row_factors_of(a, &facts.row);
        rule->floor = sr_row_norm_floor(a, facts.row.row_sum);
        row_gradient g =
            row_backward(edges->d_numerator + at * p->Dv, partial,
                         tensor_row(call->o, span->b, h, span->start + t), &facts, a, rule);
        edges->d_row_sum[at] = (real)g.row_sum;
        if (edges->d_cumulative)
            edges->d_cumulative[at] = g.cumulative;
        if (edges->row_dot)
            edges->row_dot[at] = row_dot(edges->d_numerator + at * p->Dv, facts.numerator, p->Dv) +
                                 g.row_sum * facts.row.row_sum;
        if (wants_gate)
            *tensor_row(call->gradients->output_gate, span->b, h, span->start + t) = (real)g.logit;
    }
    if (wants_gate && edges->cumulative)
        cumulative_backward(x, span, h);
}

static void outputs_task(void *context, int64_t task, int worker) {
    const outputs_context *x = context;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->problem;
    int64_t b = task / p->H;
    double *partial = x->edges->norm_partial ? x->edges->norm_partial + task * 2 * p->Dv : NULL;
    (void)worker;
    for (int d = 0; partial && d < 2 * p->Dv; d++)
        partial[d] = 0.0;
    sr_row_norm rule = norm_of(p, x->call->in);
    for (int64_t n = plan->row_spans[b]; n < plan->row_spans[b + 1]; n++)
        document_backward(x, &plan->spans[n], (int)(task % p->H), &rule, partial);
}

void SR_ISA_REAL(sr_edges_backward_outputs)(const sr_edges *edges, const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    outputs_context context = {edges, call};
    sr_parallel(outputs_task, &context, (int64_t)plan->problem.B * plan->problem.H,
                plan->problem.threads);
}
