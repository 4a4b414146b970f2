/* attention_outputs.c: normaliser, gates and norm after the core, and their backward; compiled per
 * type. */
#include "attention/attention.h"
#include "attention/score.h"
#include "base/threads.h"
#include "device/cpu/attention_edges.h"
#include "device/cpu/attention_rows.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { WIDEST = 256 };

static const double LAYER_EPSILON = 1e-5;
static const double RMS_EPSILON = (double)FLT_EPSILON;
static const double L2_FLOOR = 1e-12;

/* The scalars of one row: what divides the numerator, and the gates. */
typedef struct row_scalars {
    double denominator;
    double gate; /* before the norm */
    double post; /* after it */
} row_scalars;

static double row_denominator(const srnn_attention *a, double row_sum, double length,
                              double cumulative) {
    switch (a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        return row_sum + a->epsilon;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        return (row_sum < 1.0 ? 1.0 : row_sum) + a->epsilon;
    case SRNN_NORMALISER_ROW_LENGTH:
        return length + a->epsilon;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        return (cumulative < 1.0 ? 1.0 : cumulative) + a->epsilon;
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    return 1.0 + a->epsilon;
}

static double row_gate(const srnn_attention *a, double logit, double cumulative) {
    switch (a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return sr_sigmoid(logit);
    case SRNN_GATE_INVERSE_EXP:
        return exp(-logit);
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return 1.0 / cumulative;
    }
    return 1.0;
}

static row_scalars scalars_of(const srnn_attention *a, double row_sum, double length, double logit,
                              double cumulative) {
    row_scalars s = {row_denominator(a, row_sum, length, cumulative),
                     row_gate(a, logit, cumulative), a->post_gate ? sr_sigmoid(logit) : 1.0};
    return s;
}

/* A norm over n numbers, with its parameters. */
typedef struct norm_rule {
    srnn_norm norm;
    const real *weight, *bias; /* (n) or NULL */
    int n;
    double floor; /* of an l2 norm */
} norm_rule;

static norm_rule norm_rule_of(const srnn_problem *p, const srnn_operands *in, double row_sum) {
    const double floor = sr_floor_follows_rows(&p->attention) ? L2_FLOOR * row_sum : L2_FLOOR;
    return (norm_rule){p->attention.norm, in->norm_weight, in->norm_bias, p->Dv, floor};
}

/* x (n) less its mean, in place; returns 1/deviation. */
static double centre(double *x, int n) {
    const double mean = double_sum(x, n) / n;
    for (int d = 0; d < n; d++)
        x[d] -= mean;
    return 1.0 / sqrt(double_dot(x, x, n) / n + LAYER_EPSILON);
}

/* out = post * norm(factor * x). */
static void norm_row(real *out, const real *x, const norm_rule *rule, double factor, double post) {
    const real *weight = rule->weight, *bias = rule->bias;
    const int n = rule->n;
    switch (rule->norm) {
    case SRNN_NORM_NONE: {
        real whole = (real)(factor * post);
        for (int d = 0; d < n; d++)
            out[d] = whole * x[d];
        return;
    }
    case SRNN_NORM_LAYER: {
        double centred[WIDEST];
        for (int d = 0; d < n; d++)
            centred[d] = factor * (double)x[d];
        const double inverse = centre(centred, n);
        for (int d = 0; d < n; d++)
            out[d] = (real)(post * (centred[d] * inverse * (double)weight[d] + (double)bias[d]));
        return;
    }
    case SRNN_NORM_RMS: {
        double inverse = 1.0 / sqrt(factor * factor * row_dot(x, x, n) / n + RMS_EPSILON);
        for (int d = 0; d < n; d++)
            out[d] = (real)(post * factor * inverse * (double)x[d] * (double)weight[d]);
        return;
    }
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED: {
        double length = fabs(factor) * row_norm(x, n);
        double whole = post * factor / (length < rule->floor ? rule->floor : length);
        if (rule->norm == SRNN_NORM_L2_SCALED)
            whole *= n;
        for (int d = 0; d < n; d++)
            out[d] = (real)(whole * (double)x[d]);
        return;
    }
    }
}

/* dx = gradient of x = factor * numerator through the norm, from du; adds to the gradients of weight (n)
 * and bias (n) in `partial`. */
static void norm_row_backward(double *dx, double *partial, const double *du, const double *x,
                              const norm_rule *rule) {
    const real *weight = rule->weight;
    const int n = rule->n;
    switch (rule->norm) {
    case SRNN_NORM_NONE:
        memcpy(dx, du, (size_t)n * sizeof *dx);
        return;
    case SRNN_NORM_LAYER: {
        double hat[WIDEST], d_hat[WIDEST];
        memcpy(hat, x, (size_t)n * sizeof *hat);
        const double inverse = centre(hat, n);
        for (int d = 0; d < n; d++) {
            hat[d] *= inverse;
            d_hat[d] = du[d] * (double)weight[d];
            partial[d] += du[d] * hat[d];
            partial[n + d] += du[d];
        }
        const double mean = double_sum(d_hat, n) / n, along = double_dot(d_hat, hat, n) / n;
        for (int d = 0; d < n; d++)
            dx[d] = inverse * (d_hat[d] - mean - hat[d] * along);
        return;
    }
    case SRNN_NORM_RMS: {
        double d_hat[WIDEST];
        const double inverse = 1.0 / sqrt(double_dot(x, x, n) / n + RMS_EPSILON);
        for (int d = 0; d < n; d++) {
            d_hat[d] = du[d] * (double)weight[d];
            partial[d] += du[d] * x[d] * inverse;
        }
        const double along = double_dot(d_hat, x, n) * inverse * inverse / n;
        for (int d = 0; d < n; d++)
            dx[d] = inverse * (d_hat[d] - x[d] * along);
        return;
    }
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED: {
        const double length = sqrt(double_dot(x, x, n));
        const bool floored = length < rule->floor;
        const double inverse = 1.0 / (floored ? rule->floor : length);
        const double factor = rule->norm == SRNN_NORM_L2_SCALED ? n : 1.0;
        const double along = floored ? 0.0 : double_dot(x, du, n) * inverse * inverse;
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
    const double *cumulative =
        edges->cumulative ? edges->cumulative + sr_row_index(p, p->H, rows.b, rows.h, rows.t)
                          : NULL;
    for (int64_t r = 0; r < rows.count; r++) {
        const double logit =
            gated ? (double)*tensor_row(in->output_gate, rows.b, rows.h, rows.t + r) : 0.0;
        const double row_sum = (double)results.row_sum[r];
        const norm_rule rule = norm_rule_of(p, in, row_sum);
        row_scalars s = scalars_of(a, row_sum, (double)(results.length + r), logit,
                                   cumulative ? cumulative[r] : 0.0);
        norm_row(tensor_row(call->o, rows.b, rows.h, rows.t + r),
                 results.numerator + r * results.ld, &rule, s.gate / s.denominator, s.post);
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
    double row_sum, cumulative;
    row_scalars scalars;
} row_facts;

/* d_numerator (n) and the scalar gradients of one row from d_o (n). `partial` receives norm parameter
 * gradients. */
static row_gradient row_backward(real *d_numerator, double *partial, const real *d_o,
                                 const row_facts *row, const srnn_attention *a,
                                 const norm_rule *rule) {
    const row_scalars s = row->scalars;
    const real *numerator = row->numerator;
    const int n = rule->n;
    double x[WIDEST], du[WIDEST], dx[WIDEST];
    row_gradient g = {0};
    for (int d = 0; d < n; d++)
        x[d] = s.gate / s.denominator * (double)numerator[d];
    if (a->post_gate) {
        real unscaled[WIDEST];
        norm_row(unscaled, numerator, rule, s.gate / s.denominator, 1.0);
        g.logit = row_dot(d_o, unscaled, n) * s.post * (1.0 - s.post);
    }
    for (int d = 0; d < n; d++)
        du[d] = s.post * (double)d_o[d];
    norm_row_backward(dx, partial, du, x, rule);
    for (int d = 0; d < n; d++)
        du[d] = (double)numerator[d] / s.denominator;
    const double d_gate = double_dot(dx, du, n); /* <dx, y> */
    gate_backward(&g, a, s.gate, d_gate);
    denominator_backward(&g, a, -s.gate * d_gate / s.denominator, row->row_sum, row->cumulative);
    for (int d = 0; d < n; d++)
        d_numerator[d] = (real)(s.gate / s.denominator * dx[d]);
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
                              double *partial) {
    const sr_attention_call *call = x->call;
    const sr_edges *edges = x->edges;
    const srnn_problem *p = &call->plan->problem;
    const srnn_attention *a = &p->attention;
    bool uses_gate = a->output_gate != SRNN_GATE_NONE || a->post_gate || edges->cumulative;
    bool wants_gate = uses_gate && call->gradients->output_gate.data;
    for (int64_t t = 0; t < span->length; t++) {
        int64_t at = sr_row_index(p, p->H, span->b, h, span->start + t);
        const double logit =
            uses_gate ? (double)*tensor_row(call->in->output_gate, span->b, h, span->start + t)
                      : 0.0;
        row_facts row = {.numerator = (const real *)call->saved.numerator + at * p->Dv,
                         .row_sum = (double)((const real *)call->saved.row_sum)[at],
                         .cumulative = edges->cumulative ? edges->cumulative[at] : 0.0};
        const norm_rule rule = norm_rule_of(p, call->in, row.row_sum);
        row.scalars = scalars_of(a, row.row_sum, (double)(t + 1), logit, row.cumulative);
        row_gradient g =
            row_backward(edges->d_numerator + at * p->Dv, partial,
                         tensor_row(call->o, span->b, h, span->start + t), &row, a, &rule);
        edges->d_row_sum[at] = (real)g.row_sum;
        if (edges->d_cumulative)
            edges->d_cumulative[at] = g.cumulative;
        if (edges->row_dot)
            edges->row_dot[at] = row_dot(edges->d_numerator + at * p->Dv, row.numerator, p->Dv) +
                                 g.row_sum * row.row_sum;
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
    for (int64_t n = plan->row_spans[b]; n < plan->row_spans[b + 1]; n++)
        document_backward(x, &plan->spans[n], (int)(task % p->H), partial);
}

void SR_ISA_REAL(sr_edges_backward_outputs)(const sr_edges *edges, const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    outputs_context context = {edges, call};
    sr_parallel(outputs_task, &context, (int64_t)plan->problem.B * plan->problem.H,
                plan->problem.threads);
}
