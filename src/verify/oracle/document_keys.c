/* document_keys.c: everything that is computed from q, k, v and the decay before pairs are
 * formed. */
#include "verify/oracle/document.h"

#include "base/memory.h"
#include "base/random.h"

#include <stdlib.h>
#include <string.h>

/* ---- functions of one number */

sr_term sr_exponential(const sr_document *x, sr_term a) {
    const double e = exp(sr_value_of(x, a));
    return sr_tape_function(x->tape, a, e, e);
}

sr_term sr_sigmoid_term(const sr_document *x, sr_term a) {
    const double e = exp(-fabs(sr_value_of(x, a)));
    return sr_tape_function(x->tape, a, sr_value_of(x, a) < 0 ? e / (1 + e) : 1 / (1 + e),
                            e / (1 + e) / (1 + e));
}

sr_term sr_softplus_term(const sr_document *x, sr_term a) {
    const double z = sr_value_of(x, a), e = exp(-fabs(z));
    return sr_tape_function(x->tape, a, fmax(z, 0) + log1p(e), z < 0 ? e / (1 + e) : 1 / (1 + e));
}

sr_term sr_square_root(const sr_document *x, sr_term a) {
    const double root = sqrt(sr_value_of(x, a));
    return sr_tape_function(x->tape, a, root, 0.5 / root);
}

/* |a|^3; no derivative of the sign is needed */
static sr_term cube(const sr_document *x, sr_term a) {
    const double v = fabs(sr_value_of(x, a));
    return sr_tape_function(x->tape, a, v * v * v, sr_value_of(x, a) < 0 ? -3 * v * v : 3 * v * v);
}

/* |base|^power; 0 with no derivative where the base is 0 */
static sr_term to_power(const sr_document *x, sr_term base, sr_term power) {
    const double b = sr_value_of(x, base), p = sr_value_of(x, power), size = fabs(b);
    if (size == 0)
        return sr_number(x, 0);
    const double value = pow(size, p);
    const sr_term by_base = sr_tape_function(x->tape, base, value, copysign(p * value / size, b));
    return sr_tape_add(x->tape, by_base, sr_tape_function(x->tape, power, 0, value * log(size)));
}

static sr_term cosine(const sr_document *x, sr_term a) {
    return sr_tape_function(x->tape, a, cos(sr_value_of(x, a)), -sin(sr_value_of(x, a)));
}

static sr_term sine(const sr_document *x, sr_term a) {
    return sr_tape_function(x->tape, a, sin(sr_value_of(x, a)), cos(sr_value_of(x, a)));
}

/* ---- pooling */

/* Rows (length, width) of one head become running averages in chunks, from 0 at each of them. */
static void pool_rows(const sr_document *x, sr_term *rows, const sr_term *gates, int64_t width) {
    const int64_t stride = x->problem->D > x->problem->Dv ? x->problem->D : x->problem->Dv;
    for (int64_t c = 0; c < width; c++) {
        sr_term average = sr_number(x, 0);
        for (int64_t t = 0; t < x->length; t++) {
            const sr_term g = sr_sigmoid_term(x, gates[t * stride + c]);
            if (t % x->a->pool == 0)
                average = sr_number(x, 0);
            sr_term *row = &rows[t * width + c];
            average =
                sr_tape_add(x->tape, sr_tape_multiply(x->tape, g, average),
                            sr_tape_multiply(x->tape, sr_tape_affine(x->tape, g, -1, 1), *row));
            *row = average;
        }
    }
}

/* Every head of values gets its own keys: their gates differ. */
static srnn_status pool(sr_document *x) {
    const srnn_problem *p = x->problem;
    const int64_t numbers = x->length * p->D;
    const int64_t gates = x->length * (p->D > p->Dv ? p->D : p->Dv);
    sr_term *keys;
    SR_TRY(sr_alloc((void **)&keys, (size_t)(x->heads.value * numbers), sizeof *keys));
    for (int64_t h = 0; h < x->heads.value; h++) {
        int64_t from = h;
        if (x->a->share == SRNN_SHARE_QK)
            from = h / (p->H / p->Hkv);
        if (x->a->share == SRNN_SHARE_QK_TILED)
            from = h % p->Hkv;
        memcpy(keys + h * numbers, x->k + from * numbers, (size_t)numbers * sizeof *keys);
        pool_rows(x, keys + h * numbers, x->pool_gate + h * gates, p->D);
        pool_rows(x, x->v + h * x->length * p->Dv, x->pool_gate + h * gates, p->Dv);
    }
    free(x->k);
    x->k = keys;
    x->heads.key = x->heads.value;
    return SRNN_OK;
}

/* ---- rotation */

/* Rotate-half layout: channels c and c + D/2 rotate by position * theta^(-2c/D). */
static void rotate(const sr_document *x, sr_term *row, double position) {
    const int64_t D = x->problem->D, half = D / 2;
    const double theta = x->problem->rope_theta > 0 ? x->problem->rope_theta : 10000;
    for (int64_t c = 0; c < half; c++) {
        const double angle = position * pow(theta, -2.0 * (double)c / (double)D);
        const sr_term a = row[c], b = row[c + half];
        row[c] = sr_tape_subtract(x->tape, sr_tape_affine(x->tape, a, cos(angle), 0),
                                  sr_tape_affine(x->tape, b, sin(angle), 0));
        row[c + half] = sr_tape_add(x->tape, sr_tape_affine(x->tape, b, cos(angle), 0),
                                    sr_tape_affine(x->tape, a, sin(angle), 0));
    }
}

/* rows (heads, length, width): every D of them rotate by their position, counted in `tokens`. */
static void rotate_all(const sr_document *x, sr_term *rows, int64_t heads, int64_t width,
                       int64_t tokens) {
    for (int64_t n = 0; n < heads * x->length; n++)
        for (int64_t from = 0; from < width; from += x->problem->D)
            rotate(x, rows + n * width + from, (double)(n % x->length / tokens));
}

static srnn_status turned_copy(const sr_document *x, sr_term **copy, const sr_term *rows,
                               int64_t heads) {
    const size_t numbers = (size_t)(heads * x->length * x->width);
    SR_TRY(sr_alloc((void **)copy, numbers, sizeof **copy));
    memcpy(*copy, rows, numbers * sizeof **copy);
    if (x->a->position == SRNN_POSITION_ROPE_FEATURES)
        rotate_all(x, *copy, heads, x->width, 1);
    for (size_t n = 0; n < numbers; n++)
        (*copy)[n] = sr_tape_round(x->tape, (*copy)[n]);
    return SRNN_OK;
}

/* ---- the error of a rounded state */

static srnn_status signed_copy(sr_document *x) {
    const int64_t numbers = x->heads.key * x->length * x->width;
    SR_TRY(sr_alloc((void **)&x->signed_k, (size_t)numbers, sizeof *x->signed_k));
    for (int64_t n = 0; n < numbers; n++) {
        const bool up = sr_random_below(x->state_seed, 0, (uint64_t)(n % x->width), 2);
        x->signed_k[n] = sr_tape_affine(x->tape, x->k[n], up ? 1 : -1, 0);
    }
    return SRNN_OK;
}

/* ---- features */

/* x / max(|x|, 1e-12) for `count` terms at a stride; smooth: x / sqrt(|x|^2 + 1e-6). */
static void make_unit(const sr_document *x, sr_term *row, int64_t stride, int64_t count,
                      bool smooth) {
    const sr_terms terms = {row, stride};
    const sr_term square = sr_tape_dot(x->tape, terms, terms, count);
    sr_term length = sr_number(x, 1e-12);
    if (smooth)
        length = sr_square_root(x, sr_tape_affine(x->tape, square, 1, 1e-6));
    else if (sqrt(sr_value_of(x, square)) >= 1e-12)
        length = sr_square_root(x, square);
    for (int64_t n = 0; n < count; n++)
        row[n * stride] = sr_tape_divide(x->tape, row[n * stride], length);
}

/* p(r) = 3 (0.5 + tanh r), r = |q| */
static sr_term exponent_of(const sr_document *x, const sr_term *q) {
    const int64_t D = x->problem->D;
    const sr_term square = sr_tape_dot(x->tape, sr_each(q), sr_each(q), D);
    if (!(sr_value_of(x, square) > 0))
        return sr_number(x, 1.5);
    const sr_term r = sr_square_root(x, square);
    const double t = tanh(sr_value_of(x, r));
    return sr_tape_function(x->tape, r, 3 * (0.5 + t), 3 * (1 - t * t));
}

/* out (2 D) from x (D), which is normalised first where the feature needs a unit vector. */
static void norm_feature(const sr_document *x, sr_term *out, sr_term *row, bool query) {
    const int64_t D = x->problem->D;
    const bool cosines = x->a->feature == SRNN_FEATURE_NORM_COSINE;
    const sr_term zero = sr_number(x, 0), power = query ? exponent_of(x, row) : zero;
    sr_term plain[256];
    memcpy(plain, row, (size_t)D * sizeof *plain);
    if (query || cosines)
        make_unit(x, row, 1, D, false);
    for (int64_t d = 0; d < D; d++) {
        const sr_term size = query ? to_power(x, row[d], power) : cube(x, plain[d]);
        const bool positive = sr_value_of(x, plain[d]) > 0;
        out[d] = positive ? size : zero;
        out[D + d] = positive ? zero : size;
        if (cosines) {
            out[d] = sr_tape_multiply(x->tape, size, cosine(x, row[d]));
            out[D + d] = sr_tape_multiply(x->tape, size, sine(x, row[d]));
        }
    }
}

static sr_term feature_of_number(const sr_document *x, sr_term a) {
    const double value = sr_value_of(x, a);
    switch (x->a->feature) {
    case SRNN_FEATURE_RELU:
        return value > 0 ? a : sr_number(x, 0);
    case SRNN_FEATURE_ELU1:
        return value > 0 ? sr_tape_affine(x->tape, a, 1, 1) : sr_exponential(x, a);
    case SRNN_FEATURE_IDENTITY:
    case SRNN_FEATURE_UNIT:
    case SRNN_FEATURE_UNIT_HEADS:
    case SRNN_FEATURE_UNIT_SMOOTH:
    case SRNN_FEATURE_NORM_SPLIT:
    case SRNN_FEATURE_NORM_COSINE:
        break;
    }
    return a;
}

/* *rows (heads, length, D) become features (heads, length, width). */
static srnn_status features(const sr_document *x, sr_term **rows, int64_t heads, bool query) {
    const int64_t D = x->problem->D, numbers = x->length * D;
    for (int64_t n = 0; n < heads * numbers; n++)
        (*rows)[n] = feature_of_number(x, (*rows)[n]);
    const srnn_feature feature = x->a->feature;
    if (feature == SRNN_FEATURE_UNIT || feature == SRNN_FEATURE_UNIT_SMOOTH)
        for (int64_t n = 0; n < heads * x->length; n++)
            make_unit(x, *rows + n * D, 1, D, feature == SRNN_FEATURE_UNIT_SMOOTH);
    if (feature == SRNN_FEATURE_UNIT_HEADS)
        for (int64_t n = 0; n < numbers; n++)
            make_unit(x, *rows + n, numbers, heads, false);
    if (x->width == D)
        return SRNN_OK;
    sr_term *wide;
    SR_TRY(sr_alloc((void **)&wide, (size_t)(heads * x->length * x->width), sizeof *wide));
    for (int64_t n = 0; n < heads * x->length; n++)
        norm_feature(x, wide + n * x->width, *rows + n * D, query);
    free(*rows);
    *rows = wide;
    return SRNN_OK;
}

/* ---- decays and factors of values */

/* z + dt_bias of channel c of a head */
static sr_term biased(const sr_document *x, int64_t head, int64_t c, sr_term z) {
    const bool wide = x->a->dt_width == SRNN_DT_WIDTH_CHANNEL;
    return sr_tape_add(x->tape, z, x->dt_bias[wide ? head * x->problem->D + c : head]);
}

/* The same through softplus, for a gate with one number per head. */
static sr_term time_step(const sr_document *x, int64_t head, sr_term z) {
    return sr_softplus_term(x, biased(x, head, 0, z));
}

/* exp(a_log) times another number */
static sr_term at_rate(const sr_document *x, int64_t head, sr_term a) {
    return sr_tape_multiply(x->tape, sr_exponential(x, x->a_log[head]), a);
}

/* The logarithm of a gate, of channel c of a head, without the limit on it. */
static sr_term unlimited_logarithm(const sr_document *x, int64_t head, int64_t c, sr_term z) {
    const double divisor = x->a->decay_divisor > 0 ? x->a->decay_divisor : 1;
    switch (x->a->decay) {
    case SRNN_DECAY_NONE:
        break;
    case SRNN_DECAY_LEARNED:
        return sr_tape_affine(x->tape, z, 1.0 / 1024, 0);
    case SRNN_DECAY_LOG_SIGMOID:
        return sr_tape_affine(x->tape, sr_softplus_term(x, sr_tape_affine(x->tape, z, -1, 0)),
                              -1 / divisor, 0);
    case SRNN_DECAY_SOFTPLUS:
        return sr_tape_affine(x->tape, at_rate(x, head, sr_softplus_term(x, biased(x, head, c, z))),
                              -1, 0);
    case SRNN_DECAY_BOUNDED:
        if (x->a->dt_width != SRNN_DT_WIDTH_NONE)
            z = at_rate(x, head, biased(x, head, c, z));
        return sr_tape_affine(x->tape, sr_sigmoid_term(x, z), -x->a->decay_bound, 0);
    case SRNN_DECAY_NEG_SOFTPLUS:
        return sr_tape_affine(x->tape, sr_softplus_term(x, z), -1, 0);
    case SRNN_DECAY_GIVEN:
        break;
    }
    return z;
}

/* The same within +-10000; a gate beyond it is a constant. */
static sr_term gate_logarithm(const sr_document *x, int64_t head, int64_t c, sr_term z) {
    const sr_term logarithm = unlimited_logarithm(x, head, c, z);
    const double value = sr_tape_value(x->tape, logarithm);
    return fabs(value) > 1e4 ? sr_number(x, copysign(1e4, value)) : logarithm;
}

/* Number of heads with a decay of their own. */
static int64_t decay_heads(const sr_document *x) {
    return x->a->write_width == SRNN_WIDTH_CHANNEL ? x->heads.key : x->heads.value;
}

/* z becomes C, the cumulative sum: up to and including the token, or, if learned, up to the
 * previous one. */
static void running_decay(const sr_document *x) {
    const bool wide = x->a->decay_width == SRNN_WIDTH_CHANNEL;
    const int64_t width = wide ? x->problem->D : 1, rows = x->length * width;
    for (int64_t n = 0; n < decay_heads(x) * width; n++) {
        const int64_t head = n / width;
        sr_term sum = sr_number(x, 0);
        for (int64_t t = 0; t < x->length; t++) {
            sr_term *z = &x->decay[head * rows + t * width + n % width];
            const sr_term next = sr_tape_add(x->tape, sum, gate_logarithm(x, head, n % width, *z));
            *z = x->a->decay == SRNN_DECAY_LEARNED ? sum : next;
            sum = next;
        }
    }
}

/* C of the heads of keys, repeated for every head of values that shares them. */
static srnn_status spread_decay(sr_document *x) {
    const bool wide = x->a->decay_width == SRNN_WIDTH_CHANNEL;
    const int64_t rows = x->length * (wide ? x->problem->D : 1);
    sr_term *all;
    if (decay_heads(x) == x->heads.value)
        return SRNN_OK;
    SR_TRY(sr_alloc((void **)&all, (size_t)(x->heads.value * rows), sizeof *all));
    for (int64_t h = 0; h < x->heads.value; h++)
        memcpy(all + h * rows, x->decay + sr_document_key_head(x, h) * rows,
               (size_t)rows * sizeof *all);
    free(x->decay);
    x->decay = all;
    return SRNN_OK;
}

/* The removal key becomes n, of length one, and b, n times its gate. */
static void removal(const sr_document *x) {
    const int64_t D = x->problem->D;
    for (int64_t n = 0; n < x->heads.key * x->length; n++) {
        make_unit(x, x->removal_key + n * D, 1, D, false);
        for (int64_t c = n * D; c < (n + 1) * D; c++)
            x->removal_gate[c] = sr_tape_multiply(x->tape, sr_sigmoid_term(x, x->removal_gate[c]),
                                                  x->removal_key[c]);
    }
}

/* A copy of the rows of all heads. */
static srnn_status copy_rows(const sr_document *x, sr_term **copy, const sr_term *rows,
                             int64_t heads) {
    const size_t numbers = (size_t)(heads * x->length * x->problem->D);
    SR_TRY(sr_alloc((void **)copy, numbers, sizeof **copy));
    memcpy(*copy, rows, numbers * sizeof **copy);
    return SRNN_OK;
}

static void running_gates(const sr_document *x) {
    for (int64_t h = 0; h < x->problem->H; h++) {
        sr_term sum = sr_number(x, 0);
        for (int64_t t = 0; t < x->length; t++) {
            sum = sr_tape_add(x->tape, sum, sr_exponential(x, x->output_gate[h * x->length + t]));
            x->gate_sum[h * x->length + t] = sum;
        }
    }
}

static sr_term value_gate(const sr_document *x, int64_t head, int64_t t) {
    const int64_t n = head * x->length + t;
    switch (x->a->value_gate) {
    case SRNN_VALUE_GATE_OFF:
        break;
    case SRNN_VALUE_GATE_SIGMOID:
        return sr_sigmoid_term(x, x->value_gate[n]);
    case SRNN_VALUE_GATE_TIME_STEP:
        return time_step(x, head, x->decay[n]);
    }
    return sr_number(x, 1);
}

static void value_factors(const sr_document *x) {
    const int64_t Dv = x->problem->Dv;
    for (int64_t h = 0; h < x->heads.value; h++)
        for (int64_t t = 0; t < x->length; t++) {
            sr_term *v = x->v + (h * x->length + t) * Dv;
            sr_term factor = value_gate(x, h, t);
            if (x->a->normaliser == SRNN_NORMALISER_VALUE_POWER) {
                const sr_term power = sr_sigmoid_term(x, x->value_power[h]);
                const sr_term log_factor = sr_tape_affine(x->tape, power, -log((double)t + 1), 0);
                factor = sr_tape_multiply(x->tape, factor, sr_exponential(x, log_factor));
            }
            for (int64_t d = 0; d < Dv; d++)
                v[d] = sr_tape_round(x->tape, sr_tape_multiply(x->tape, factor, v[d]));
        }
}

/* lambda = softplus(L z) */
static void level_gates(const sr_document *x) {
    for (int64_t n = 0; n < x->problem->H * x->length * x->levels; n++) {
        const int64_t head = n / (x->length * x->levels);
        const sr_term scale = x->level_scale[head * x->levels + n % x->levels];
        x->level_gate[n] = sr_softplus_term(x, sr_tape_multiply(x->tape, scale, x->level_gate[n]));
    }
}

srnn_status sr_document_prepare(sr_document *x) {
    const size_t values = (size_t)(x->heads.value * x->length * x->problem->Dv);
    SR_TRY(sr_alloc((void **)&x->plain_v, values, sizeof *x->plain_v));
    memcpy(x->plain_v, x->v, values * sizeof *x->plain_v);
    if (x->a->skip == SRNN_SKIP_BONUS) {
        SR_TRY(copy_rows(x, &x->plain_q, x->q, x->heads.query));
        SR_TRY(copy_rows(x, &x->plain_k, x->k, x->heads.key));
    }
    if (x->removal_key)
        removal(x);
    if (x->a->pool)
        SR_TRY(pool(x));
    if (x->a->position == SRNN_POSITION_ROPE_CHUNKS) {
        rotate_all(x, x->q, x->heads.query, x->problem->D, x->a->pool);
        rotate_all(x, x->k, x->heads.key, x->problem->D, x->a->pool);
    }
    SR_TRY(features(x, &x->q, x->heads.query, true));
    SR_TRY(features(x, &x->k, x->heads.key, false));
    SR_TRY(turned_copy(x, &x->rotated_q, x->q, x->heads.query));
    SR_TRY(turned_copy(x, &x->rotated_k, x->k, x->heads.key));
    if (x->state_seed)
        SR_TRY(signed_copy(x));
    value_factors(x); /* reads the decay's z */
    if (x->decay) {
        running_decay(x);
        SR_TRY(spread_decay(x));
    }
    if (x->gate_sum)
        running_gates(x);
    if (x->level_gate)
        level_gates(x);
    return SRNN_OK;
}
