/* prologue_backward.c: the last pass of the backward: gradients that need all rows or all heads;
 * compiled per number type. */
#include "attention/cpu/shared/decays.h"
#include "attention/cpu/shared/heads.h"
#include "attention/cpu/shared/prologue.h"
#include "attention/cpu/shared/rows.h"
#include "attention/cpu/shared/simd.h"
#include "equation/operands.h"
#include "equation/score.h"

#include <math.h>
#include <string.h>

typedef struct inputs_context {
    const sr_row_workspace *row_work;
    const sr_attention_call *call;
} inputs_context;

/* In place: gradients of x from gradients of x / norm across the heads. Its parameters are the
 * forward's and the gradient. */
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

/* ---- one head of keys and values of one document ---- */

/* Where a head of a document stands. */
typedef struct head_place {
    const sr_row_workspace *row_work;
    const sr_attention_call *call;
    const srnn_problem *p;
    const sr_document_range *document;
    int h, heads;
    int64_t base; /* of its first token in arrays (B, Hkv, T) */
} head_place;

static void value_gate_backward(const head_place *x) {
    for (int64_t t = 0; t < x->document->length; t++) {
        double gate = sr_sigmoid((double)*tensor_row(x->call->in->value_gate, x->document->b, x->h,
                                                     x->document->start + t));
        *tensor_row(x->call->gradients->value_gate, x->document->b, x->h, x->document->start + t) =
            (real)(x->row_work->value_dot[x->base + t] * (1.0 - gate));
    }
}

static void beta_backward(const head_place *x) {
    const bool given = x->p->attention.write_gate == SRNN_WRITE_GATE_GIVEN;
    const double range = sr_write_range(&x->p->attention);
    for (int64_t t = 0; t < x->document->length; t++) {
        const double beta = (double)x->row_work->beta[x->base + t];
        const double slope = given ? 1.0 : beta * (1.0 - beta / range);
        *tensor_row(x->call->gradients->write_gate, x->document->b, x->h, x->document->start + t) =
            (real)(x->row_work->d_beta[x->base + t] * slope);
    }
}

/* sum (width) += the gradients of C of token t. */
static void add_decays(double *sum, const head_place *x, int64_t t, int width) {
    const double *own = x->row_work->d_decay + (x->base + t) * width;
    for (int c = 0; c < width; c++)
        sum[c] += own[c];
}

/* The numbers z of one token, or of several that have one each: what they become on the way
 * back. */
typedef struct decay_strip {
    int64_t from, count; /* tokens */
    int width;
    double rate;                    /* softplus: -exp(a_log) */
    double step[SR_HEAD_SIZE_MAX];  /* softplus: of z; bounded: z + dt_bias */
    double slope[SR_HEAD_SIZE_MAX]; /* of what a gate's logarithm is made of, by z */
    bool limited[SR_HEAD_SIZE_MAX]; /* the logarithm, which then has no slope */
} decay_strip;

static void decay_strip_fill(decay_strip *strip, const head_place *x) {
    const srnn_attention *a = &x->p->attention;
    const srnn_operands *in = x->call->in;
    const int n = (int)strip->count * strip->width;
    const double factor = a->decay_divisor > 0.0 ? 1.0 / a->decay_divisor : 1.0;
    const int head = sr_decay_head(x->p, x->h);
    const decay_rate rate = decay_rate_of(x->p, in, head);
    real numbers[TOKENS];
    const real *z = tensor_row(in->decay, x->document->b, head, x->document->start + strip->from);
    for (int64_t r = 0; strip->width == 1 && r < strip->count; r++)
        numbers[r] = z[r * in->decay.time];
    z = strip->width == 1 ? numbers : z;
    gate_logarithms(strip->slope, z, n, a, &rate);
    for (int i = 0; i < n; i++)
        strip->limited[i] = sr_gate_is_limited(strip->slope[i]);
    switch (a->decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
        for (int i = 0; i < n; i++)
            strip->slope[i] = 1.0 / DECAY_DIVISOR;
        break;
    case SRNN_DECAY_GIVEN:
        for (int i = 0; i < n; i++)
            strip->slope[i] = 1.0;
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        for (int i = 0; i < n; i += LANES)
            vec_to_doubles(strip->slope + i, vec_sigmoid(-vec_load_part(z + i, n - i)), n - i);
        for (int i = 0; i < n; i++)
            strip->slope[i] *= factor;
        break;
    case SRNN_DECAY_SOFTPLUS:
        strip->rate = -rate.rate;
        for (int i = 0; i < n; i += LANES) {
            const vec own = decay_biased(&rate, z, i, n);
            vec_to_doubles(strip->step + i, vec_softplus(own), n - i);
            vec_to_doubles(strip->slope + i, vec_sigmoid(own), n - i);
        }
        break;
    case SRNN_DECAY_BOUNDED:
        for (int i = 0; i < n; i += LANES) {
            vec rest;
            const vec own = decay_biased(&rate, z, i, n);
            const vec sigmoid = vec_sigmoid_parts((real)rate.rate * own, &rest);
            vec_to_doubles(strip->step + i, own, n - i);
            vec_to_doubles(strip->slope + i, sigmoid * rest, n - i);
        }
        for (int i = 0; i < n; i++) { /* vec_exp is never 0: flat ends are made so here */
            const bool flat = fabs(rate.rate * strip->step[i]) >= -(double)LEAST_EXP;
            strip->slope[i] *= flat ? 0.0 : -a->decay_bound * rate.rate;
        }
        break;
    case SRNN_DECAY_NEG_SOFTPLUS:
        for (int i = 0; i < n; i += LANES)
            vec_to_doubles(strip->slope + i, -vec_sigmoid(vec_load_part(z + i, n - i)), n - i);
        break;
    }
}

/* d (width), of the logarithms of the gates of token r of the strip, becomes that of their numbers;
 * where the decay has a rate, adds shares in those of a_log and dt_bias. */
static void gates_backward(double *d, const head_place *x, const decay_strip *strip, int64_t r) {
    const srnn_attention *a = &x->p->attention;
    const double *slope = strip->slope + r * strip->width, *step = strip->step + r * strip->width;
    const bool *limited = strip->limited + r * strip->width;
    const int64_t at = x->base + strip->from + r;
    double *partial = x->row_work->head_partial ? x->row_work->head_partial + 2 * at : NULL;
    if (a->decay != SRNN_DECAY_SOFTPLUS) {
        for (int c = 0; c < strip->width; c++) {
            d[c] = limited[c] ? 0.0 : d[c] * slope[c];
            if (partial && !limited[c] &&
                slope[c] != 0.0) { /* a flat gate's number may be infinite */
                partial[0] += d[c] * step[c];
                partial[1] += d[c];
            }
        }
        return;
    }
    for (int c = 0; c < strip->width; c++) {
        double d_step = limited[c] ? 0.0 : d[c] * strip->rate;
        partial[0] += limited[c] ? 0.0 : d_step * step[c];
        if (a->value_gate == SRNN_VALUE_GATE_TIME_STEP && step[c] > 0.0)
            d_step += x->row_work->value_dot[at] / step[c];
        d[c] = d_step * slope[c];
        partial[1] += d[c];
    }
}

/* Heads of values that go with one head of keys have its decay: gradients are summed later. */
static bool decay_is_shared(const srnn_problem *p) {
    return sr_writes_channels(&p->attention) && sr_shares_queries(&p->attention);
}

static void decay_backward(const head_place *x) {
    const srnn_attention *a = &x->p->attention;
    const srnn_tensor out = x->call->gradients->decay;
    decay_strip strip = {.width = sr_decay_numbers(a, x->p->D)};
    const bool shared = decay_is_shared(x->p);
    const int64_t tokens = strip.width == 1 ? TOKENS : 1;
    const size_t bytes = (size_t)strip.width * sizeof(double);
    double later[SR_HEAD_SIZE_MAX] = {0}; /* sums of dC_i over rows i > t, then with t's own */
    double d[SR_HEAD_SIZE_MAX];
    if (x->row_work->d_end && x->call->plan->states.d_final &&
        x->document->start + x->document->length == x->p->T)
        memcpy(later, x->row_work->d_end + (x->document->b * x->heads + x->h) * strip.width, bytes);
    if (x->call->plan->decays.d_end && x->document->start + x->document->length == x->p->T)
        later[0] = x->call->plan->decays.d_end[x->document->b * x->heads + x->h];
    for (int64_t t = 0; x->row_work->head_partial && t < 2 * x->document->length; t++)
        x->row_work->head_partial[2 * x->base + t] = 0.0;
    for (strip.from = (x->document->length - 1) / tokens * tokens; strip.from >= 0;
         strip.from -= tokens) {
        const int64_t left = x->document->length - strip.from;
        strip.count = left < tokens ? left : tokens;
        decay_strip_fill(&strip, x);
        for (int64_t r = strip.count - 1; r >= 0; r--) {
            const int64_t t = strip.from + r;
            memcpy(d, later, bytes); /* a learned decay does not have the token's own */
            add_decays(later, x, t, strip.width);
            if (a->decay != SRNN_DECAY_LEARNED)
                memcpy(d, later, bytes);
            gates_backward(d, x, &strip, r);
            memcpy(x->row_work->d_decay + (x->base + t) * strip.width, d, bytes); /* of z now */
            if (out.data && !shared)
                for (int c = 0; c < strip.width; c++)
                    tensor_row(out, x->document->b, x->h, x->document->start + t)[c] = (real)d[c];
        }
    }
}

/* Rows of one token on the way back through a running average. */
typedef struct average_row {
    real *d;            /* in: of the average, out: of x */
    double *later;      /* of the average, from the tokens behind */
    const real *before; /* the average of the token before, or NULL */
    const real *value;
    int width;
} average_row;

/* Adds to the gradients of the gates' numbers. */
static void average_backward(double *d_gates, const average_row *row, const gate_parts *g) {
    for (int c = 0; c < row->width; c++) {
        const double before = row->before ? (double)row->before[c] : 0.0;
        const double d_average = row->later[c] + (double)row->d[c];
        row->d[c] = (real)(g->rest[c] * d_average);
        row->later[c] = row->before ? g->gate[c] * d_average : 0.0;
        d_gates[c] += d_average * (before - (double)row->value[c]) * g->gate[c] * g->rest[c];
    }
}

/* The row of d (B, Hkv, T, width) and its like at a token of the head. */
static average_row average_row_at(const head_place *x, int64_t t, real *d, const real *pooled,
                                  int width) {
    const int64_t at = (x->base + t) * width;
    const bool first = t % x->p->attention.pool == 0;
    return (average_row){.d = d + at, .before = first ? NULL : pooled + at - width, .width = width};
}

static void pool_backward(const head_place *x) {
    const srnn_problem *p = x->p;
    const sr_row_workspace *row_work = x->row_work;
    const srnn_operands *in = x->call->in, *out = x->call->gradients;
    const int wide = p->D > p->Dv ? p->D : p->Dv;
    const int64_t b = x->document->b;
    double later_k[SR_HEAD_SIZE_MAX] = {0}, later_v[SR_VALUE_SIZE_MAX] = {0};
    gate_parts g;
    for (int64_t t = x->document->length - 1; t >= 0; t--) {
        const int64_t token = x->document->start + t;
        double d_gates[SR_VALUE_SIZE_MAX] = {0};
        gate_parts_of(&g, tensor_row(in->pool_gate, b, x->h, token), wide);
        average_row k = average_row_at(x, t, row_work->d_k, row_work->pooled_k, p->D);
        average_row v = average_row_at(x, t, row_work->d_v, row_work->pooled_v, p->Dv);
        k.later = later_k;
        v.later = later_v;
        k.value = tensor_row(in->k, b, sr_shared_head(p, x->h), token);
        v.value = tensor_row(in->v, b, x->h, token);
        average_backward(d_gates, &k, &g);
        average_backward(d_gates, &v, &g);
        for (int c = 0; out->pool_gate.data && c < wide; c++)
            tensor_row(out->pool_gate, b, x->h, token)[c] = (real)d_gates[c];
        if (out->v.data)
            memcpy(tensor_row(out->v, b, x->h, token), v.d, (size_t)p->Dv * sizeof(real));
    }
}

/* A row of (B, own, T, D) where heads are summed later, or of the gradient itself. */
static real *shared_row(real *d, int own, srnn_tensor gradient, const head_place *x, int h,
                        int64_t t) {
    const int64_t b = x->document->b;
    return d ? d + sr_row_index(x->p, own, b, h, t) * x->p->D : tensor_row(gradient, b, h, t);
}

/* Of query head h: y + (sum_c q_c k_c rho_c) v, where d_skip has the gradient of that. */
static void bonus_row_backward(const head_place *x, int h, int64_t t) {
    const srnn_problem *p = x->p;
    const srnn_operands *in = x->call->in, *out = x->call->gradients;
    const int64_t b = x->document->b;
    const real *rho = (const real *)in->skip_weight + (int64_t)h * p->D;
    const real *q = tensor_row(in->q, b, sr_shared_head(p, h), t);
    const real *k = tensor_row(in->k, b, sr_shared_head(p, x->h), t);
    const real *v = tensor_row(in->v, b, x->h, t);
    const real *d = x->row_work->d_skip + sr_row_index(p, p->H, b, h, t) * p->Dv;
    const double d_sum = row_dot(d, v, p->Dv);
    double sum = 0.0;
    for (int c = 0; c < p->D; c++)
        sum += (double)q[c] * (double)k[c] * (double)rho[c];
    for (int e = 0; out->v.data && e < p->Dv; e++)
        tensor_row(out->v, b, x->h, t)[e] += (real)(sum * (double)d[e]);
    for (int c = 0; out->q.data && c < p->D; c++)
        shared_row(x->row_work->d_q, p->H, out->q, x, h, t)[c] +=
            (real)(d_sum * (double)k[c] * (double)rho[c]);
    for (int c = 0; out->k.data && c < p->D; c++)
        shared_row(x->row_work->d_k, x->heads, out->k, x, x->h, t)[c] +=
            (real)(d_sum * (double)q[c] * (double)rho[c]);
}

static void bonus_backward(const head_place *x) {
    const int group = x->p->H / x->heads;
    for (int64_t t = 0; t < x->document->length; t++)
        for (int h = x->h * group; h < (x->h + 1) * group; h++)
            bonus_row_backward(x, h, x->document->start + t);
}

/* What of the gradient of y a value gets: of v itself, or of the operand. */
static void skip_backward(const head_place *x) {
    const srnn_problem *p = x->p;
    const int group = p->H / x->heads;
    const bool conv = p->attention.skip == SRNN_SKIP_CONV;
    const srnn_tensor out = conv ? x->call->gradients->skip : x->call->gradients->v;
    const real *weight = x->call->in->skip_weight;
    for (int64_t t = 0; out.data && t < x->document->length; t++)
        for (int d = 0; d < p->Dv; d++) {
            double sum = 0.0;
            for (int h = x->h * group; h < (x->h + 1) * group; h++) {
                const int64_t at = sr_row_index(p, p->H, x->document->b, h, x->document->start + t);
                const double own = conv ? 1.0
                                   : p->attention.skip == SRNN_SKIP_CHANNEL
                                       ? (double)weight[h * p->Dv + d]
                                       : (double)weight[h];
                sum += own * (double)x->row_work->d_skip[at * p->Dv + d];
            }
            real *to = &tensor_row(out, x->document->b, x->h, x->document->start + t)[d];
            *to = (real)(conv ? sum : (double)*to + sum);
        }
}

static void inputs_task(void *context, int64_t task, int worker) {
    const inputs_context *x = context;
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->problem;
    const srnn_attention *a = &p->attention;
    head_place at = {.row_work = x->row_work,
                     .call = x->call,
                     .p = p,
                     .document = &plan->documents[task / plan->core.Hkv],
                     .h = (int)(task % plan->core.Hkv),
                     .heads = plan->core.Hkv};
    (void)worker;
    at.base = sr_row_index(p, at.heads, at.document->b, at.h, at.document->start);
    if (sr_operand_used(SR_OPERAND_VALUE_GATE, a) && x->call->gradients->value_gate.data)
        value_gate_backward(&at);
    if (x->row_work->d_beta && x->call->gradients->write_gate.data)
        beta_backward(&at);
    if (x->row_work->decay && (x->call->gradients->decay.data || x->row_work->head_partial))
        decay_backward(&at);
    if (x->row_work->d_v)
        pool_backward(&at);
    if (x->row_work->d_skip && a->skip == SRNN_SKIP_BONUS)
        bonus_backward(&at);
    else if (x->row_work->d_skip)
        skip_backward(&at);
}

/* ---- all heads of a token ---- */

/* gradient (B, heads, T, D) = sums of d (B, own, T, D) over the heads that share a row. */
static void sum_shared(srnn_tensor gradient, const real *d, const srnn_problem *p, int own,
                       int64_t b, int64_t t) {
    for (int g = 0; g < p->Hkv; g++)
        for (int c = 0; c < p->D; c++)
            tensor_row(gradient, b, g, t)[c] = 0;
    for (int h = 0; h < own; h++) {
        real *out = tensor_row(gradient, b, sr_shared_head(p, h), t);
        const real *row = d + sr_row_index(p, own, b, h, t) * p->D;
        for (int c = 0; c < p->D; c++)
            out[c] += row[c];
    }
}

/* The gradient of a token's shared decays, from those of z. */
static void sum_decays(const sr_row_workspace *row_work, const sr_attention_call *call, int64_t b,
                       int64_t t) {
    const srnn_problem *p = &call->plan->problem;
    const int width = sr_decay_numbers(&p->attention, p->D), heads = call->plan->core.Hkv;
    for (int own = 0; own < p->Hkv; own++) {
        double sum[SR_HEAD_SIZE_MAX] = {0};
        real *out = tensor_row(call->gradients->decay, b, own, t);
        for (int h = 0; h < heads; h++)
            for (int c = 0; sr_shared_head(p, h) == own && c < width; c++)
                sum[c] += row_work->d_decay[sr_row_index(p, heads, b, h, t) * width + c];
        for (int c = 0; c < width; c++)
            out[c] = (real)sum[c];
    }
}

static void tokens_task(void *context, int64_t task, int worker) {
    const inputs_context *x = context;
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->problem;
    const srnn_operands *out = call->gradients;
    (void)worker;
    for (int64_t n = task * TOKENS; n < (task + 1) * TOKENS && n < p->B * p->T; n++) {
        const int64_t b = n / p->T, t = n % p->T;
        if (x->row_work->d_q && out->q.data)
            sum_shared(out->q, x->row_work->d_q, p, p->H, b, t);
        if (x->row_work->d_k && out->k.data)
            sum_shared(out->k, x->row_work->d_k, p, call->plan->core.Hkv, b, t);
        const srnn_tensor erase =
            sr_writes_channels(&p->attention) ? out->erase_gate : out->removal_key;
        if (x->row_work->d_erase && erase.data)
            sum_shared(erase, x->row_work->d_erase, p, call->plan->core.Hkv, b, t);
        if (x->row_work->d_removal && out->removal_gate.data)
            sum_shared(out->removal_gate, x->row_work->d_removal, p, call->plan->core.Hkv, b, t);
        if (x->row_work->d_decay && decay_is_shared(p) && out->decay.data)
            sum_decays(x->row_work, call, b, t);
        if (x->row_work->q_inverse && out->q.data)
            across_backward(out->q, call->in->q, x->row_work->q_inverse + n * p->D,
                            sr_query_heads(p), b, t, p->D);
        if (x->row_work->k_inverse && out->k.data)
            across_backward(out->k, call->in->k, x->row_work->k_inverse + n * p->D, p->Hkv, b, t,
                            p->D);
    }
}

/* ---- what is learned itself ---- */

static void value_power_backward(const sr_row_workspace *row_work, const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    const int heads = call->plan->core.Hkv;
    for (int h = 0; h < heads; h++) {
        double sum = 0.0;
        for (int64_t n = 0; n < call->plan->document_count; n++) {
            const sr_document_range *document = &call->plan->documents[n];
            int64_t base = sr_row_index(p, heads, document->b, h, document->start);
            for (int64_t t = 0; t < document->length; t++)
                sum -= row_work->value_dot[base + t] * log((double)(document->before + t + 1));
        }
        double c = sr_sigmoid((double)((const real *)call->in->value_power)[h]);
        ((real *)call->gradients->value_power)[h] = (real)(sum * c * (1.0 - c));
    }
}

/* Sums of partial[n * stride] over the batch, for each of `count` numbers of all heads. */
static double partial_sum(const double *partial, int64_t parts, int64_t stride) {
    double sum = 0.0;
    for (int64_t n = 0; n < parts; n++)
        sum += partial[n * stride];
    return sum;
}

static void norm_parameters_backward(const sr_row_workspace *row_work,
                                     const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    const bool wide = sr_norm_weighs_heads(&p->attention);
    const int64_t stride = 2 * p->Dv, heads = wide ? p->H : 1;
    const int64_t parts = wide ? p->B : (int64_t)p->B * p->H;
    real *weight = call->gradients->norm_weight, *bias = call->gradients->norm_bias;
    for (int64_t h = 0; h < heads; h++)
        for (int d = 0; d < p->Dv; d++) {
            const double *own = row_work->norm_partial + h * stride + d;
            if (weight)
                weight[h * p->Dv + d] = (real)partial_sum(own, parts, heads * stride);
            if (bias && sr_operand_used(SR_OPERAND_NORM_BIAS, &p->attention))
                bias[h * p->Dv + d] = (real)partial_sum(own + p->Dv, parts, heads * stride);
        }
}

static void skip_weight_backward(const sr_row_workspace *row_work, const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    const int width = sr_skip_partials(p);
    real *out = call->gradients->skip_weight;
    for (int h = 0; h < p->H; h++) {
        double all = 0.0;
        for (int d = 0; d < width; d++) {
            const double sum = partial_sum(row_work->skip_partial + (int64_t)h * width + d, p->B,
                                           (int64_t)p->H * width);
            all += sum;
            if (p->attention.skip != SRNN_SKIP_HEAD)
                out[h * width + d] = (real)sum;
        }
        if (p->attention.skip == SRNN_SKIP_HEAD)
            out[h] = (real)all;
    }
}

static void sinks_backward(const sr_row_workspace *row_work, const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    for (int h = 0; h < p->H; h++)
        ((real *)call->gradients->sinks)[h] =
            (real)partial_sum(row_work->sink_partial + h, p->B, p->H);
}

/* The gradient of a head's dt_bias (D), from those of z. */
static void channel_bias_task(void *context, int64_t task, int worker) {
    const inputs_context *x = context;
    const srnn_problem *p = &x->call->plan->problem;
    const int heads = x->call->plan->core.Hkv;
    real *out = (real *)x->call->gradients->dt_bias + task * p->D;
    double sum[SR_HEAD_SIZE_MAX] = {0};
    (void)worker;
    for (int64_t n = 0; n < (int64_t)p->B * heads; n++)
        for (int64_t t = 0; sr_decay_head(p, (int)(n % heads)) == task && t < p->T; t++) {
            const double *d = x->row_work->d_decay + (n * p->T + t) * p->D;
            for (int c = 0; c < p->D; c++)
                sum[c] += d[c];
        }
    for (int c = 0; c < p->D; c++)
        out[c] = (real)sum[c];
}

static void decay_parameters_backward(const sr_row_workspace *row_work,
                                      const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    const int heads = call->plan->core.Hkv, own = decay_is_shared(p) ? p->Hkv : heads;
    const bool wide = p->attention.dt_width == SRNN_DT_WIDTH_CHANNEL;
    real *const out[2] = {call->gradients->a_log, wide ? NULL : call->gradients->dt_bias};
    if (wide && call->gradients->dt_bias)
        sr_parallel(channel_bias_task, &(inputs_context){row_work, call}, own, p->threads);
    for (int h = 0; h < own; h++)
        for (int which = 0; which < 2; which++) {
            double sum = 0.0;
            for (int64_t n = 0; n < (int64_t)p->B * heads; n++)
                if (sr_decay_head(p, (int)(n % heads)) == h)
                    sum += partial_sum(row_work->head_partial + 2 * n * p->T + which, p->T, 2);
            if (out[which])
                out[which][h] = (real)sum;
        }
}

/* lambda = softplus(L z): gradients of z and of L, head by head. */
static void levels_task(void *context, int64_t task, int worker) {
    const inputs_context *x = context;
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->problem;
    const int h = (int)task;
    const real *scale = (const real *)call->in->level_scale + (int64_t)h * p->levels;
    double sums[SR_LEVELS_MAX] = {0};
    (void)worker;
    for (int64_t b = 0; b < p->B; b++)
        for (int64_t t = 0; t < p->T; t++) {
            const real *z = tensor_row(call->in->level_gate, b, h, t);
            const double *d = x->row_work->d_level + sr_row_index(p, p->H, b, h, t) * p->levels;
            for (int n = 0; n < p->levels; n++) {
                const double slope = d[n] * sr_sigmoid((double)scale[n] * (double)z[n]);
                sums[n] += slope * (double)z[n];
                if (call->gradients->level_gate.data)
                    tensor_row(call->gradients->level_gate, b, h, t)[n] =
                        (real)(slope * (double)scale[n]);
            }
        }
    for (int n = 0; call->gradients->level_scale && n < p->levels; n++)
        ((real *)call->gradients->level_scale)[(int64_t)h * p->levels + n] = (real)sums[n];
}

void SR_ISA_REAL(sr_prologue_backward)(const sr_row_workspace *row_work,
                                       const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->problem;
    const int heads = plan->core.Hkv;
    inputs_context context = {row_work, call};
    if (row_work->value_dot || row_work->d_decay || row_work->d_beta || row_work->d_v ||
        row_work->d_skip)
        sr_parallel(inputs_task, &context, plan->document_count * heads,
                    sr_workers_worth(100.0 * (double)p->B * p->T * heads, p->threads));
    if (row_work->q_inverse || row_work->d_q || row_work->d_k)
        sr_for_tokens(tokens_task, &context, p);
    if (row_work->d_level)
        sr_parallel(levels_task, &context, p->H, p->threads);
    if (sr_operand_used(SR_OPERAND_VALUE_POWER, &p->attention) && call->gradients->value_power)
        value_power_backward(row_work, call);
    if (row_work->norm_partial)
        norm_parameters_backward(row_work, call);
    if (row_work->skip_partial && call->gradients->skip_weight)
        skip_weight_backward(row_work, call);
    if (row_work->sink_partial && call->gradients->sinks)
        sinks_backward(row_work, call);
    if (row_work->head_partial)
        decay_parameters_backward(row_work, call);
}
