/* oracle.c: the equation of docs/VARIANTS.md in double, term by term. */
#include "oracle/oracle.h"

#include "base/memory.h"
#include "oracle/tape.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers in which series of exp do not cancel, as far as double shows it. */
#if LDBL_MANT_DIG >= 113
typedef long double wide;
#else
__extension__ typedef __float128 wide;
#endif

/* Where the derivative by a term is to be added. */
typedef struct target {
    sr_term term;
    double *gradient;
} target;

/* One document: its operands as terms, and what the equation makes of them. */
typedef struct document {
    const srnn_problem *problem;
    const srnn_attention *a;
    sr_tape *tape;
    int64_t b, start, length;
    target *targets;
    int64_t target_count;
    sr_term *q; /* (H, length, D), features from `features` on, as k */
    sr_term *k; /* (Hkv, length, D) */
    sr_term *v; /* (Hkv, length, Dv), times the value gate and what else is put on values */
    sr_term *value_gate;              /* (Hkv, length) */
    sr_term *output_gate;             /* (H, length) */
    sr_term *decay;                   /* (Hkv, length): g, then C */
    sr_term *gate_sum;                /* (H, length): sum_{m<=i} exp(output gate_m) */
    sr_term *norm_weight, *norm_bias; /* (Dv) */
    sr_term *value_power;             /* (Hkv) */
    sr_term *weights;                 /* (length) of one row */
    sr_term *o;                       /* (H, length, Dv) */
} document;

static sr_terms each(const sr_term *terms) {
    return (sr_terms){terms, 1};
}

static double value_of(const document *x, sr_term a) {
    return sr_tape_value(x->tape, a);
}

/* ---- functions of one number */

static sr_term exponential(const document *x, sr_term a) {
    const double e = exp(value_of(x, a));
    return sr_tape_function(x->tape, a, e, e);
}

static sr_term sigmoid(const document *x, sr_term a) {
    const double e = exp(-fabs(value_of(x, a)));
    return sr_tape_function(x->tape, a, value_of(x, a) < 0 ? e / (1 + e) : 1 / (1 + e),
                            e / (1 + e) / (1 + e));
}

static sr_term square_root(const document *x, sr_term a) {
    const double root = sqrt(value_of(x, a));
    return sr_tape_function(x->tape, a, root, 0.5 / root);
}

static sr_term at_least(const document *x, sr_term a, double least) {
    return value_of(x, a) < least ? sr_tape_number(x->tape, least) : a;
}

static sr_term at_most(const document *x, sr_term a, double most) {
    return value_of(x, a) > most ? sr_tape_number(x->tape, most) : a;
}

/* sum_{n<=order} s^n/n! */
static double series(double s, int order) {
    wide term = 1, sum = 1;
    for (int n = 1; n <= order; n++) {
        term *= (wide)s / n;
        sum += term;
    }
    return order < 0 ? 0 : (double)sum;
}

/* ---- features */

/* x / max(|x|, 1e-12) for `count` terms at a stride. */
static void make_unit(const document *x, sr_term *row, int64_t stride, int64_t count) {
    const sr_terms terms = {row, stride};
    const sr_term square = sr_tape_dot(x->tape, terms, terms, count);
    sr_term length = sr_tape_number(x->tape, 1e-12);
    if (sqrt(value_of(x, square)) >= 1e-12)
        length = square_root(x, square);
    for (int64_t n = 0; n < count; n++)
        row[n * stride] = sr_tape_divide(x->tape, row[n * stride], length);
}

static sr_term feature_of_number(const document *x, sr_term a) {
    const double value = value_of(x, a);
    switch (x->a->feature) {
    case SRNN_FEATURE_RELU:
        return value > 0 ? a : sr_tape_number(x->tape, 0);
    case SRNN_FEATURE_ELU1:
        return value > 0 ? sr_tape_affine(x->tape, a, 1, 1) : exponential(x, a);
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_HEADS:
        break;
    }
    return a;
}

/* rows (heads, length, D) into their features. */
static void features(const document *x, sr_term *rows, int64_t heads) {
    const int64_t D = x->problem->D, numbers = x->length * D;
    for (int64_t n = 0; n < heads * numbers; n++)
        rows[n] = feature_of_number(x, rows[n]);
    if (x->a->feature == SRNN_FEATURE_UNIT)
        for (int64_t n = 0; n < heads * x->length; n++)
            make_unit(x, rows + n * D, 1, D);
    if (x->a->feature == SRNN_FEATURE_UNIT_HEADS)
        for (int64_t n = 0; n < numbers; n++)
            make_unit(x, rows + n, numbers, heads);
}

/* ---- what is summed over positions, and what is put on values */

static void running_sums(const document *x) {
    const srnn_problem *p = x->problem;
    for (int64_t h = 0; x->decay && h < p->Hkv; h++) {
        sr_term sum = sr_tape_number(x->tape, 0);
        for (int64_t t = 0; t < x->length; t++) {
            sr_term *g = &x->decay[h * x->length + t];
            const sr_term next =
                sr_tape_add(x->tape, sum, sr_tape_affine(x->tape, *g, 1.0 / 1024, 0));
            *g = sum;
            sum = next;
        }
    }
    for (int64_t h = 0; x->gate_sum && h < p->H; h++) {
        sr_term sum = sr_tape_number(x->tape, 0);
        for (int64_t t = 0; t < x->length; t++) {
            sum = sr_tape_add(x->tape, sum, exponential(x, x->output_gate[h * x->length + t]));
            x->gate_sum[h * x->length + t] = sum;
        }
    }
}

static void value_factors(const document *x) {
    const srnn_problem *p = x->problem;
    for (int64_t h = 0; h < p->Hkv; h++)
        for (int64_t t = 0; t < x->length; t++) {
            sr_term *v = x->v + (h * x->length + t) * p->Dv;
            sr_term factor = sr_tape_number(x->tape, 1);
            if (x->a->value_gate)
                factor = sigmoid(x, x->value_gate[h * x->length + t]);
            if (x->a->normaliser == SRNN_NORMALISER_VALUE_POWER)
                factor = sr_tape_multiply(
                    x->tape, factor,
                    exponential(x, sr_tape_affine(x->tape, sigmoid(x, x->value_power[h]),
                                                  -log((double)t + 1), 0)));
            for (int64_t d = 0; d < p->Dv; d++)
                v[d] = sr_tape_multiply(x->tape, factor, v[d]);
        }
}

/* ---- the weights of a row */

/* One query: row i of head h, which reads the keys of head kv. */
typedef struct query {
    int64_t h, kv, i;
} query;

static sr_term logit(const document *x, query at, int64_t j) {
    const int64_t D = x->problem->D;
    const double scale = x->a->scale == SRNN_SCALE_ONE ? 1 : 1 / sqrt((double)D);
    const sr_term dot = sr_tape_dot(x->tape, each(x->q + (at.h * x->length + at.i) * D),
                                    each(x->k + (at.kv * x->length + j) * D), D);
    const sr_term s = sr_tape_affine(x->tape, dot, scale, 0);
    return x->a->clamp > 0 ? at_most(x, s, x->a->clamp) : s;
}

/* C_i - C_j */
static sr_term decay_between(const document *x, query at, int64_t j) {
    const sr_term *C = x->decay + at.kv * x->length;
    return sr_tape_subtract(x->tape, C[at.i], C[j]);
}

/* score(s) for scores that are not exponentials. */
static sr_term polynomial(const document *x, sr_term s) {
    const double value = value_of(x, s);
    const int order = x->a->order;
    switch (x->a->score) {
    case SRNN_SCORE_EXP:
    case SRNN_SCORE_LINEAR:
        break;
    case SRNN_SCORE_TAYLOR:
        return sr_tape_function(x->tape, s, series(value, order), series(value, order - 1));
    case SRNN_SCORE_POWER:
        return sr_tape_function(x->tape, s, pow(value, order), order * pow(value, order - 1));
    }
    return s;
}

/* True if a factor of all weights of a row has no effect: then it may be exp(-maximum). */
static bool factor_cancels(const srnn_attention *a) {
    return (a->normaliser == SRNN_NORMALISER_ROW_SUM && a->epsilon == 0) ||
           a->norm == SRNN_NORM_L2 || a->norm == SRNN_NORM_L2_SCALED;
}

/* x->weights[j] = w_ij for j <= i, all divided by one number where that has no effect. */
static void weigh(const document *x, query at) {
    const bool exponents = x->a->score == SRNN_SCORE_EXP;
    double maximum = -INFINITY;
    for (int64_t j = 0; j <= at.i; j++) {
        sr_term s = logit(x, at, j);
        if (exponents && x->decay)
            s = sr_tape_add(x->tape, s, decay_between(x, at, j));
        maximum = fmax(maximum, value_of(x, s));
        x->weights[j] = s;
    }
    for (int64_t j = 0; j <= at.i; j++) {
        sr_term w = x->weights[j];
        if (exponents)
            w = exponential(x, sr_tape_affine(x->tape, w, 1, factor_cancels(x->a) ? -maximum : 0));
        else
            w = polynomial(x, w);
        if (!exponents && x->decay)
            w = sr_tape_multiply(x->tape, w, exponential(x, decay_between(x, at, j)));
        x->weights[j] = w;
    }
}

/* ---- from the weights of a row to its output */

static sr_term normaliser(const document *x, query at, sr_term row_sum) {
    sr_term n = sr_tape_number(x->tape, 1);
    switch (x->a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        n = row_sum;
        break;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        n = at_least(x, row_sum, 1);
        break;
    case SRNN_NORMALISER_ROW_LENGTH:
        n = sr_tape_number(x->tape, (double)at.i + 1);
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        n = at_least(x, x->gate_sum[at.h * x->length + at.i], 1);
        break;
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    if (x->a->detach)
        n = sr_tape_number(x->tape, value_of(x, n));
    return sr_tape_affine(x->tape, n, 1, x->a->epsilon);
}

static sr_term output_gate(const document *x, query at) {
    const int64_t n = at.h * x->length + at.i;
    switch (x->a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return sigmoid(x, x->output_gate[n]);
    case SRNN_GATE_INVERSE_EXP:
        return exponential(x, sr_tape_affine(x->tape, x->output_gate[n], -1, 0));
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return sr_tape_divide(x->tape, sr_tape_number(x->tape, 1), x->gate_sum[n]);
    }
    return sr_tape_number(x->tape, 1);
}

static void divide_row(const document *x, sr_term *row, sr_term by) {
    for (int64_t d = 0; d < x->problem->Dv; d++)
        row[d] = sr_tape_divide(x->tape, row[d], by);
}

/* sqrt(mean of squares + epsilon) */
static sr_term root_mean_square(const document *x, const sr_term *row, double epsilon) {
    const int64_t Dv = x->problem->Dv;
    return square_root(x, sr_tape_affine(x->tape, sr_tape_dot(x->tape, each(row), each(row), Dv),
                                         1.0 / (double)Dv, epsilon));
}

static void subtract_mean(const document *x, sr_term *row) {
    const int64_t Dv = x->problem->Dv;
    const sr_term mean =
        sr_tape_affine(x->tape, sr_tape_sum(x->tape, each(row), Dv), 1.0 / (double)Dv, 0);
    for (int64_t d = 0; d < Dv; d++)
        row[d] = sr_tape_subtract(x->tape, row[d], mean);
}

/* |row|, at least `floor`. Squares of a row divided by its largest entry stay in range. */
static sr_term length_of(const document *x, const sr_term *row, double floor) {
    const int64_t Dv = x->problem->Dv;
    double largest = 0;
    sr_term unit[256];
    for (int64_t d = 0; d < Dv; d++)
        largest = fmax(largest, fabs(value_of(x, row[d])));
    for (int64_t d = 0; largest > 0 && d < Dv; d++)
        unit[d] = sr_tape_affine(x->tape, row[d], 1 / largest, 0);
    if (largest == 0)
        return sr_tape_number(x->tape, floor);
    const sr_term length = sr_tape_affine(
        x->tape, square_root(x, sr_tape_dot(x->tape, each(unit), each(unit), Dv)), largest, 0);
    return at_least(x, length, floor);
}

/* The floor of an l2 norm is one of rows divided by their sum: exp has it for sums that were not divided by. */
static double length_floor(const document *x, sr_term row_sum) {
    const bool undivided =
        x->a->score == SRNN_SCORE_EXP && x->a->normaliser != SRNN_NORMALISER_ROW_SUM;
    return undivided ? 1e-12 * value_of(x, row_sum) : 1e-12;
}

static void normalise(const document *x, sr_term *row, sr_term row_sum) {
    const int64_t Dv = x->problem->Dv;
    switch (x->a->norm) {
    case SRNN_NORM_NONE:
        return;
    case SRNN_NORM_LAYER:
        subtract_mean(x, row);
        divide_row(x, row, root_mean_square(x, row, 1e-5));
        break;
    case SRNN_NORM_RMS:
        divide_row(x, row, root_mean_square(x, row, 0x1p-23));
        break;
    case SRNN_NORM_L2:
        divide_row(x, row, length_of(x, row, length_floor(x, row_sum)));
        break;
    case SRNN_NORM_L2_SCALED:
        divide_row(x, row, length_of(x, row, length_floor(x, row_sum)));
        for (int64_t d = 0; d < Dv; d++)
            row[d] = sr_tape_affine(x->tape, row[d], (double)Dv, 0);
        break;
    }
    for (int64_t d = 0; d < Dv; d++) {
        if (x->norm_weight)
            row[d] = sr_tape_multiply(x->tape, row[d], x->norm_weight[d]);
        if (x->norm_bias)
            row[d] = sr_tape_add(x->tape, row[d], x->norm_bias[d]);
    }
}

static void attend(const document *x, query at) {
    const int64_t Dv = x->problem->Dv;
    sr_term *o = x->o + (at.h * x->length + at.i) * Dv;
    weigh(x, at);
    const sr_term row_sum = sr_tape_sum(x->tape, each(x->weights), at.i + 1);
    const sr_term divisor = normaliser(x, at, row_sum), gate = output_gate(x, at);
    for (int64_t d = 0; d < Dv; d++) {
        const sr_terms column = {x->v + at.kv * x->length * Dv + d, Dv};
        const sr_term sum = sr_tape_dot(x->tape, each(x->weights), column, at.i + 1);
        o[d] = sr_tape_multiply(x->tape, gate, sr_tape_divide(x->tape, sum, divisor));
    }
    normalise(x, o, row_sum);
    if (!x->a->post_gate)
        return;
    const sr_term post = sigmoid(x, x->output_gate[at.h * x->length + at.i]);
    for (int64_t d = 0; d < Dv; d++)
        o[d] = sr_tape_multiply(x->tape, post, o[d]);
}

/* ---- reading and writing */

/* One operand: where its numbers are, and how many there are for a head and token. */
typedef struct source {
    const void *data;
    void *gradient;
    int64_t heads, width; /* heads 0: one row of `width` numbers for all tokens */
} source;

static bool norm_has_weight(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_NONE:
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        break;
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        return true;
    }
    return false;
}

/* The document's share of an operand as terms. */
static srnn_status load(document *x, sr_term **terms, source from) {
    const int64_t T = x->problem->T, heads = from.heads ? from.heads : 1;
    const int64_t tokens = from.heads ? x->length : 1;
    SR_TRY(sr_alloc((void **)terms, (size_t)(heads * tokens * from.width), sizeof **terms));
    for (int64_t n = 0; n < heads * tokens * from.width; n++) {
        const int64_t h = n / (tokens * from.width), rest = n % (tokens * from.width);
        const int64_t at =
            from.heads ? ((x->b * heads + h) * T + x->start) * from.width + rest : rest;
        (*terms)[n] = sr_tape_number(x->tape, ((const double *)from.data)[at]);
        if (from.gradient)
            x->targets[x->target_count++] = (target){(*terms)[n], (double *)from.gradient + at};
    }
    return SRNN_OK;
}

static srnn_status load_all(document *x, const srnn_operands *in, const srnn_operands *g) {
    const srnn_problem *p = x->problem;
    const srnn_attention *a = x->a;
    SR_TRY(load(x, &x->q, (source){in->q.data, g->q.data, p->H, p->D}));
    SR_TRY(load(x, &x->k, (source){in->k.data, g->k.data, p->Hkv, p->D}));
    SR_TRY(load(x, &x->v, (source){in->v.data, g->v.data, p->Hkv, p->Dv}));
    if (a->value_gate)
        SR_TRY(
            load(x, &x->value_gate, (source){in->value_gate.data, g->value_gate.data, p->Hkv, 1}));
    if (a->output_gate != SRNN_GATE_NONE || a->post_gate ||
        a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE)
        SR_TRY(
            load(x, &x->output_gate, (source){in->output_gate.data, g->output_gate.data, p->H, 1}));
    if (a->decay == SRNN_DECAY_LEARNED)
        SR_TRY(load(x, &x->decay, (source){in->decay.data, g->decay.data, p->Hkv, 1}));
    if (norm_has_weight(a->norm))
        SR_TRY(load(x, &x->norm_weight, (source){in->norm_weight, g->norm_weight, 0, p->Dv}));
    if (a->norm == SRNN_NORM_LAYER)
        SR_TRY(load(x, &x->norm_bias, (source){in->norm_bias, g->norm_bias, 0, p->Dv}));
    if (a->normaliser == SRNN_NORMALISER_VALUE_POWER)
        SR_TRY(load(x, &x->value_power, (source){in->value_power, g->value_power, 0, p->Hkv}));
    const size_t rows = (size_t)p->H * (size_t)x->length;
    if (x->output_gate)
        SR_TRY(sr_alloc((void **)&x->gate_sum, rows, sizeof *x->gate_sum));
    SR_TRY(sr_alloc((void **)&x->weights, (size_t)x->length, sizeof *x->weights));
    return sr_alloc((void **)&x->o, rows * (size_t)p->Dv, sizeof *x->o);
}

static void clear(document *x) {
    sr_term *const arrays[] = {x->q,           x->k,           x->v,        x->value_gate,
                               x->output_gate, x->decay,       x->gate_sum, x->norm_weight,
                               x->norm_bias,   x->value_power, x->weights,  x->o};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        free(arrays[n]);
    free(x->targets);
    sr_tape_clear(x->tape);
}

/* The place of a document's output number n in o and d_o. */
static int64_t place_of(const document *x, int64_t n) {
    const srnn_problem *p = x->problem;
    const int64_t h = n / (x->length * p->Dv), rest = n % (x->length * p->Dv);
    return ((x->b * p->H + h) * p->T + x->start) * p->Dv + rest;
}

static srnn_status differentiate(const document *x, const double *d_o) {
    const int64_t count = x->problem->H * x->length * x->problem->Dv;
    double *weights;
    SR_TRY(sr_alloc((void **)&weights, (size_t)count, sizeof *weights));
    for (int64_t n = 0; n < count; n++)
        weights[n] = d_o ? d_o[place_of(x, n)] : 0;
    const srnn_status status = sr_tape_backward(x->tape, x->o, weights, count);
    for (int64_t n = 0; status == SRNN_OK && n < x->target_count; n++)
        *x->targets[n].gradient += sr_tape_derivative(x->tape, x->targets[n].term);
    free(weights);
    return status;
}

static void compute(const document *x) {
    const srnn_problem *p = x->problem;
    features(x, x->q, p->H);
    features(x, x->k, p->Hkv);
    running_sums(x);
    value_factors(x);
    for (int64_t h = 0; h < p->H; h++)
        for (int64_t i = 0; i < x->length; i++)
            attend(x, (query){h, h / (p->H / p->Hkv), i});
}

static srnn_status run_document(document *x, double *o, const srnn_operands *in,
                                const srnn_operands *gradients, const double *d_o) {
    const srnn_problem *p = x->problem;
    const int64_t numbers = x->length * (p->H * (p->D + 1) + p->Hkv * (p->D + p->Dv + 2));
    SR_TRY(
        sr_alloc((void **)&x->targets, (size_t)(numbers + 2 * p->Dv + p->Hkv), sizeof *x->targets));
    SR_TRY(load_all(x, in, gradients));
    compute(x);
    SR_TRY(differentiate(x, d_o));
    for (int64_t n = 0; n < p->H * x->length * p->Dv; n++)
        o[place_of(x, n)] = value_of(x, x->o[n]);
    return SRNN_OK;
}

static void zero(void *numbers, int64_t count) {
    if (numbers)
        memset(numbers, 0, (size_t)count * sizeof(double));
}

static void zero_gradients(const srnn_operands *g, const srnn_problem *p) {
    const int64_t rows = (int64_t)p->B * p->T;
    zero(g->q.data, rows * p->H * p->D);
    zero(g->k.data, rows * p->Hkv * p->D);
    zero(g->v.data, rows * p->Hkv * p->Dv);
    zero(g->value_gate.data, rows * p->Hkv);
    zero(g->output_gate.data, rows * p->H);
    zero(g->decay.data, rows * p->Hkv);
    zero(g->norm_weight, p->Dv);
    zero(g->norm_bias, p->Dv);
    zero(g->value_power, p->Hkv);
}

srnn_status sr_oracle_run(double *o, const srnn_operands *gradients, const double *d_o,
                          const srnn_problem *p, const srnn_operands *in) {
    const srnn_operands none = {0};
    const int64_t documents = p->offsets ? p->documents : p->B;
    sr_tape *tape;
    SR_TRY(sr_tape_create(&tape));
    if (gradients)
        zero_gradients(gradients, p);
    srnn_status status = SRNN_OK;
    for (int64_t n = 0; n < documents && status == SRNN_OK; n++) {
        const int64_t first = p->offsets ? p->offsets[n] : n * p->T;
        const int64_t past = p->offsets ? p->offsets[n + 1] : first + p->T;
        document x = {.problem = p,
                      .a = &p->attention,
                      .tape = tape,
                      .b = first / p->T,
                      .start = first % p->T,
                      .length = past - first};
        status = run_document(&x, o, in, gradients ? gradients : &none, d_o);
        clear(&x);
    }
    sr_tape_free(tape);
    return status;
}
