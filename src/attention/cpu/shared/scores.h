/* scores.h (private): vectorized conversion of rows of logits to weights, and its backward.
 *
 * A row holds logits s_ij against the keys of one tile. Only columns low .. high-1 are visible; the
 * others, up to `width`, become zero, so that a GEMM may cover the whole row. */
#ifndef SR_ATTENTION_CPU_SHARED_SCORES_H
#define SR_ATTENTION_CPU_SHARED_SCORES_H

#include "attention/cpu/shared/simd.h"
#include "equation/facts.h"
#include "equation/score.h"

enum {
    SHORT_SERIES = 8
}; /* up to this order a plain sum in `real` is accurate for negative s too */

typedef struct score_rule {
    srnn_score score;
    int order;
    bool clamped, capped;
    bool logit_decay; /* decay multiplies logits, not weights */
    real clamp, bias;
    cap_rule cap;
    real inverse_factorial[SHORT_SERIES + 1];
    /* Between these bounds a longer series and its derivative equal exp up to rounding; outside
     * they are summed in double. */
    real exp_from, exp_to;
} score_rule;

static inline score_rule score_rule_of(const srnn_attention *a) {
    score_rule rule = {.score = a->score,
                       .order = a->order,
                       .clamped = a->clamp != 0.0,
                       .capped = a->cap != 0.0,
                       .logit_decay = sr_decay_in_logits(a),
                       .clamp = (real)a->clamp,
                       .cap = cap_rule_of(a->cap),
                       .bias = (real)a->score_bias};
    if (a->score == SRNN_SCORE_TAYLOR) {
        double factorial = 1.0;
        for (int n = 0; n <= SHORT_SERIES; n++) {
            rule.inverse_factorial[n] = (real)(1.0 / factorial);
            factorial *= n + 1;
        }
        const double precision = sizeof(real) == 8 ? 1e-16 : 3e-8;
        rule.exp_from = (real)-sr_taylor_reach(a->order - 1, -1.0, precision);
        rule.exp_to = (real)sr_taylor_reach(a->order - 1, 1.0, precision);
    }
    return rule;
}

/* The order-N series for N > SHORT_SERIES (or its derivative: the series of one order less). */
static inline vec long_series(vec s, const score_rule *rule, int order) {
    if (!vec_any((vec_bits)(s < rule->exp_from) | (vec_bits)(s > rule->exp_to)))
        return vec_exp(s);
    wide_vec x = __builtin_convertvector(s, wide_vec), sum = {0};
    sum += 1.0;
    for (int n = order; n > 0; n--)
        sum = sum * (x * (1.0 / n)) + 1.0;
    vec result = __builtin_convertvector(sum, vec);
    for (int lane = 0; lane < LANES; lane++)
        if (s[lane] < (real)-4) /* from here on the plain sum suffers from cancellation */
            result[lane] = (real)sr_taylor((double)s[lane], order);
    return result;
}

static inline vec series(vec s, const score_rule *rule, int order) {
    if (order > SHORT_SERIES)
        return long_series(s, rule, order);
    if (order < 0)
        return (vec){0};
    vec sum = vec_all(rule->inverse_factorial[order]);
    for (int n = order - 1; n >= 0; n--)
        sum = sum * s + rule->inverse_factorial[n];
    return sum;
}

static inline vec power(vec s, int order) {
    vec result = vec_all(1);
    for (vec square = s; order > 0; order >>= 1, square *= square)
        if (order & 1)
            result *= square;
    return result;
}

/* score(s) and its slope for the scores other than exp. */
static inline vec score_value(vec s, const score_rule *rule) {
    switch (rule->score) {
    case SRNN_SCORE_EXP:
    case SRNN_SCORE_LINEAR:
        return s;
    case SRNN_SCORE_TAYLOR:
        return series(s, rule, rule->order);
    case SRNN_SCORE_POWER:
        return power(s, rule->order);
    case SRNN_SCORE_SIGMOID:
        return vec_sigmoid(s + rule->bias);
    }
    return s;
}

static inline vec score_slope(vec s, const score_rule *rule) {
    vec rest;
    switch (rule->score) {
    case SRNN_SCORE_EXP:
    case SRNN_SCORE_LINEAR:
        return vec_all(1);
    case SRNN_SCORE_TAYLOR:
        return series(s, rule, rule->order - 1);
    case SRNN_SCORE_POWER:
        return (real)rule->order * power(s, rule->order - 1);
    case SRNN_SCORE_SIGMOID:
        s = vec_sigmoid_parts(s + rule->bias, &rest);
        return s * rest;
    }
    return s;
}

/* Value and slope divided by e^maximum, for powers and series that would overflow: in double, or
 * with the logits of a power scaled beforehand. */
typedef struct scaled_polynomial {
    const score_rule *rule;
    double maximum;
    real logit_factor; /* of a power score */
} scaled_polynomial;

static inline scaled_polynomial scaled_polynomial_of(const score_rule *rule, real maximum) {
    const double reduction = maximum == (real)-INFINITY ? 0.0 : (double)maximum;
    const bool is_power = rule->score == SRNN_SCORE_POWER;
    return (scaled_polynomial){rule, reduction, is_power ? (real)exp(-reduction / rule->order) : 1};
}

static inline vec scaled_value(vec s, const scaled_polynomial *p) {
    if (p->rule->score == SRNN_SCORE_POWER)
        return power(s * p->logit_factor, p->rule->order);
    for (int lane = 0; lane < LANES; lane++)
        s[lane] = (real)(sr_score_value(p->rule->score, p->rule->order, (double)s[lane]) *
                         exp(-p->maximum));
    return s;
}

static inline vec scaled_slope(vec s, const scaled_polynomial *p) {
    if (p->rule->score == SRNN_SCORE_POWER)
        return (real)p->rule->order * p->logit_factor *
               power(s * p->logit_factor, p->rule->order - 1);
    for (int lane = 0; lane < LANES; lane++)
        s[lane] = (real)(sr_score_slope(p->rule->score, p->rule->order, (double)s[lane]) *
                         exp(-p->maximum));
    return s;
}

/* A row of a tile and its parameters. */
typedef struct score_row {
    real *s;       /* (width), logits in, weights out */
    int low, high; /* visible columns */
    int width;     /* a multiple of LANES */
    real decay;    /* C_i and, per column, C_j, both relative to the same reference; columns NULL:
                    * no decay */
    const real *decay_columns;
    real decay_rest; /* the rounding errors of both */
    const real *decay_column_rests;
    real maximum; /* subtracted from the logarithm of all weights */
    real bound;   /* bound on |s|; infinity or NaN if unknown */
    /* with decay: vec_exp_small takes every exponent, as long as nothing is subtracted */
    bool near;
} score_row;

/* Weights that decay reduces below e^this are zero: their products would be subnormal, which are a
 * hundred times as slow. */
#define LEAST_EXPONENT ((real)-80)

/* e^x, or zero below LEAST_EXPONENT. */
static inline vec vec_exp_decayed(vec x) {
    return vec_select((vec_bits)(x < LEAST_EXPONENT), (vec){0}, vec_exp(x));
}

/* Below this bound on |s|, exp and its row sums are far from overflow and underflow: the row
 * maximum need not be subtracted, and exp needs no range checks. */
#define SMALL_LOGIT ((real)40)

/* True if weights of logits up to this bound need no scaling. */
static inline bool logits_are_tame(const score_rule *rule, real bound) {
    if (rule->score == SRNN_SCORE_EXP)
        return bound <= SMALL_LOGIT;
    if (rule->score == SRNN_SCORE_POWER && rule->order > SR_TAME_POWER)
        return false;
    return sr_score_log_scale(rule->score, rule->order, (double)bound) == 0.0;
}

/* True if the row's weights are exponentials, either because the score is exp or because its series
 * has converged. */
static inline bool row_is_exponential(const score_row *row, const score_rule *rule) {
    bool converged = rule->score == SRNN_SCORE_TAYLOR && rule->order > SHORT_SERIES &&
                     row->bound <= rule->exp_to && row->bound <= -rule->exp_from;
    return rule->score == SRNN_SCORE_EXP || converged;
}

static inline void row_clear_hidden(real *row, int low, int high, int width) {
    for (int j = 0; j < low; j++)
        row[j] = 0;
    for (int j = high; j < width; j++)
        row[j] = 0;
}

/* The rule and the row as local constants, so that stores to the row do not force the compiler to
 * reload them. */
typedef struct score_constants {
    bool clamped, capped, near, decayed; /* capped, near: by row_weights_plain_capped alone */
    real clamp, decay, decay_rest, maximum;
    const cap_rule *cap;
    const real *decay_columns, *decay_column_rests;
} score_constants;

static inline score_constants constants_of(const score_row *row, const score_rule *rule) {
    return (score_constants){.clamped = rule->clamped,
                             .decayed = row->decay_columns != NULL,
                             .clamp = rule->clamp,
                             .decay = row->decay,
                             .decay_rest = row->decay_rest,
                             .maximum = row->maximum,
                             .decay_columns = row->decay_columns,
                             .decay_column_rests = row->decay_column_rests};
}

static inline vec clamp_logits(vec s, score_constants c) {
    return c.clamped ? vec_min(vec_all(c.clamp), s) : s; /* in this operand order NaN propagates */
}

/* C_i - C_j */
static inline vec decay_between(score_constants c, int j) {
    return c.decay - vec_load(c.decay_columns + j) +
           (c.decay_rest - vec_load(c.decay_column_rests + j));
}

static inline vec exponent_of(vec s, score_constants c, int j) {
    vec x = clamp_logits(s, c) - c.maximum;
    if (c.decayed)
        x += decay_between(c, j);
    return x;
}

static inline vec decay_factor(score_constants c, int j) {
    return vec_exp_decayed(decay_between(c, j));
}

/* Hidden columns of the vector at j become `value`. */
static inline vec hide_columns(vec x, const score_row *row, int j, real value) {
    if (j >= row->low && j + LANES <= row->high)
        return x;
    vec column = vec_count() + (real)j;
    vec_bits hidden = (vec_bits)(column < (real)row->low) | (vec_bits)(column >= (real)row->high);
    return vec_select(hidden, vec_all(value), x);
}

/* Largest exponent of the visible columns. */
static inline real row_largest_exponent(const score_row *row, const score_rule *rule) {
    score_constants c = constants_of(row, rule);
    vec maximum = vec_all((real)-INFINITY);
    c.maximum = 0;
    for (int j = row->low / LANES * LANES; j < row->high; j += LANES) {
        vec x = exponent_of(vec_load(row->s + j), c, j);
        maximum = vec_max(hide_columns(x, row, j, (real)-INFINITY), maximum);
    }
    return vec_maximum(maximum);
}

/* Largest |s| of the visible columns, clamped. */
static inline real row_largest_logit(const score_row *row, const score_rule *rule) {
    const score_constants c = constants_of(row, rule);
    vec largest = {0};
    for (int j = row->low / LANES * LANES; j < row->high; j += LANES) {
        vec x = hide_columns(clamp_logits(vec_load(row->s + j), c), row, j, 0);
        largest = vec_max(vec_max(x, -x), largest);
    }
    return vec_maximum(largest);
}

/* The value to subtract from the logarithms of this row's weights. */
static inline real row_log_scale(const score_row *row, const score_rule *rule) {
    if (rule->score == SRNN_SCORE_EXP)
        return row_largest_exponent(row, rule);
    return (real)sr_score_log_scale(rule->score, rule->order, (double)row_largest_logit(row, rule));
}

/* exp of small logits without decay: `count` vectors from s on, clamped or capped. */
SR_BUNDLED void bundle_weights_plain(real *s, score_constants c, vec *total, int count) {
    vec x[BUNDLE], slope[BUNDLE];
    if (c.capped)
        bundle_capped(x, s, c.cap, c.near, slope, count);
    else
        SR_EACH(count) x[i] = clamp_logits(vec_load(s + i * LANES), c);
    bundle_exp_small(x, count);
    SR_EACH(count) vec_store(s + i * LANES, x[i]);
    SR_EACH(count) *total += x[i];
}

SR_BUNDLED void row_weights_bundles(real *s, int width, score_constants c, vec *sum) {
    vec total = {0};
    int j = 0;
    for (; j + BUNDLE * LANES <= width; j += BUNDLE * LANES)
        bundle_weights_plain(s + j, c, &total, BUNDLE);
    for (; j < width; j += LANES)
        bundle_weights_plain(s + j, c, &total, 1);
    if (sum)
        *sum += total;
}

/* Fast path of the common case: exp of small logits, no decay, every column visible. */
static inline void row_weights_plain(real *s, int width, score_constants c, vec *sum) {
    if (c.clamped)
        row_weights_bundles(s, width, (score_constants){.clamped = true, .clamp = c.clamp}, sum);
    else
        row_weights_bundles(s, width, (score_constants){.clamped = false}, sum);
}

/* The same with a cap, for logits before it up to `bound`. */
static inline void row_weights_plain_capped(real *s, int width, real bound, const score_rule *rule,
                                            vec *sum) {
    const cap_rule cap = rule->cap;
    if (bound <= cap.near)
        row_weights_bundles(s, width, (score_constants){.capped = true, .near = true, .cap = &cap},
                            sum);
    else
        row_weights_bundles(s, width, (score_constants){.capped = true, .cap = &cap}, sum);
}

/* The same with decay. Its bits equal those of the general loop: the choice between them depends on
 * the whole tile, and so on other documents. */
static inline void row_weights_near(real *s, int width, score_constants c, vec *sum) {
    vec total = sum ? *sum : (vec){0};
    for (int j = 0; j < width; j += LANES) {
        vec w = vec_exp_small(exponent_of(vec_load(s + j), c, j));
        vec_store(s + j, w);
        total += w;
    }
    if (sum)
        *sum = total;
}

/* Polynomial scores without clamp and decay, starting at a multiple of COLUMNS. */
static inline void row_weights_polynomial(real *s, int from, int high, const score_rule *rule) {
    if (rule->score == SRNN_SCORE_LINEAR)
        return;
    if (rule->score == SRNN_SCORE_TAYLOR && rule->order <= SHORT_SERIES) {
        /* Two vectors per iteration share the coefficients and the loop. */
        for (int j = from; j < high; j += COLUMNS) {
            const vec x0 = vec_load(s + j), x1 = vec_load(s + j + LANES);
            vec sum0 = vec_all(rule->inverse_factorial[rule->order]), sum1 = sum0;
            for (int n = rule->order - 1; n >= 0; n--) {
                const vec next = vec_all(rule->inverse_factorial[n]);
                sum0 = sum0 * x0 + next;
                sum1 = sum1 * x1 + next;
            }
            vec_store(s + j, sum0);
            vec_store(s + j + LANES, sum1);
        }
        return;
    }
    for (int j = from; j < high; j += LANES)
        vec_store(s + j, score_value(vec_load(s + j), rule));
}

/* Multiplies the visible logits by their decay and removes the decay from the row. Stores the
 * factors in `factor` (width) unless it is NULL. */
static inline void row_decay_logits(score_row *row, const score_rule *rule, real *factor) {
    const score_constants c = constants_of(row, rule);
    for (int j = row->low / LANES * LANES; j < row->high; j += LANES) {
        const vec decay = decay_factor(c, j);
        vec_store(row->s + j, hide_columns(decay * vec_load(row->s + j), row, j, 0));
        if (factor)
            vec_store(factor + j, decay);
    }
    row->decay_columns = NULL;
}

/* The bound on |s| after the cap: |tanh| is at most 1. */
static inline real capped_bound(const score_rule *rule, real bound) {
    return rule->capped && !(bound <= rule->cap.cap) ? rule->cap.cap : bound;
}

/* Replaces the visible logits by cap tanh(s / cap). Stores its slope in `slope` (width) unless that
 * is NULL, with 0 in hidden columns. */
static inline void row_cap_logits(const score_row *row, const score_rule *rule, real *slope) {
    const cap_rule cap = rule->cap;
    for (int j = row->low / LANES * LANES; j < row->high; j += LANES) {
        vec own, s;
        bundle_capped(&s, row->s + j, &cap, false, &own, 1);
        vec_store(row->s + j, s);
        if (slope)
            vec_store(slope + j, hide_columns(own, row, j, 0));
    }
}

/* True if every column is visible and nothing is subtracted. */
static inline bool row_is_whole(const score_row *row) {
    return row->low == 0 && row->high == row->width && row->maximum == 0;
}

/* True if the weights are exponentials of small capped logits: one loop does both. */
static inline bool row_is_plain_capped(const score_row *row, const score_rule *rule) {
    return rule->capped && rule->score == SRNN_SCORE_EXP && row->bound <= SMALL_LOGIT &&
           !row->decay_columns && !rule->clamped;
}

/* Logits (after the cap) to weights; adds the weights to *sum unless it is NULL. */
static inline void row_weights(const score_row *row, const score_rule *rule, vec *sum) {
    const score_constants c = constants_of(row, rule);
    real *const s = row->s;
    const int from = row->low / LANES * LANES, high = row->high;
    const bool exponential = row_is_exponential(row, rule);
    const bool whole = row_is_whole(row);
    if (exponential && whole && row->bound <= SMALL_LOGIT && !c.decayed) {
        row_weights_plain(s, row->width, c, sum);
        return;
    }
    if (exponential && whole && row->near) {
        row_weights_near(s, row->width, c, sum);
        return;
    }
    if (exponential && c.decayed) {
        for (int j = from; j < high; j += LANES)
            vec_store(s + j, vec_exp_decayed(exponent_of(vec_load(s + j), c, j)));
    } else if (exponential) {
        for (int j = from; j < high; j += LANES)
            vec_store(s + j, vec_exp(exponent_of(vec_load(s + j), c, j)));
    } else if (c.maximum != 0) {
        const scaled_polynomial scaled = scaled_polynomial_of(rule, c.maximum);
        for (int j = from; j < high; j += LANES) {
            vec w = scaled_value(clamp_logits(vec_load(s + j), c), &scaled);
            vec_store(s + j, c.decayed ? w * decay_factor(c, j) : w);
        }
    } else if (!c.clamped && !c.decayed) {
        row_weights_polynomial(s, row->low / COLUMNS * COLUMNS, high, rule);
    } else {
        for (int j = from; j < high; j += LANES) {
            vec w = score_value(clamp_logits(vec_load(s + j), c), rule);
            vec_store(s + j, c.decayed ? w * decay_factor(c, j) : w);
        }
    }
    row_clear_hidden(s, row->low, high, row->width);
    if (!sum)
        return;
    vec total = *sum;
    for (int j = from; j < high; j += LANES)
        total += vec_load(s + j);
    *sum = total;
}

/* Fast path of row_weights_backward: exp of small logits without clamp and decay, starting at a
 * multiple of COLUMNS, two vectors at a time. */
static inline void row_weights_plain_backward(const score_row *row, real *d, real d_row_sum) {
    real *const s = row->s;
    const real maximum = row->maximum;
    for (int j = row->low / COLUMNS * COLUMNS; j < row->high; j += COLUMNS) {
        const vec w0 = vec_exp_small(vec_load(s + j) - maximum),
                  w1 = vec_exp_small(vec_load(s + j + LANES) - maximum);
        const vec d0 = vec_load(d + j) + d_row_sum, d1 = vec_load(d + j + LANES) + d_row_sum;
        vec_store(s + j, w0);
        vec_store(s + j + LANES, w1);
        vec_store(d + j, w0 * d0);
        vec_store(d + j + LANES, w1 * d1);
    }
}

/* The same with a cap, for `count` vectors of logits before it. */
SR_BUNDLED void bundle_weights_backward(real *s, real *d, score_constants c, real d_row_sum,
                                        int count) {
    vec x[BUNDLE], slope[BUNDLE];
    bundle_capped(x, s, c.cap, c.near, slope, count);
    SR_EACH(count) x[i] = x[i] - c.maximum;
    bundle_exp_small(x, count);
    SR_EACH(count) vec_store(s + i * LANES, x[i]);
    SR_EACH(count) {
        const vec own = x[i] * (vec_load(d + i * LANES) + d_row_sum) * slope[i];
        vec_store(d + i * LANES, own);
    }
}

SR_BUNDLED void row_bundles_backward(const score_row *row, score_constants c, real *d,
                                     real d_row_sum) {
    int j = row->low / LANES * LANES;
    for (; j + BUNDLE * LANES <= row->high; j += BUNDLE * LANES)
        bundle_weights_backward(row->s + j, d + j, c, d_row_sum, BUNDLE);
    for (; j < row->high; j += LANES)
        bundle_weights_backward(row->s + j, d + j, c, d_row_sum, 1);
}

static inline void row_weights_plain_capped_backward(const score_row *row, const score_rule *rule,
                                                     real *d, real d_row_sum) {
    const cap_rule cap = rule->cap;
    const real maximum = row->maximum;
    if (row->bound <= cap.near)
        row_bundles_backward(row, (score_constants){.near = true, .maximum = maximum, .cap = &cap},
                             d, d_row_sum);
    else
        row_bundles_backward(row, (score_constants){.maximum = maximum, .cap = &cap}, d, d_row_sum);
}

/* The same with decay. */
static inline void row_weights_near_backward(const score_row *row, const score_rule *rule, real *d,
                                             real d_row_sum) {
    const score_constants c = constants_of(row, rule);
    real *const s = row->s;
    for (int j = row->low / COLUMNS * COLUMNS; j < row->high; j += COLUMNS) {
        const vec w0 = vec_exp_small(exponent_of(vec_load(s + j), c, j)),
                  w1 = vec_exp_small(exponent_of(vec_load(s + j + LANES), c, j + LANES));
        const vec d0 = vec_load(d + j) + d_row_sum, d1 = vec_load(d + j + LANES) + d_row_sum;
        vec_store(s + j, w0);
        vec_store(s + j + LANES, w1);
        vec_store(d + j, w0 * d0);
        vec_store(d + j + LANES, w1 * d1);
    }
}

/* The same for linear scores, whose weights are the logits. */
static inline void row_weights_linear_backward(const score_row *row, real *d, real d_row_sum) {
    for (int j = row->low / LANES * LANES; j < row->high; j += LANES)
        vec_store(d + j, vec_load(d + j) + d_row_sum);
}

/* All other cases. `small`: vec_exp_small takes every exponent. */
static inline void row_weights_others_backward(const score_row *row, const score_rule *rule,
                                               real *d, real d_row_sum, bool small) {
    const score_constants c = constants_of(row, rule);
    real *const s = row->s;
    const int from = row->low / LANES * LANES, high = row->high;
    const bool exponential = row_is_exponential(row, rule);
    const scaled_polynomial scaled = scaled_polynomial_of(rule, exponential ? 0 : c.maximum);
    for (int j = from; j < high; j += LANES) {
        vec logits = vec_load(s + j), w, slope;
        if (exponential) {
            vec x = exponent_of(logits, c, j);
            w = slope = small ? vec_exp_small(x) : c.decayed ? vec_exp_decayed(x) : vec_exp(x);
        } else if (rule->score == SRNN_SCORE_SIGMOID) {
            vec rest, own = vec_sigmoid_parts(clamp_logits(logits, c) + rule->bias, &rest);
            w = c.decayed ? own * decay_factor(c, j) : own;
            slope = w * rest;
        } else {
            vec x = clamp_logits(logits, c);
            vec factor = c.decayed ? decay_factor(c, j) : vec_all(1);
            w = factor * (c.maximum != 0 ? scaled_value(x, &scaled) : score_value(x, rule));
            slope = factor * (c.maximum != 0 ? scaled_slope(x, &scaled) : score_slope(x, rule));
        }
        if (c.clamped)
            slope = vec_select((vec_bits)(logits > c.clamp), (vec){0}, slope);
        vec_store(s + j, w);
        vec_store(d + j, slope * (vec_load(d + j) + d_row_sum));
    }
}

static inline bool maximum_is_small(const score_row *row) {
    return row->maximum <= SMALL_LOGIT && row->maximum >= -SMALL_LOGIT;
}

/* Logits (after the cap) to weights, and gradients of weights (d) to gradients of logits: ds =
 * slope(s) (d + d_row_sum). */
static inline void row_weights_backward(const score_row *row, const score_rule *rule, real *d,
                                        real d_row_sum) {
    const bool decayed = row->decay_columns != NULL;
    const bool small = decayed ? row->near && row->maximum == 0
                               : row->bound <= SMALL_LOGIT && maximum_is_small(row);
    const bool plain = !decayed && !rule->clamped;
    const bool exponential = row_is_exponential(row, rule);
    if (plain && small && exponential)
        row_weights_plain_backward(row, d, d_row_sum);
    else if (!rule->clamped && small && exponential)
        row_weights_near_backward(row, rule, d, d_row_sum);
    else if (plain && rule->score == SRNN_SCORE_LINEAR && row->maximum == 0)
        row_weights_linear_backward(row, d, d_row_sum);
    else
        row_weights_others_backward(row, rule, d, d_row_sum, small);
    row_clear_hidden(row->s, row->low, row->high, row->width);
    row_clear_hidden(d, row->low, row->high, row->width);
}

/* d (width) times factor (width), over the visible columns. */
static inline void row_multiply(const score_row *row, real *d, const real *factor) {
    for (int j = row->low / LANES * LANES; j < row->high; j += LANES)
        vec_store(d + j, vec_load(d + j) * vec_load(factor + j));
}

/* The same for logits before the cap. */
static inline void row_weights_cap_backward(const score_row *row, const score_rule *rule, real *d,
                                            real d_row_sum) {
    real slope[TILE] __attribute__((aligned(64)));
    if (!rule->capped) {
        row_weights_backward(row, rule, d, d_row_sum);
        return;
    }
    if (row_is_plain_capped(row, rule) && maximum_is_small(row)) {
        row_weights_plain_capped_backward(row, rule, d, d_row_sum);
        row_clear_hidden(row->s, row->low, row->high, row->width);
        row_clear_hidden(d, row->low, row->high, row->width);
        return;
    }
    row_cap_logits(row, rule, slope);
    row_weights_backward(row, rule, d, d_row_sum);
    row_multiply(row, d, slope);
}

/* The same; returns (width) what each pair of the row adds to the gradient of C_i and subtracts
 * from that of C_j: w dw if the decay acts on the weights, s ds if on the logits. The result is in
 * `scratch` (width), or in d itself because exp is its own slope. */
static inline const real *row_weights_decay_backward(score_row *row, const score_rule *rule,
                                                     real *d, real d_row_sum, real *scratch) {
    real factor[TILE] __attribute__((aligned(64)));
    const int from = row->low / LANES * LANES;
    const bool logits = rule->logit_decay;
    if (!logits && !rule->clamped && !rule->capped && row_is_exponential(row, rule)) {
        row_weights_backward(row, rule, d, d_row_sum);
        return d;
    }
    if (logits)
        row_decay_logits(row, rule, factor);
    for (int j = from; j < row->high; j += LANES)
        vec_store(scratch + j, logits ? vec_load(row->s + j) : vec_load(d + j) + d_row_sum);
    row_weights_cap_backward(row, rule, d, d_row_sum);
    const real *other = logits ? d : row->s;
    for (int j = from; j < row->high; j += LANES) {
        vec_store(scratch + j,
                  hide_columns(vec_load(scratch + j) * vec_load(other + j), row, j, 0));
        if (logits)
            vec_store(d + j, vec_load(d + j) * hide_columns(vec_load(factor + j), row, j, 0));
    }
    row_clear_hidden(scratch, row->low, row->high, row->width);
    return scratch;
}

/* Adds the pairs to the row's sum and subtracts each from its `change`, both in double: terms that
 * cancel must cancel exactly, because the C of many tokens are summed. */
static inline void take_between(double *change, wide_vec *sum, const wide_vec *pairs) {
    wide_vec column;
    memcpy(&column, change, sizeof column);
    column -= *pairs;
    memcpy(change, &column, sizeof column);
    *sum += *pairs;
}

/* The sum of a row's `pairs` with the keys before i, the row's own token; a token does not decay
 * against itself. `change` is padded by a vector behind key i. */
static inline double decays_between(double *change, const real *pairs, int64_t i) {
    const int64_t whole = i / LANES * LANES;
    wide_vec sum = {0}, both;
    for (int64_t j = 0; j < whole; j += LANES) {
        both = __builtin_convertvector(vec_load(pairs + j), wide_vec);
        take_between(change + j, &sum, &both);
    }
    if (whole < i) {
        both = __builtin_convertvector(vec_load_part(pairs + whole, (int)(i - whole)), wide_vec);
        take_between(change + whole, &sum, &both);
    }
    return wide_vec_sum(&sum);
}

/* The same for pairs given as w and dw. */
static inline double gates_between(double *change, const real *w, const real *d, int64_t i) {
    wide_vec sum = {0};
    for (int64_t j = 0; j < i; j += LANES) {
        const vec_bits later = (vec_bits)(vec_count() + (real)j >= (real)i);
        /* Mask both factors: entries above the diagonal may be infinite when the decay is steep. */
        const vec before = vec_select(later, (vec){0}, vec_load(d + j));
        const vec seen = vec_select(later, (vec){0}, vec_load(w + j));
        const wide_vec both =
            __builtin_convertvector(seen, wide_vec) * __builtin_convertvector(before, wide_vec);
        take_between(change + j, &sum, &both);
    }
    return wide_vec_sum(&sum);
}

#endif
