/* prologue.c: features, value factors and running sums before the core; compiled per number
 * type. */
#include "attention/cpu/shared/prologue.h"

#include "attention/cpu/shared/decays.h"
#include "attention/cpu/shared/heads.h"
#include "attention/cpu/shared/rows.h"
#include "attention/cpu/shared/simd.h"
#include "base/threads.h"
#include "equation/facts.h"
#include "equation/operands.h"
#include "equation/score.h"

#include <math.h>
#include <string.h>

void SR_ISA_REAL(sr_workspace_place)(sr_row_workspace *row_work, const srnn_plan *plan,
                                     bool backward, sr_layout *layout) {
    const srnn_problem *p = &plan->problem;
    const srnn_attention *a = &p->attention;
    size_t rows = (size_t)p->B * (size_t)p->T, q_rows = rows * (size_t)p->H;
    size_t k_rows = rows * (size_t)plan->core.Hkv, D = (size_t)p->D, Dv = (size_t)p->Dv;
    bool decay = sr_operand_used(SR_OPERAND_DECAY, a);
    bool gate = a->value_gate != SRNN_VALUE_GATE_OFF;
    bool power = sr_operand_used(SR_OPERAND_VALUE_POWER, a);
    bool across = a->feature == SRNN_FEATURE_UNIT_HEADS;
    bool cumulative = a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
                      a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
    bool levels = a->levels == SRNN_LEVELS_FENWICK;
    bool delta = a->write == SRNN_WRITE_DELTA && !sr_writes_channels(a);
    bool pool = a->pool > 0, shared = sr_shares_queries(a);
    bool rotated =
        a->position == SRNN_POSITION_ROPE_FEATURES || a->position == SRNN_POSITION_ROPE_CHUNKS;
    size_t decays = k_rows * (size_t)sr_decay_numbers(a, p->D);
#define TAKE(field, wanted, count) \
    row_work->field = (wanted) ? sr_layout_take(layout, (count), sizeof *row_work->field) : NULL
    TAKE(value_factor, gate || power, k_rows);
    TAKE(decay, decay, decays);
    TAKE(cumulative, cumulative, q_rows);
    TAKE(q_inverse, across, rows * D);
    TAKE(k_inverse, across, rows * D);
    TAKE(level, levels, q_rows * (size_t)p->levels);
    TAKE(beta, delta, k_rows);
    TAKE(pooled_k, pool, k_rows * D);
    TAKE(pooled_v, pool, k_rows * Dv);
    TAKE(angles, rotated, (1 + (size_t)p->B) * (size_t)p->T * D);
    TAKE(norm_workspace, a->norm_width == SRNN_NORM_WIDTH_ROW,
         (size_t)(p->B > p->threads ? p->B : p->threads) * (size_t)p->H * SR_NORM_WORKSPACE * Dv);
    TAKE(d_before, backward && a->norm != SRNN_NORM_NONE && a->norm_width == SRNN_NORM_WIDTH_ROW,
         q_rows * Dv);
    TAKE(d_numerator, backward, q_rows * Dv);
    TAKE(d_row_sum, backward, q_rows);
    TAKE(d_cumulative, backward && cumulative, q_rows);
    TAKE(value_dot, backward && (gate || power), k_rows);
    TAKE(norm_partial, backward && sr_operand_used(SR_OPERAND_NORM_WEIGHT, a),
         (size_t)p->B * (size_t)p->H * 2 * Dv);
    TAKE(sink_partial, backward && sr_operand_used(SR_OPERAND_SINKS, a),
         (size_t)p->B * (size_t)p->H);
    TAKE(d_decay, backward && decay, decays);
    TAKE(d_end, backward && decay && a->decay == SRNN_DECAY_LEARNED, decays / (size_t)p->T);
    TAKE(d_level, backward && levels, q_rows * (size_t)p->levels);
    TAKE(d_beta, backward && delta, k_rows);
    TAKE(d_skip, backward && a->skip != SRNN_SKIP_NONE, q_rows * Dv);
    TAKE(skip_partial, backward && sr_operand_used(SR_OPERAND_SKIP_WEIGHT, a),
         (size_t)p->B * (size_t)p->H * (size_t)sr_skip_partials(p));
    TAKE(head_partial, backward && sr_operand_used(SR_OPERAND_A_LOG, a), 2 * k_rows);
    TAKE(d_q, backward && shared, q_rows * D);
    TAKE(d_k, backward && (shared || pool), k_rows * D);
    TAKE(d_v, backward && pool, k_rows * Dv);
    TAKE(d_erase, backward && shared && sr_erases_apart(a), k_rows * D);
    TAKE(d_removal, backward && shared && a->write == SRNN_WRITE_REMOVAL, k_rows * D);
#undef TAKE
}

/* ---- running sums and value factors ---- */

typedef struct prepare_context {
    const sr_row_workspace *row_work;
    const srnn_plan *plan;
    const srnn_operands *in;
    sr_carry *carry;
} prepare_context;

static int64_t position_of(const prepare_context *x) {
    return x->carry ? *x->carry->position : 0;
}

/* out (rows.count) = the numbers z of a head with one per token, plus `moved`. */
static void token_numbers(double *out, srnn_tensor from, sr_rows rows, double moved) {
    for (int64_t r = 0; r < rows.count; r++)
        out[r] = (double)*tensor_row(from, rows.b, rows.h, rows.t + r) + moved;
}

static int64_t tokens_from(const sr_document_range *document, int64_t t) {
    return document->length - t < TOKENS ? document->length - t : TOKENS;
}

/* factor (count) of the gate on values. */
static void value_gates(double *factor, const srnn_attention *a, const srnn_operands *in,
                        sr_rows rows) {
    switch (a->value_gate) {
    case SRNN_VALUE_GATE_OFF:
        for (int64_t r = 0; r < rows.count; r++)
            factor[r] = 1.0;
        break;
    case SRNN_VALUE_GATE_SIGMOID:
        token_numbers(factor, in->value_gate, rows, 0.0);
        for (int64_t r = 0; r < rows.count; r++)
            factor[r] = sr_sigmoid(factor[r]);
        break;
    case SRNN_VALUE_GATE_TIME_STEP:
        token_numbers(factor, in->decay, rows, (double)((const real *)in->dt_bias)[rows.h]);
        softplus_of(factor, factor, rows.count);
        break;
    }
}

static void prepare_values(const prepare_context *x, const sr_document_range *document, int h) {
    const srnn_problem *p = &x->plan->problem;
    const bool power = p->attention.normaliser == SRNN_NORMALISER_VALUE_POWER;
    const double exponent = power ? sr_sigmoid((double)((const real *)x->in->value_power)[h]) : 0.0;
    const int64_t base = sr_row_index(p, x->plan->core.Hkv, document->b, h, document->start);
    for (int64_t t = 0; t < document->length; t += TOKENS) {
        double factor[TOKENS];
        const int64_t count = tokens_from(document, t);
        value_gates(factor, &p->attention, x->in,
                    (sr_rows){document->b, h, document->start + t, count});
        for (int64_t r = 0; r < count; r++) {
            if (power)
                factor[r] *=
                    pow((double)(position_of(x) + document->before + t + r + 1), -exponent);
            x->row_work->value_factor[base + t + r] = (real)factor[r];
        }
    }
}

/* What parts of rows need of C; see sr_part_decays. */
static void leave_decay(const prepare_context *x, const sr_document_range *document, int h,
                        const double *own, double end) {
    const srnn_problem *p = &x->plan->problem;
    const sr_part_decays *to = &x->plan->decays;
    const int heads = x->plan->core.Hkv;
    if (!to->own || x->plan->earlier.gap)
        return;
    memcpy(to->own + sr_row_index(p, heads, document->b, h, document->start), own,
           (size_t)document->length * sizeof *own);
    if (document->start + document->length == p->T)
        to->end[document->b * heads + h] = end;
}

/* C of all tokens: with the token's own gate, or, if learned, without. */
static void prepare_decay(const prepare_context *x, const sr_document_range *document, int h) {
    const srnn_problem *p = &x->plan->problem;
    const int heads = x->plan->core.Hkv, width = sr_decay_numbers(&p->attention, p->D);
    const bool before = p->attention.decay == SRNN_DECAY_LEARNED;
    const int own = sr_decay_head(p, h);
    const decay_rate rate = decay_rate_of(p, x->in, own);
    double *out =
        x->row_work->decay + sr_row_index(p, heads, document->b, h, document->start) * width;
    double *carried = x->carry ? &x->carry->decay[(document->b * heads + h) * width] : NULL;
    double sum[SR_HEAD_SIZE_MAX] = {0};
    for (int c = 0; carried && c < width; c++)
        sum[c] = carried[c];
    for (int64_t t = 0, count; t < document->length; t += count) {
        double z[SR_HEAD_SIZE_MAX]; /* at least TOKENS */
        real numbers[TOKENS];
        const real *row = tensor_row(x->in->decay, document->b, own, document->start + t);
        count = width == 1 ? tokens_from(document, t) : 1;
        for (int64_t r = 0; width == 1 && r < count; r++)
            numbers[r] = *tensor_row(x->in->decay, document->b, own, document->start + t + r);
        gate_logarithms(z, width == 1 ? numbers : row, (int)count * width, &p->attention, &rate);
        for (int64_t r = 0; r < count; r++)
            for (int c = 0; c < width; c++) {
                const double next = sum[c] + sr_gate_limited(z[r * width + c]);
                out[(t + r) * width + c] = before ? sum[c] : next;
                sum[c] = next;
            }
    }
    for (int c = 0; carried && c < width; c++)
        carried[c] = sum[c];
    leave_decay(x, document, h, out, sum[0]);
}

/* average (width), and a token's row of it: the gates times what was there, and the rest of them
 * times x. */
static void add_to_average(real *out, double *average, const gate_parts *g, const real *x,
                           int width) {
    for (int c = 0; c < width; c++) {
        average[c] = g->gate[c] * average[c] + g->rest[c] * (double)x[c];
        out[c] = (real)average[c];
    }
}

/* Running averages of k and v, from what was carried. */
static void prepare_averages(const prepare_context *x, const sr_document_range *document, int h) {
    const srnn_problem *p = &x->plan->problem;
    const int heads = x->plan->core.Hkv, wide = p->D > p->Dv ? p->D : p->Dv;
    const int64_t base = sr_row_index(p, heads, document->b, h, document->start);
    double *carried = x->carry ? x->carry->pool + (document->b * heads + h) * (p->D + p->Dv) : NULL;
    double average[SR_HEAD_SIZE_MAX + SR_VALUE_SIZE_MAX] = {0};
    gate_parts g;
    if (carried)
        memcpy(average, carried, (size_t)(p->D + p->Dv) * sizeof *average);
    for (int64_t t = 0; t < document->length; t++) {
        const int64_t token = document->start + t;
        gate_parts_of(&g, tensor_row(x->in->pool_gate, document->b, h, token), wide);
        if ((position_of(x) + t) % p->attention.pool == 0)
            memset(average, 0, sizeof average);
        add_to_average(x->row_work->pooled_k + (base + t) * p->D, average, &g,
                       tensor_row(x->in->k, document->b, sr_shared_head(p, h), token), p->D);
        add_to_average(x->row_work->pooled_v + (base + t) * p->Dv, average + p->D, &g,
                       tensor_row(x->in->v, document->b, h, token), p->Dv);
    }
    if (carried)
        memcpy(carried, average, (size_t)(p->D + p->Dv) * sizeof *average);
}

static void prepare_kv_head(const prepare_context *x, const sr_document_range *document, int h) {
    const srnn_problem *p = &x->plan->problem;
    const sr_row_workspace *row_work = x->row_work;
    const int64_t base = sr_row_index(p, x->plan->core.Hkv, document->b, h, document->start);
    if (row_work->value_factor)
        prepare_values(x, document, h);
    if (row_work->decay)
        prepare_decay(x, document, h);
    for (int64_t t = 0; row_work->beta && t < document->length; t += TOKENS) {
        double beta[TOKENS];
        const int64_t count = tokens_from(document, t);
        token_numbers(beta, x->in->write_gate,
                      (sr_rows){document->b, h, document->start + t, count}, 0.0);
        if (x->plan->problem.attention.write_gate == SRNN_WRITE_GATE_SIGMOID)
            sigmoid_of(beta, beta, count);
        for (int64_t r = 0; r < count; r++)
            row_work->beta[base + t + r] = (real)(sr_write_range(&p->attention) * beta[r]);
    }
    if (row_work->pooled_k)
        prepare_averages(x, document, h);
}

/* lambda = softplus(L z) */
static void prepare_levels(const prepare_context *x, const sr_document_range *document, int h) {
    const srnn_problem *p = &x->plan->problem;
    const real *scale = (const real *)x->in->level_scale + (int64_t)h * p->levels;
    for (int64_t t = document->start; t < document->start + document->length; t++) {
        const real *z = tensor_row(x->in->level_gate, document->b, h, t);
        double *out = x->row_work->level + sr_row_index(p, p->H, document->b, h, t) * p->levels;
        for (int n = 0; n < p->levels; n++)
            out[n] = (double)scale[n] * (double)z[n];
        softplus_of(out, out, p->levels);
    }
}

static void prepare_q_head(const prepare_context *x, const sr_document_range *document, int h) {
    const srnn_problem *p = &x->plan->problem;
    if (x->row_work->level)
        prepare_levels(x, document, h);
    if (!x->row_work->cumulative)
        return;
    int64_t base = sr_row_index(p, p->H, document->b, h, document->start);
    double *carried = x->carry ? &x->carry->cumulative[document->b * p->H + h] : NULL;
    double sum = carried ? *carried : 0.0;
    if (x->plan->sums.before && document->before > 0)
        sum = x->plan->sums.before[document->b * p->H + h];
    for (int64_t t = 0; t < document->length; t++) {
        sum += exp((double)*tensor_row(x->in->output_gate, document->b, h, document->start + t));
        x->row_work->cumulative[base + t] = sum;
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
    const int kv = x->plan->core.Hkv, heads = kv + p->H, h = (int)(task % heads);
    const sr_document_range *document = &x->plan->documents[task / heads];
    (void)worker;
    if (h < kv)
        prepare_kv_head(x, document, h);
    else
        prepare_q_head(x, document, h - kv);
}

static void inverse_task(void *context, int64_t task, int worker) {
    const prepare_context *x = context;
    const srnn_problem *p = &x->plan->problem;
    (void)worker;
    for (int64_t n = task * TOKENS; n < (task + 1) * TOKENS && n < p->B * p->T; n++) {
        const int64_t b = n / p->T, t = n % p->T;
        inverse_across(x->row_work->q_inverse + n * p->D, x->in->q, sr_query_heads(p), b, t, p->D);
        inverse_across(x->row_work->k_inverse + n * p->D, x->in->k, p->Hkv, b, t, p->D);
    }
}

/* Cosines and sines of TOKENS tokens of a document, or of the piece of one that is fed; or of those
 * of the document that row table - 1 continues. */
static void turn_task(void *context, int64_t task, int worker) {
    const prepare_context *x = context;
    const srnn_problem *p = &x->plan->problem;
    const bool chunks = p->attention.position == SRNN_POSITION_ROPE_CHUNKS;
    const int64_t strips = (p->T + TOKENS - 1) / TOKENS, table = task / strips;
    const int64_t before = table ? sr_tokens_before(x->plan, table - 1, 0) : 0;
    const int64_t half = p->D / 2, unit = chunks ? p->attention.pool : 1;
    const int64_t from = task % strips * TOKENS;
    const int64_t past = p->T - from < TOKENS ? p->T : from + TOKENS;
    real *const angles = x->row_work->angles + table * p->T * half * 2;
    (void)worker;
    if (table && !before)
        return;
    for (int64_t c = 0; c < half; c++) {
        const double speed = pow(p->rope_theta, -2.0 * (double)c / p->D);
        for (int64_t t = from; t < past; t++) {
            const double angle = (double)((position_of(x) + before + t) / unit) * speed;
            angles[(t * half + c) * 2] = (real)cos(angle);
            angles[(t * half + c) * 2 + 1] = (real)sin(angle);
        }
    }
}

void SR_ISA_REAL(sr_prologue_prepare)(const sr_row_workspace *row_work, const srnn_plan *plan,
                                      const srnn_operands *in, sr_carry *carry) {
    const srnn_problem *p = &plan->problem;
    prepare_context context = {row_work, plan, in, carry};
    const int heads = p->H + plan->core.Hkv;
    if (row_work->value_factor || row_work->decay || row_work->cumulative || row_work->level ||
        row_work->beta || row_work->pooled_k)
        sr_parallel(prepare_task, &context, plan->document_count * heads,
                    sr_workers_worth(100.0 * (double)p->B * p->T * heads, p->threads));
    if (row_work->q_inverse)
        sr_for_tokens(inverse_task, &context, p);
    if (row_work->angles)
        sr_parallel(turn_task, &context,
                    (p->T + TOKENS - 1) / TOKENS * (plan->continues ? 1 + p->B : 1),
                    sr_workers_worth(50.0 * (double)p->T * p->D, p->threads));
}
