/* document_rows.c: the pairs of the equation, and the outputs from the weights of a row. */
#include "verify/oracle/document.h"

#include <float.h>
#include <string.h>

/* Below this size the series of exp does not cancel, as far as double can resolve. */
#if LDBL_MANT_DIG >= 113
typedef long double wide;
#else
__extension__ typedef __float128 wide;
#endif

sr_query sr_document_query(const sr_document *x, int64_t h, int64_t i) {
    const int64_t H = x->problem->H, shared = x->problem->Hkv;
    int64_t own = h / (H / shared);
    if (x->a->share == SRNN_SHARE_QK_TILED)
        own = h % shared;
    if (x->a->share == SRNN_SHARE_KV)
        return (sr_query){h, i, h, own, own};
    return (sr_query){h, i, own, x->heads.key == H ? h : own, h};
}

/* The distance to a kink. A number exactly at a kink is there in any arithmetic, so 0 does not
 * count. */
static void note_edge(sr_document *x, sr_term a, double edge) {
    const double distance = fabs(sr_value_of(x, a) / edge - 1);
    if (distance > 0)
        x->clearance = fmin(x->clearance, distance);
}

static sr_term at_least(sr_document *x, sr_term a, double least) {
    note_edge(x, a, least);
    return sr_value_of(x, a) < least ? sr_number(x, least) : a;
}

static sr_term at_most(sr_document *x, sr_term a, double most) {
    note_edge(x, a, most);
    return sr_value_of(x, a) > most ? sr_number(x, most) : a;
}

/* ---- pairs */

/* sum_{n<=order} s^n/n! */
static double series(double s, int order) {
    wide term = 1, sum = 1;
    for (int n = 1; n <= order; n++) {
        term *= (wide)s / n;
        sum += term;
    }
    return order < 0 ? 0 : (double)sum;
}

/* score(s) */
static sr_term score(const sr_document *x, sr_term s) {
    const double value = sr_value_of(x, s);
    const int order = x->a->order;
    switch (x->a->score) {
    case SRNN_SCORE_EXP:
        return sr_exponential(x, s);
    case SRNN_SCORE_LINEAR:
        break;
    case SRNN_SCORE_TAYLOR:
        return sr_tape_function(x->tape, s, series(value, order), series(value, order - 1));
    case SRNN_SCORE_POWER:
        return sr_tape_function(x->tape, s, pow(value, order), order * pow(value, order - 1));
    case SRNN_SCORE_SIGMOID:
        return sr_sigmoid_term(x, sr_tape_affine(x->tape, s, 1, x->a->score_bias));
    }
    return s;
}

/* Two rows of features and their positions in the decay of a head of values. */
typedef struct pair {
    const sr_term *a, *b;
    int64_t value, i, j;
} pair;

/* C_i - C_j, where the decay has one number per head. */
static sr_term decay_between(const sr_document *x, pair at) {
    const sr_term *C = x->decay + at.value * x->length;
    return sr_tape_subtract(x->tape, C[at.i], C[at.j]);
}

/* <a_i, b_j>, with the decay if it is applied before the score. */
static sr_term product(const sr_document *x, pair at) {
    const int64_t D = x->problem->D;
    if (x->decay && x->a->decay_width == SRNN_WIDTH_CHANNEL) {
        const sr_term *C = x->decay + at.value * x->length * D;
        return sr_tape_decayed_dot(x->tape, (sr_decayed){at.a, at.b, C + at.i * D, C + at.j * D},
                                   D);
    }
    const sr_term dot = sr_tape_dot(x->tape, sr_each(at.a), sr_each(at.b), x->width);
    if (x->decay && x->a->decay_place == SRNN_DECAY_PLACE_LOGIT)
        return sr_tape_multiply(x->tape, dot, sr_exponential(x, decay_between(x, at)));
    return dot;
}

/* True if the decay is a factor of the weight. */
static bool decays_weights(const sr_document *x) {
    return x->decay && x->a->decay_width == SRNN_WIDTH_HEAD &&
           x->a->decay_place == SRNN_DECAY_PLACE_WEIGHT;
}

/* c tanh(s/c) */
static sr_term capped(const sr_document *x, sr_term s) {
    const double c = x->a->cap, ratio = sr_value_of(x, s) / c;
    return sr_tape_function(x->tape, s, c * tanh(ratio), pow(cosh(ratio), -2));
}

/* The write strength (beta) of the delta rule. */
static sr_term beta_of(const sr_document *x, int64_t value, int64_t j) {
    const double range = x->a->write_range == SRNN_WRITE_RANGE_2 ? 2 : 1;
    const sr_term z = x->write_gate[value * x->length + j];
    if (x->a->write_gate == SRNN_WRITE_GATE_GIVEN)
        return z;
    return sr_tape_affine(x->tape, sr_sigmoid_term(x, z), range, 0);
}

int64_t sr_document_key_head(const sr_document *x, int64_t value) {
    const int64_t group = x->problem->H / x->problem->Hkv;
    return sr_document_query(x, x->a->share == SRNN_SHARE_KV ? value * group : value, 0).key;
}

/* <a_i, b_j> with the decay from j to i of a head of values, wherever the variant applies it. */
static sr_term decayed_product(const sr_document *x, pair at) {
    const sr_term dot = product(x, at);
    if (!decays_weights(x))
        return dot;
    return sr_tape_multiply(x->tape, dot, sr_exponential(x, decay_between(x, at)));
}

/* What a token writes after `read`, the share of what others wrote, is subtracted: an input of
 * products, for later tokens and for outputs. */
static sr_term written(const sr_document *x, sr_term own, sr_term read) {
    return sr_tape_round(x->tape, sr_tape_subtract(x->tape, own, read));
}

/* Gates per channel: u_j = sigmoid(write gate) v_j - sum_{m<j} <f_j, k_m> u_m. */
static void write_channels(sr_document *x, int64_t value) {
    const int64_t Dv = x->problem->Dv, D = x->problem->D, T = x->length;
    const double range = x->a->write_range == SRNN_WRITE_RANGE_2 ? 2 : 1;
    const int64_t key = sr_document_key_head(x, value);
    const sr_term *k = x->k + key * T * D;
    sr_term *u = x->u + value * T * Dv, erased[256];
    for (int64_t j = 0; j < T; j++) {
        for (int64_t c = 0; c < D; c++) {
            const sr_term gate = sr_sigmoid_term(x, x->erase_gate[(key * T + j) * D + c]);
            erased[c] =
                sr_tape_round(x->tape,
                              sr_tape_multiply(x->tape, sr_tape_affine(x->tape, gate, range, 0),
                                               k[j * D + c]));
        }
        for (int64_t m = 0; m < j; m++)
            x->weights[m] =
                sr_tape_round(x->tape, decayed_product(x, (pair){erased, k + m * D, value, j, m}));
        for (int64_t d = 0; d < Dv; d++) {
            const int64_t at = (value * T + j) * Dv + d;
            const sr_term gate = sr_sigmoid_term(x, x->write_gate[at]);
            u[j * Dv + d] =
                written(x, sr_tape_multiply(x->tape, gate, x->v[at]),
                        sr_tape_dot(x->tape, sr_each(x->weights), (sr_terms){u + d, Dv}, j));
        }
    }
}

/* e_i = sum_{j<i} <n_i, k_j> v_j - sum_{j<i} <n_i, b_j> e_j, with the decays up to i - 1. */
static void remove_read(sr_document *x, int64_t value) {
    const int64_t Dv = x->problem->Dv, D = x->problem->D, T = x->length;
    const int64_t from = sr_document_key_head(x, value) * T * D;
    sr_term *e = x->removed + value * T * Dv;
    for (int64_t i = 0; i < T; i++) {
        const sr_term *n = x->removal_key + from + i * D;
        for (int64_t j = 0; j < i; j++) {
            const pair key = {n, x->k + from + j * D, value, i - 1, j},
                       removal = {n, x->removal_gate + from + j * D, value, i - 1, j};
            x->weights[j] = sr_tape_round(x->tape, decayed_product(x, key));
            x->sum_weights[j] = sr_tape_round(x->tape, decayed_product(x, removal));
        }
        for (int64_t d = 0; d < Dv; d++) {
            const sr_terms values = {x->v + value * T * Dv + d, Dv}, before = {e + d, Dv};
            e[i * Dv + d] = written(x, sr_tape_dot(x->tape, sr_each(x->weights), values, i),
                                    sr_tape_dot(x->tape, sr_each(x->sum_weights), before, i));
        }
    }
}

/* The weight of one key for another: beta_j kappa_jm, without scale, cap or clamp. */
static sr_term write_weight(const sr_document *x, int64_t value, int64_t j, int64_t m) {
    const int64_t key = sr_document_key_head(x, value);
    const sr_term *k = x->rotated_k + key * x->length * x->width;
    const pair at = {k + j * x->width, k + m * x->width, value, j, m};
    sr_term kappa = score(x, sr_tape_round_back(x->tape, product(x, at)));
    if (decays_weights(x))
        kappa = sr_tape_multiply(x->tape, kappa, sr_exponential(x, decay_between(x, at)));
    return sr_tape_round(x->tape, sr_tape_multiply(x->tape, beta_of(x, value, j), kappa));
}

/* u_j = beta_j (v_j - sum_{m<j} kappa_jm u_m) for the head. With levels only beta_j kappa_jm is
 * stored, because the weights of v differ by row. */
void sr_document_write(sr_document *x, int64_t value) {
    const int64_t Dv = x->problem->Dv, T = x->length;
    if (x->a->write == SRNN_WRITE_REMOVAL) {
        remove_read(x, value);
        return;
    }
    if (x->a->write_width == SRNN_WIDTH_CHANNEL) {
        write_channels(x, value);
        return;
    }
    if (x->kappa)
        x->kappa_head = value;
    for (int64_t j = 0; j < T; j++) {
        const sr_term beta = beta_of(x, value, j);
        sr_term *row = x->kappa ? x->kappa + j * T : x->weights;
        for (int64_t m = 0; m < j; m++)
            row[m] = write_weight(x, value, j, m);
        sr_term *u = x->u + value * T * Dv;
        for (int64_t d = 0; d < Dv; d++) {
            const sr_term own = sr_tape_multiply(x->tape, beta, x->v[(value * T + j) * Dv + d]);
            const sr_terms column = {u + d, Dv};
            u[j * Dv + d] = x->kappa
                                ? sr_tape_round(x->tape, own)
                                : written(x, own, sr_tape_dot(x->tape, sr_each(row), column, j));
        }
    }
}

static bool norm_divides_by_length(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_NONE:
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        break;
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        return true;
    }
    return false;
}

/* True if rescaling all weights of a row has no effect: then exp(-maximum) is factored out. */
static bool factor_cancels(const srnn_attention *a) {
    return (a->normaliser == SRNN_NORMALISER_ROW_SUM && a->epsilon == 0) ||
           (norm_divides_by_length(a->norm) && a->norm_width == SRNN_NORM_WIDTH_HEAD &&
            a->skip == SRNN_SKIP_NONE);
}

/* Whether row i sees j: all earlier keys, those of its window, or the last of each earlier chunk
 * and itself. */
static bool sees(const sr_document *x, int64_t i, int64_t j) {
    const int64_t chunk = x->a->pool;
    if (x->a->window > 0 && i - j >= x->a->window)
        return false;
    return !chunk || j == i || (j % chunk == chunk - 1 && j / chunk < i / chunk);
}

/* The number of bits of i xor j: the level of the pair. */
static int64_t level_of(int64_t i, int64_t j) {
    int64_t bits = 0;
    for (int64_t rest = i ^ j; rest; rest >>= 1)
        bits++;
    return bits;
}

static double logit_scale(const sr_document *x) {
    return x->a->scale == SRNN_SCALE_ONE ? 1 : 1 / sqrt((double)x->problem->D);
}

/* Whether row i finds token j in a state. In bf16 states are operands of products by chunks, of 64
 * tokens of a row and more; tokens of one chunk read each other by pairs. */
static bool from_state(const sr_document *x, int64_t i, int64_t j) {
    enum { CHUNK = 64 };
    return x->problem->dtype != SRNN_BF16 || (x->start + i) / CHUNK != (x->start + j) / CHUNK;
}

/* The error of a pair's weight if every number of a state is half an ulp off. At order n a state
 * holds products of n numbers of each key, and (q k)^n is a sum of such products; the sign of a
 * product's error is the product of one random sign per channel. */
static sr_term state_error(const sr_document *x, sr_query at, int64_t j) {
    const sr_term *q = x->q + (at.query * x->length + at.i) * x->width;
    const sr_term *k = x->signed_k + (at.key * x->length + j) * x->width;
    const sr_term dot = product(x, (pair){q, k, at.value, at.i, j});
    const sr_term sum = score(x, sr_tape_affine(x->tape, dot, logit_scale(x), 0));
    return sr_tape_affine(x->tape, sum, x->problem->dtype == SRNN_BF16 ? 0x1p-9 : 0x1p-24, 0);
}

/* out[j] = the argument of the score; for exp it includes the decay of the weight. */
static double row_logits(sr_document *x, sr_query at, sr_term *out, bool rotated) {
    const double scale = logit_scale(x);
    const sr_term *q = (rotated ? x->rotated_q : x->q) + (at.query * x->length + at.i) * x->width;
    const sr_term *k = (rotated ? x->rotated_k : x->k) + at.key * x->length * x->width;
    double maximum = -INFINITY;
    for (int64_t j = 0; j <= at.i; j++) {
        if (!sees(x, at.i, j))
            continue;
        const pair keys = {q, k + j * x->width, at.value, at.i, j};
        sr_term s =
            sr_tape_affine(x->tape, sr_tape_round_back(x->tape, product(x, keys)), scale, 0);
        if (x->a->cap > 0)
            s = capped(x, s);
        if (x->a->clamp > 0)
            s = at_most(x, s, x->a->clamp);
        if (x->a->score == SRNN_SCORE_EXP && decays_weights(x))
            s = sr_tape_add(x->tape, s, decay_between(x, keys));
        maximum = fmax(maximum, sr_value_of(x, s));
        out[j] = s;
    }
    return maximum;
}

/* From logits to weights. */
static void row_weights(sr_document *x, sr_query at, sr_term *row, double maximum) {
    const bool exponents = x->a->score == SRNN_SCORE_EXP;
    x->reduction = exponents && factor_cancels(x->a) ? maximum : 0;
    for (int64_t j = 0; j <= at.i; j++) {
        if (!sees(x, at.i, j)) {
            row[j] = sr_number(x, 0);
            continue;
        }
        sr_term w = row[j];
        if (exponents)
            w = sr_tape_affine(x->tape, w, 1, -x->reduction);
        w = score(x, w);
        if (x->signed_k && from_state(x, at.i, j))
            w = sr_tape_add(x->tape, w, state_error(x, at, j));
        if (!exponents && decays_weights(x)) {
            const sr_term decay = decay_between(x, (pair){.value = at.value, .i = at.i, .j = j});
            w = sr_tape_multiply(x->tape, w, sr_exponential(x, decay));
        }
        row[j] = w;
    }
}

static sr_term level(const sr_document *x, sr_query at, int64_t j) {
    return x->level_gate[(at.h * x->length + at.i) * x->levels + level_of(at.i, j)];
}

static void put_levels(const sr_document *x, sr_query at, sr_term *row) {
    for (int64_t j = 0; j <= at.i; j++)
        row[j] = sr_tape_multiply(x->tape, row[j], level(x, at, j));
}

/* From weights of u to weights of beta v: w (I + beta kappa)^-1, from the last key to the first. */
static void take_apart(const sr_document *x, sr_query at) {
    for (int64_t j = at.i - 1; j >= 0; j--) {
        const sr_terms later = {x->kappa + (j + 1) * x->length + j, x->length};
        x->weights[j] =
            sr_tape_subtract(x->tape, x->weights[j],
                             sr_tape_dot(x->tape, sr_each(x->weights + j + 1), later, at.i - j));
    }
}

void sr_document_weigh(sr_document *x, sr_query at) {
    const bool rotated = x->a->position == SRNN_POSITION_ROPE_FEATURES;
    double maximum = row_logits(x, at, x->weights, true);
    if (rotated)
        maximum = fmax(maximum, row_logits(x, at, x->sum_weights, false));
    row_weights(x, at, x->weights, maximum);
    if (rotated)
        row_weights(x, at, x->sum_weights, maximum);
    else
        memcpy(x->sum_weights, x->weights, (size_t)(at.i + 1) * sizeof *x->weights);
    if (x->kappa)
        take_apart(x, at);
    if (!x->level_gate)
        return;
    put_levels(x, at, x->weights);
    put_levels(x, at, x->sum_weights);
}

/* ---- from weights to the output of a row */

/* Number of keys that row i sees without pooling. */
static int64_t seen_count(const sr_document *x, int64_t i) {
    return x->a->window > 0 && x->a->window <= i ? x->a->window : i + 1;
}

/* The sink, rescaled like the weights of the row. */
static sr_term sink(const sr_document *x, sr_query at) {
    const sr_term logit = x->sinks ? x->sinks[at.h] : sr_number(x, 0);
    return sr_exponential(x, sr_tape_affine(x->tape, logit, 1, -x->reduction));
}

static sr_term normaliser(sr_document *x, sr_query at, sr_term row_sum) {
    sr_term n = sr_number(x, 1);
    switch (x->a->normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        n = row_sum;
        if (x->a->sink != SRNN_SINK_NONE)
            n = sr_tape_add(x->tape, n, sink(x, at));
        break;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        n = at_least(x, row_sum, 1);
        break;
    case SRNN_NORMALISER_ROW_LENGTH:
        n = sr_number(x, (double)seen_count(x, at.i));
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        n = at_least(x, x->gate_sum[at.h * x->length + at.i], 1);
        break;
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
    if (x->a->detach)
        n = sr_number(x, sr_value_of(x, n));
    return sr_tape_affine(x->tape, n, 1, x->a->epsilon);
}

/* The output gate of channel d of a row. */
static sr_term gate_number(const sr_document *x, sr_query at, int64_t d) {
    const int64_t n = at.h * x->length + at.i;
    if (x->a->gate_width == SRNN_WIDTH_CHANNEL)
        return x->output_gate[n * x->problem->Dv + d];
    return x->output_gate[n];
}

static sr_term shaped_gate(const sr_document *x, sr_term z) {
    const sr_term sigmoid = sr_sigmoid_term(x, z);
    if (x->a->gate_shape == SRNN_GATE_SHAPE_IDENTITY)
        return z;
    if (x->a->gate_shape == SRNN_GATE_SHAPE_SIGMOID)
        return sigmoid;
    const sr_term silu = sr_tape_multiply(x->tape, z, sigmoid);
    if (x->a->gate_shape == SRNN_GATE_SHAPE_SILU_SQUARE)
        return sr_tape_multiply(x->tape, silu, silu);
    return silu;
}

static sr_term output_gate(const sr_document *x, sr_query at, int64_t d) {
    const int64_t n = at.h * x->length + at.i;
    switch (x->a->output_gate) {
    case SRNN_GATE_NONE:
        break;
    case SRNN_GATE_SIGMOID:
        return shaped_gate(x, gate_number(x, at, d));
    case SRNN_GATE_INVERSE_EXP:
        return sr_exponential(x, sr_tape_affine(x->tape, x->output_gate[n], -1, 0));
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return sr_tape_divide(x->tape, sr_number(x, 1), x->gate_sum[n]);
    }
    return sr_number(x, 1);
}

static sr_term skipped(const sr_document *x, sr_query at, int64_t d) {
    const int64_t Dv = x->problem->Dv, n = (at.value * x->length + at.i) * Dv + d;
    switch (x->a->skip) {
    case SRNN_SKIP_NONE:
    case SRNN_SKIP_BONUS: /* applied after the norm */
        break;
    case SRNN_SKIP_HEAD:
        return sr_tape_multiply(x->tape, x->skip_weight[at.h], x->plain_v[n]);
    case SRNN_SKIP_CHANNEL:
        return sr_tape_multiply(x->tape, x->skip_weight[at.h * Dv + d], x->plain_v[n]);
    case SRNN_SKIP_CONV:
        return x->skip[n];
    }
    return sr_number(x, 0);
}

/* (sum_c q_c k_c rho_c) v of channel d of a row */
static sr_term bonus(const sr_document *x, sr_query at, int64_t d) {
    const int64_t D = x->problem->D, T = x->length;
    const sr_term *q = x->plain_q + (at.query * T + at.i) * D;
    const sr_term *k = x->plain_k + (at.key * T + at.i) * D;
    sr_term sum = sr_number(x, 0);
    for (int64_t c = 0; c < D; c++)
        sum = sr_tape_add(x->tape, sum,
                          sr_tape_multiply(x->tape, sr_tape_multiply(x->tape, q[c], k[c]),
                                           x->skip_weight[at.h * D + c]));
    return sr_tape_multiply(x->tape, sum, x->plain_v[(at.value * T + at.i) * x->problem->Dv + d]);
}

/* sum_{j<=i} scale <q_i, b_j> e_j of channel d of a row, whose weights are in x->sum_weights */
static sr_term removed(const sr_document *x, sr_query at, int64_t d) {
    const int64_t Dv = x->problem->Dv;
    const sr_terms column = {x->removed + at.value * x->length * Dv + d, Dv};
    return sr_tape_dot(x->tape, sr_each(x->sum_weights), column, at.i + 1);
}

static void weigh_removed(const sr_document *x, sr_query at) {
    const int64_t D = x->problem->D, T = x->length;
    const sr_term *q = x->q + (at.query * T + at.i) * D, *b = x->removal_gate + at.key * T * D;
    for (int64_t j = 0; j <= at.i; j++)
        x->sum_weights[j] =
            sr_tape_affine(x->tape, decayed_product(x, (pair){q, b + j * D, at.value, at.i, j}),
                           logit_scale(x), 0);
}

void sr_document_attend(sr_document *x, sr_query at) {
    const int64_t Dv = x->problem->Dv;
    sr_term *o = x->o + (at.h * x->length + at.i) * Dv;
    sr_document_weigh(x, at);
    const sr_term row_sum = sr_tape_sum(x->tape, sr_each(x->sum_weights), at.i + 1);
    const sr_term divisor = normaliser(x, at, row_sum);
    const bool empty = x->problem->attention.normaliser == SRNN_NORMALISER_ROW_SUM &&
                       fabs(sr_value_of(x, divisor)) < DBL_MIN; /* 0/0 counts as 0 */
    for (int64_t j = 0; j <= at.i; j++)
        x->weights[j] = sr_tape_round(x->tape, x->weights[j]);
    x->row_sums[at.h * x->length + at.i] = row_sum;
    if (x->removed)
        weigh_removed(x, at);
    for (int64_t d = 0; d < Dv; d++) {
        const sr_terms column = {x->u + at.value * x->length * Dv + d, Dv};
        sr_term sum = sr_tape_dot(x->tape, sr_each(x->weights), column, at.i + 1);
        if (x->removed)
            sum = sr_tape_subtract(x->tape, sum, removed(x, at, d));
        sum = sr_tape_round(x->tape, sum);
        const sr_term divided = empty ? sr_number(x, 0) : sr_tape_divide(x->tape, sum, divisor);
        const sr_term y = sr_tape_add(x->tape, divided, skipped(x, at, d));
        o[d] = sr_tape_multiply(x->tape, output_gate(x, at, d), y);
    }
}

/* ---- the norm: of `count` terms in x->scratch */

static void divide_all(const sr_document *x, int64_t count, sr_term by) {
    for (int64_t d = 0; d < count; d++)
        x->scratch[d] = sr_tape_divide(x->tape, x->scratch[d], by);
}

/* sqrt(mean of squares + epsilon) */
static sr_term root_mean_square(const sr_document *x, int64_t count, double own) {
    const bool heads = x->a->norm_weight == SRNN_NORM_WEIGHT_HEAD && x->a->norm == SRNN_NORM_LAYER;
    if (heads)
        own *= (double)x->problem->Dv;
    const double epsilon = x->a->norm_epsilon > 0 ? x->a->norm_epsilon : own;
    const sr_terms row = sr_each(x->scratch);
    return sr_square_root(x, sr_tape_affine(x->tape, sr_tape_dot(x->tape, row, row, count),
                                            1.0 / (double)count, epsilon));
}

static void subtract_mean(const sr_document *x, int64_t count) {
    const sr_term mean = sr_tape_affine(x->tape, sr_tape_sum(x->tape, sr_each(x->scratch), count),
                                        1.0 / (double)count, 0);
    for (int64_t d = 0; d < count; d++)
        x->scratch[d] = sr_tape_subtract(x->tape, x->scratch[d], mean);
}

/* |row|, at least `floor`. Divides by the largest entry first, so that squares stay in range. */
static sr_term length_of(sr_document *x, int64_t count, double floor) {
    double largest = 0;
    for (int64_t d = 0; d < count; d++)
        largest = fmax(largest, fabs(sr_value_of(x, x->scratch[d])));
    if (largest == 0)
        return sr_number(x, floor);
    sr_term squares = sr_number(x, 0);
    for (int64_t d = 0; d < count; d++) {
        const sr_term unit = sr_tape_affine(x->tape, x->scratch[d], 1 / largest, 0);
        squares = sr_tape_add(x->tape, squares, sr_tape_multiply(x->tape, unit, unit));
    }
    return at_least(x, sr_tape_affine(x->tape, sr_square_root(x, squares), largest, 0), floor);
}

/* The floor of an l2 norm applies to rows divided by their sum. exp is not divided by its sum when
 * the norm makes that redundant; its floor is rescaled instead. */
static double length_floor(const sr_document *x, sr_term row_sum) {
    const bool undivided = x->a->score == SRNN_SCORE_EXP &&
                           x->a->normaliser != SRNN_NORMALISER_ROW_SUM &&
                           x->a->norm_width == SRNN_NORM_WIDTH_HEAD && x->a->skip == SRNN_SKIP_NONE;
    return undivided ? 1e-12 * sr_value_of(x, row_sum) : 1e-12;
}

static void normalise(sr_document *x, int64_t count, sr_term row_sum) {
    switch (x->a->norm) {
    case SRNN_NORM_NONE:
        return;
    case SRNN_NORM_LAYER:
        subtract_mean(x, count);
        divide_all(x, count, root_mean_square(x, count, 1e-5));
        break;
    case SRNN_NORM_RMS:
        divide_all(x, count, root_mean_square(x, count, 0x1p-23));
        break;
    case SRNN_NORM_L2:
        divide_all(x, count, length_of(x, count, length_floor(x, row_sum)));
        break;
    case SRNN_NORM_L2_SCALED:
        divide_all(x, count, length_of(x, count, length_floor(x, row_sum)));
        for (int64_t d = 0; d < count; d++)
            x->scratch[d] = sr_tape_affine(x->tape, x->scratch[d], (double)count, 0);
        break;
    }
}

/* Heads h .. h+heads-1 of row i: the norm over all their channels, its weights, the gate after the
 * norm. */
static void finish_row(sr_document *x, int64_t h, int64_t heads, int64_t i) {
    const int64_t Dv = x->problem->Dv;
    for (int64_t n = 0; n < heads; n++)
        memcpy(x->scratch + n * Dv, x->o + ((h + n) * x->length + i) * Dv,
               (size_t)Dv * sizeof *x->scratch);
    normalise(x, heads * Dv, x->row_sums[h * x->length + i]);
    for (int64_t n = 0; n < heads * Dv; n++) {
        const sr_query at = sr_document_query(x, h + n / Dv, i);
        const int64_t d = n % Dv;
        const bool apart =
            x->a->norm_width == SRNN_NORM_WIDTH_ROW || x->a->norm_weight == SRNN_NORM_WEIGHT_HEAD;
        const int64_t own = apart ? at.h * Dv + d : d;
        sr_term o = x->scratch[n];
        if (x->norm_weight)
            o = sr_tape_multiply(x->tape, o, x->norm_weight[own]);
        if (x->norm_bias)
            o = sr_tape_add(x->tape, o, x->norm_bias[own]);
        if (x->a->skip == SRNN_SKIP_BONUS)
            o = sr_tape_add(x->tape, o, bonus(x, at, d));
        if (x->a->post_gate)
            o = sr_tape_multiply(x->tape, o, shaped_gate(x, gate_number(x, at, d)));
        x->o[(at.h * x->length + i) * Dv + d] = sr_tape_round(x->tape, o);
    }
}

void sr_document_finish(sr_document *x) {
    const int64_t H = x->problem->H;
    int64_t heads = 1;
    if (x->a->norm_width == SRNN_NORM_WIDTH_ROW)
        heads = x->a->share == SRNN_SHARE_QK ? H / x->problem->Hkv : H;
    for (int64_t h = 0; h < H; h += heads)
        for (int64_t i = 0; i < x->length; i++)
            finish_row(x, h, heads, i);
}
