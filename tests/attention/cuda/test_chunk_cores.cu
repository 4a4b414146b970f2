/* test_chunk_cores.cu: the cores of linear scores in chunks (chunks/core.h), on an emulated GPU,
 * against the recurrence in double, token by token: outputs, states and all gradients; and the
 * workspace of the steps around them. */
#include "attention/cuda/chunks/steps.h"
#include "base/memory.h"
#include "chunk_arrays.h"

#include <type_traits>

/* What a problem has besides sizes. */
enum {
    DELTA = 1,           /* write=delta, keys of unit length */
    STATES = 2,          /* initial and final state, with gradients */
    SUMS = 4,            /* row sums */
    NANS = 8,            /* the second document holds nothing else */
    ALIKE = 16,          /* keys are nearly collinear: twice the limits */
    SAME = 32,           /* keys are identical: 2.5 times the limits */
    REFLECTS = 64,       /* betas up to 2, else 1 */
    NO_BETAS = 128,      /* every fifth is 0 */
    NO_KEYS = 256,       /* every seventh is 0 */
    SOME_STRONG = 512,   /* every third gate, of every fifth channel, is SR_CHUNK_GATE_LEAST */
    ALL_STRONG = 1024,   /* all gates are */
    SHARED_KEYS = 2048,  /* keys of one head, queries of two, alternating */
    HALF_NANS = 4096,    /* its gates have them in every other channel alone */
    UNITS = 8192,        /* features are of unit length, rows of many lengths */
    SMOOTH = 16384,      /* the same, smoothly */
    SHARED_ROWS = 32768, /* queries and keys of two heads, alternating */
    IN_BLOCKS = 65536,   /* those of a head side by side instead */
    FACTORS = 131072,    /* of values, and a skip */
};

enum decays { NONE, HEAD, CHANNEL };

struct problem {
    int B, H, Hkv, T, F, V;
    enum decays decays;
    int has;
    int multiprocessors;  /* few walks per multiprocessor are cut, or have more warps */
    const int *documents; /* starts, after 0; ends with T */
    float gate;           /* the mean of gates */
};

static const int whole[] = {1 << 30}, several[] = {1, 18, 70, 71, 80, 140, 1 << 30},
                 cut[] = {70, 140, 1 << 30};

static const problem of_head[] = {
    {1, 2, 2, 130, 64, 64, HEAD, STATES, 1, whole, -0.05f},
    {1, 2, 1, 70, 24, 40, HEAD, SUMS | STATES, 1, several, -0.3f},
    {2, 1, 1, 150, 64, 64, HEAD, SUMS | STATES | NANS, 1, several, -0.1f},
    {1, 1, 1, 330, 64, 64, HEAD, SUMS | STATES, 132, whole, -0.01f}, /* segments */
    {1, 2, 1, 330, 64, 64, HEAD, STATES | NANS, 132, several, -0.01f},
    {1, 4, 4, 131, 128, 64, HEAD, SHARED_KEYS, 1, whole, -0.2f}, /* as Mamba-2 */
    {1, 1, 1, 257, 128, 128, NONE, SUMS | STATES, 132, several, 0},
    {1, 1, 1, 97, 192, 136, HEAD, SUMS | STATES, 1, several, -0.1f},
    {1, 1, 1, 67, 16, 256, HEAD, 0, 1, whole, 0},
    {1, 1, 1, 200, 64, 64, HEAD, SUMS | STATES | SOME_STRONG, 1, whole, 0},
    {2, 1, 1, 1, 8, 8, HEAD, SUMS | STATES, 132, whole, -1},
    {1, 2, 2, 64, 256, 16, NONE, 0, 132, whole, 0},
    {2, 1, 1, 150, 64, 64, HEAD, STATES | NANS, 1, several, -0.1f}, /* one slice of values */
    {1, 1, 1, 97, 72, 24, NONE, STATES, 132, several, 0},
    {1, 1, 1, 200, 64, 64, HEAD, STATES | SOME_STRONG, 1, whole, 0},
    {1, 4, 4, 131, 128, 64, HEAD, SHARED_ROWS | FACTORS | STATES, 132, whole, -0.2f},
    {1, 10, 10, 200, 24, 40, HEAD, SHARED_ROWS | IN_BLOCKS | FACTORS | STATES, 1, several, -0.3f},
    {2, 4, 4, 150, 64, 64, HEAD, SHARED_ROWS | FACTORS | STATES | NANS, 1, several, -0.1f},
    {1, 4, 4, 70, 64, 16, NONE, SHARED_ROWS | IN_BLOCKS | FACTORS, 1, several, 0},
    {1, 4, 4, 600, 64, 64, HEAD, SHARED_ROWS | FACTORS | STATES | SOME_STRONG, 1, whole, 0},
    {2, 4, 4, 1, 8, 8, HEAD, SHARED_ROWS | STATES, 132, whole, -1},
    {1, 4, 4, 67, 64, 128, HEAD, SHARED_ROWS, 132, whole, -1}, /* not added up */
};

static const problem of_channel[] = {
    {1, 2, 2, 130, 64, 64, CHANNEL, STATES, 1, whole, -0.05f},
    {1, 2, 1, 70, 24, 40, CHANNEL, STATES, 1, several, -0.3f},
    {2, 1, 1, 150, 64, 64, CHANNEL, STATES | NANS, 1, several, -0.1f},
    {1, 1, 1, 150, 64, 64, CHANNEL, STATES | NANS, 1, cut, -0.1f},
    {1, 1, 1, 150, 64, 64, CHANNEL, STATES | NANS | HALF_NANS, 1, cut, -0.1f},
    {1, 2, 1, 131, 64, 64, CHANNEL, STATES, 1, whole, -2.3f}, /* blocks of 32 tokens, 16, 8 */
    {1, 1, 1, 131, 64, 64, CHANNEL, STATES, 1, whole, -4.5f},
    {1, 2, 1, 131, 64, 64, CHANNEL, STATES | NANS, 1, several, -12},
    {1, 1, 1, 131, 64, 64, CHANNEL, STATES | SOME_STRONG, 1, whole, -0.05f},
    {1, 1, 1, 67, 64, 64, CHANNEL, STATES | ALL_STRONG, 1, whole, 0},
    {1, 1, 1, 65, 64, 64, CHANNEL, STATES, 1, whole, 0},
    {1, 4, 4, 67, 64, 128, CHANNEL, SHARED_KEYS, 132, whole, -0.2f},
    {1, 1, 1, 97, 128, 64, CHANNEL, STATES | SOME_STRONG, 1, several, -0.1f},
    {1, 2, 1, 67, 128, 128, CHANNEL, STATES, 1, whole, -0.1f},
    {1, 2, 1, 67, 72, 104, CHANNEL, STATES | SOME_STRONG, 132, whole, -0.1f},
    {1, 1, 1, 70, 16, 264, CHANNEL, STATES, 132, several, -0.3f},
    {2, 1, 1, 1, 16, 16, CHANNEL, STATES, 132, whole, -1},
    {1, 1, 1, 1, 16, 16, CHANNEL, 0, 132, whole, -1},
};

static const problem of_delta[] = {
    {1, 2, 2, 130, 64, 64, HEAD, DELTA | STATES, 1, whole, -0.05f},
    {1, 2, 1, 70, 24, 40, HEAD, DELTA | STATES | NO_BETAS | NO_KEYS, 1, several, -0.3f},
    {2, 1, 1, 150, 64, 64, HEAD, DELTA | STATES | NANS, 1, several, -0.1f},
    {1, 1, 1, 200, 64, 64, NONE, DELTA | REFLECTS, 132, whole, 0},
    {1, 1, 1, 131, 64, 64, NONE, DELTA | ALIKE, 1, whole, 0},
    {1, 1, 1, 200, 64, 64, HEAD, DELTA | STATES | SOME_STRONG, 1, whole, 0},
    {1, 4, 2, 67, 128, 64, HEAD, DELTA | STATES, 132, several, -0.2f},
    {1, 1, 1, 97, 64, 128, HEAD, DELTA, 132, whole, -0.1f},
    {1, 1, 1, 129, 128, 128, HEAD, DELTA | STATES, 132, whole, -0.1f},
    {2, 1, 1, 1, 8, 8, HEAD, DELTA | STATES, 132, whole, -1},
    {1, 2, 2, 130, 64, 64, HEAD, DELTA | STATES | SMOOTH, 1, whole, -0.05f},
    {1, 2, 1, 70, 24, 40, HEAD, DELTA | STATES | UNITS | NO_KEYS, 1, several, -0.3f},
    {2, 1, 1, 150, 64, 64, HEAD, DELTA | STATES | NANS | SMOOTH, 132, several, -0.1f},
    {1, 1, 1, 131, 64, 64, NONE, DELTA | ALIKE | UNITS, 1, whole, 0},
    {1, 1, 1, 131, 64, 64, HEAD, DELTA | STATES | SOME_STRONG | SMOOTH, 1, whole, 0},
    {1, 4, 2, 67, 128, 64, HEAD, DELTA | STATES | SMOOTH, 132, several, -0.2f},
    {1, 1, 1, 129, 128, 128, HEAD, DELTA | STATES | UNITS, 132, whole, -0.1f},
};

static const problem of_channel_delta[] = {
    {1, 2, 2, 130, 64, 64, CHANNEL, DELTA | STATES, 1, whole, -0.05f},
    {1, 2, 1, 70, 24, 40, CHANNEL, DELTA | STATES | NO_BETAS | NO_KEYS, 1, several, -0.3f},
    {2, 1, 1, 150, 64, 64, CHANNEL, DELTA | STATES | NANS, 1, several, -0.1f},
    {1, 1, 1, 150, 64, 64, CHANNEL, DELTA | STATES | NANS, 1, cut, -0.1f},
    {1, 1, 1, 150, 64, 64, CHANNEL, DELTA | STATES | NANS | HALF_NANS, 1, cut, -0.1f},
    {1, 1, 1, 200, 64, 64, CHANNEL, DELTA | REFLECTS, 132, whole, 0}, /* e^0 */
    {1, 1, 1, 131, 64, 64, CHANNEL, DELTA | ALIKE, 1, whole, -0.002f},
    {1, 1, 1, 131, 64, 64, CHANNEL, DELTA | SAME, 1, whole, -0.02f},
    {1, 2, 1, 131, 64, 64, CHANNEL, DELTA | STATES | REFLECTS, 1, whole, -2.3f},
    {1, 1, 1, 131, 64, 64, CHANNEL, DELTA | STATES, 1, whole, -4.5f},
    {1, 2, 1, 131, 64, 64, CHANNEL, DELTA | STATES | NANS, 1, several, -12},
    {1, 1, 1, 131, 64, 64, CHANNEL, DELTA | STATES | SOME_STRONG, 1, whole, -0.05f},
    {1, 1, 1, 67, 64, 64, CHANNEL, DELTA | STATES | ALL_STRONG, 1, whole, 0},
    {1, 4, 4, 67, 64, 128, CHANNEL, DELTA | SHARED_KEYS, 132, whole, -0.2f},
    {1, 1, 1, 97, 128, 64, CHANNEL, DELTA | STATES | SOME_STRONG, 1, several, -0.1f},
    {1, 2, 1, 67, 128, 128, CHANNEL, DELTA | STATES, 1, whole, -0.1f},
    {1, 1, 1, 67, 72, 104, CHANNEL, DELTA | STATES, 132, several, -0.1f},
    {1, 1, 1, 70, 16, 264, CHANNEL, DELTA | STATES, 132, several, -0.3f},
    {2, 1, 1, 1, 16, 16, CHANNEL, DELTA | STATES, 132, whole, -1},
};

static bool has(const problem &p, int what) {
    return (p.has & what) != 0;
}

/* Numbers of a gate. */
static int decays_of(const problem &p) {
    return p.decays == CHANNEL ? p.F : p.decays == HEAD ? 1 : 0;
}

static srnn_feature feature_of(const problem &p) {
    return has(p, UNITS)    ? SRNN_FEATURE_UNIT
           : has(p, SMOOTH) ? SRNN_FEATURE_UNIT_SMOOTH
                            : SRNN_FEATURE_IDENTITY;
}

/* The factor of a row that makes its feature. */
static double unit_of(const problem &p, const array<sr_bf16> &rows, size_t row) {
    double square = 0;
    for (size_t f = row * (size_t)p.F; f < (row + 1) * (size_t)p.F; f++)
        square += rows[f] * rows[f];
    return has(p, UNITS)    ? 1 / fmax(sqrt(square), 1e-12)
           : has(p, SMOOTH) ? 1 / sqrt(square + 1e-6)
                            : 1;
}

/* ---- numbers ---- */

struct operands {
    array<sr_bf16> q, k, v, d_numerator;
    array<float> gate, beta, d_row_sum, initial, d_final, factor, skip;
    array<int32_t> first;
};

struct results {
    array<sr_bf16> numerator, d_q, d_k, d_v;
    array<float> row_sum, final, d_gate, d_beta, d_initial;
    array<double> value_dot;
};

struct expectations {
    doubles numerator, row_sum, d_q, d_k, d_v, final, d_gate, d_beta, d_initial, value_dot;
};

static sr_chunk_call call_of(const problem &p, operands &in, results &out) {
    sr_chunk_call c = {};
    c.B = p.B;
    c.H = p.H;
    c.Hkv = p.Hkv;
    c.T = p.T;
    c.group = p.H / p.Hkv;
    c.F = p.F;
    c.V = p.V;
    c.delta = has(p, DELTA);
    c.sums_rows = has(p, SUMS);
    c.decays = decays_of(p);
    c.scale = 0.4f;
    c.feature = feature_of(p);
    c.first = in.first.there;
    c.q_heads = has(p, SHARED_KEYS | SHARED_ROWS) ? 2 : p.H;
    c.k_heads = has(p, SHARED_KEYS) ? 1 : has(p, SHARED_ROWS) ? 2 : p.Hkv;
    c.q_share = c.k_share = has(p, IN_BLOCKS) ? p.H / 2 : 1;
    c.q = rows_of(in.q, c.q_heads, p.T, p.F);
    c.k = rows_of(in.k, c.k_heads, p.T, p.F);
    c.v = rows_of(in.v, p.Hkv, p.T, p.V);
    c.gate = in.gate.there;
    c.beta = in.beta.there;
    c.numerator = rows_of(out.numerator, p.H, p.T, p.V);
    c.row_sum = out.row_sum.there;
    c.d_row_sum = in.d_row_sum.there;
    c.d_numerator = rows_of(in.d_numerator, p.H, p.T, p.V);
    c.d_q = rows_of(out.d_q, p.H, p.T, p.F);
    c.d_k = rows_of(out.d_k, p.Hkv, p.T, p.F);
    c.d_v = rows_of(out.d_v, p.Hkv, p.T, p.V);
    c.d_gate = decays_of(p) ? out.d_gate.there : nullptr;
    c.d_beta = out.d_beta.there;
    if (has(p, FACTORS)) {
        c.factor = in.factor.there;
        c.skip = in.skip.there;
        c.value_dot = out.value_dot.there;
    }
    if (has(p, STATES)) {
        c.initial = in.initial.there;
        c.final = out.final.there;
        c.d_final = in.d_final.there;
        c.d_initial = out.d_initial.there;
    }
    return c;
}

static bool is_hidden(const problem &p, int t) {
    return has(p, NANS) && t >= p.documents[0] && t < p.documents[1];
}

/* Of keys; the second is near where unit_smooth is smooth. */
static const float key_lengths[] = {1, 0.005f, 0.3f, 7, 1000};

static void fill(const problem &p, operands &in) {
    in.first.create((size_t)p.B * (size_t)p.T);
    for (int b = 0; b < p.B; b++)
        for (int t = 0, begin = 0, d = 0; t < p.T; t++) {
            if (t == p.documents[d])
                begin = p.documents[d++];
            in.first.host[(size_t)(b * p.T + t)] = begin;
        }
    const size_t numbers = p.decays == CHANNEL ? (size_t)p.F : 1;
    for (size_t n = 0; n < in.gate.host.size(); n++) {
        float &a = in.gate.host[n];
        const bool strong_channel = p.decays == HEAD || n % numbers % 5 == 2;
        const bool strong =
            has(p, ALL_STRONG) || (has(p, SOME_STRONG) && strong_channel && n % 3 == 0);
        const float mean = has(p, SOME_STRONG) && p.gate == 0 ? -0.1f : p.gate;
        a = strong ? SR_CHUNK_GATE_LEAST : mean * (1 + (p.decays == CHANNEL ? 0.5f : 1.0f) * a);
        a = fmaxf(fminf(a, 0), SR_CHUNK_GATE_LEAST);
    }
    for (size_t n = 0; n < in.beta.host.size(); n++) {
        float &beta = in.beta.host[n];
        beta = (has(p, REFLECTS) ? 2 : 1) / (1 + expf(-beta));
        if (has(p, NO_BETAS) && n % 5 == 0)
            beta = 0;
    }
    for (float &factor : in.factor.host)
        factor = has(p, FACTORS) ? expf(factor) : 1;
    for (float &skip : in.skip.host)
        skip = has(p, FACTORS) ? skip : 0;
    for (size_t n = 0; n < in.k.host.size() / (size_t)p.F && has(p, DELTA); n++) {
        sr_bf16 *const key = &in.k.host[n * (size_t)p.F];
        double sum = 0;
        std::vector<float> x((size_t)p.F);
        for (size_t f = 0; f < x.size(); f++) {
            x[f] = to_float(in.k.host[has(p, SAME) ? f : n * (size_t)p.F + f]);
            x[f] = has(p, ALIKE) ? 1 + 0.3f * x[f] : x[f];
            sum += (double)x[f] * (double)x[f];
        }
        const float factor = has(p, NO_KEYS) && n % 7 == 0 ? 0 : (float)(1 / sqrt(sum));
        const float length = key_lengths[feature_of(p) == SRNN_FEATURE_IDENTITY ? 0 : n % 5];
        for (size_t f = 0; f < x.size(); f++)
            key[f] = to_bf16(length * factor * x[f]);
    }
    const auto hide = [&](auto &x, int columns, size_t step = 1) {
        for (size_t n = 0; n < x.host.size(); n += step)
            if (is_hidden(p, (int)(n / (size_t)columns % (size_t)p.T)))
                x.host[n] =
                    from_float<typename std::remove_reference<decltype(x.host[0])>::type>(NAN);
    };
    hide(in.q, p.F);
    hide(in.k, p.F);
    hide(in.v, p.V);
    hide(in.d_numerator, p.V);
    hide(in.gate, (int)numbers, has(p, HALF_NANS) ? 2 : 1);
    hide(in.beta, 1);
    hide(in.factor, 1);
    hide(in.d_row_sum, 1);
}

/* ---- the reference ---- */

/* Row sums are one more column of values, which are 1. */
struct reference {
    const problem &p;
    const sr_chunk_call &c;
    const operands &in;
    expectations &out;

    doubles q_unit, k_unit; /* factors of rows */
    doubles states, used;   /* with tokens 0 .. t-1: (T + 1, F, columns); U: (T, columns) */
    int b, kv;

    int columns() const {
        return p.V + (has(p, SUMS) ? 1 : 0);
    }
    size_t at(int f, int v) const {
        return (size_t)(f * columns() + v);
    }
    size_t wide() const {
        return at(p.F, 0);
    }
    size_t row(int heads, int h, int t) const {
        return ((size_t)b * (size_t)heads + (size_t)h) * (size_t)p.T + (size_t)t;
    }
    double key(int t, int f) const {
        const size_t at = row(c.k_heads, c.key_head(kv), t);
        return k_unit[at] * in.k[at * (size_t)p.F + (size_t)f];
    }
    double query(int h, int t, int f) const {
        const size_t at = row(c.q_heads, c.query_head(h), t);
        return q_unit[at] * in.q[at * (size_t)p.F + (size_t)f];
    }
    double value(int t, int v) const {
        return v == p.V ? 1
                        : in.factor[row(p.Hkv, kv, t)] *
                              in.v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v];
    }
    /* The part of d_v that is from the skip: each head has its own values. */
    double d_skip(int t, int v) const {
        return has(p, FACTORS)
                   ? in.skip[(size_t)kv] * in.d_numerator[row(p.H, kv, t) * (size_t)p.V + (size_t)v]
                   : 0;
    }
    double d_numerator(int h, int t, int v) const {
        return (double)c.scale * (v == p.V
                                      ? in.d_row_sum[row(p.H, h, t)]
                                      : in.d_numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v]);
    }
    double beta(int t) const {
        return in.beta[row(p.Hkv, kv, t)];
    }
    bool begins(int t) const {
        return in.first.host[(size_t)(b * p.T + t)] == t && (t > 0 || !has(p, STATES));
    }
    size_t gate_at(int t, int f) const {
        return p.decays == CHANNEL ? row(p.Hkv, kv, t) * (size_t)p.F + (size_t)f
                                   : row(p.Hkv, kv, t);
    }
    double decay(int t, int f) const {
        return begins(t) ? 0 : p.decays == NONE ? 1 : exp(in.gate[gate_at(t, f)]);
    }
    size_t state_at(int f, int v) const {
        return (((size_t)b * (size_t)p.Hkv + (size_t)kv) * (size_t)p.F + (size_t)f) * (size_t)p.V +
               (size_t)v;
    }
    /* The state before token t and its gate. */
    double kept(int t, int f, int v) const {
        return begins(t) ? 0 : decay(t, f) * states[(size_t)t * wide() + at(f, v)];
    }
    double known(int t, int v) const {
        double sum = 0;
        for (int f = 0; f < p.F && has(p, DELTA); f++)
            sum += key(t, f) * kept(t, f, v);
        return sum;
    }

    void forward() {
        states.assign((size_t)(p.T + 1) * wide(), 0);
        used.assign((size_t)(p.T * columns()), 0);
        for (int f = 0; f < p.F && has(p, STATES); f++)
            for (int v = 0; v < p.V; v++)
                states[at(f, v)] = in.initial[state_at(f, v)];
        for (int t = 0; t < p.T; t++) {
            double *const after = &states[(size_t)(t + 1) * wide()];
            for (int v = 0; v < columns(); v++) {
                const double rest = value(t, v) - known(t, v);
                const double u = used[(size_t)(t * columns() + v)] =
                    has(p, DELTA) ? beta(t) * rest : rest;
                for (int f = 0; f < p.F; f++)
                    after[at(f, v)] = kept(t, f, v) + key(t, f) * u;
            }
            for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
                for (int v = 0; v < columns(); v++) {
                    double sum = 0;
                    for (int f = 0; f < p.F; f++)
                        sum += (double)c.scale * query(h, t, f) * after[at(f, v)];
                    if (v == p.V)
                        out.row_sum[row(p.H, h, t)] = sum;
                    else
                        out.numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v] = sum;
                }
        }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.final[state_at(f, v)] = states[(size_t)p.T * wide() + at(f, v)];
    }

    /* The numerators of token t: to queries, and to r. */
    void backward_numerators(doubles &r, int t) {
        const double *const after = &states[(size_t)(t + 1) * wide()];
        for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
            for (int f = 0; f < p.F; f++) {
                double sum = 0;
                for (int v = 0; v < columns(); v++) {
                    sum += d_numerator(h, t, v) * after[at(f, v)];
                    r[at(f, v)] += d_numerator(h, t, v) * query(h, t, f);
                }
                out.d_q[row(p.H, h, t) * (size_t)p.F + (size_t)f] = sum;
            }
    }

    /* What token t writes: to keys, values and betas, and to r. */
    void backward_write(doubles &r, int t) {
        double *const d_k = &out.d_k[row(p.Hkv, kv, t) * (size_t)p.F];
        for (int v = 0; v < columns(); v++) {
            double d_u = 0;
            for (int f = 0; f < p.F; f++) {
                d_u += r[at(f, v)] * key(t, f);
                d_k[f] += r[at(f, v)] * used[(size_t)(t * columns() + v)];
            }
            const double d_value = has(p, DELTA) ? beta(t) * d_u : d_u;
            if (v < p.V) {
                out.d_v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v] =
                    in.factor[row(p.Hkv, kv, t)] * d_value + d_skip(t, v);
                out.value_dot[row(p.Hkv, kv, t)] += value(t, v) * d_value;
            }
            if (!has(p, DELTA))
                continue;
            out.d_beta[row(p.Hkv, kv, t)] += d_u * (value(t, v) - known(t, v));
            for (int f = 0; f < p.F; f++) {
                d_k[f] -= d_value * kept(t, f, v);
                r[at(f, v)] -= d_value * key(t, f);
            }
        }
    }

    void backward() {
        doubles r(wide(), 0); /* the gradient of the state with token t */
        for (int f = 0; f < p.F && has(p, STATES); f++)
            for (int v = 0; v < p.V; v++)
                r[at(f, v)] = in.d_final[state_at(f, v)];
        for (int t = p.T - 1; t >= 0; t--) {
            backward_numerators(r, t);
            backward_write(r, t);
            for (int f = 0; f < p.F; f++)
                for (int v = 0; v < columns(); v++) {
                    double &x = r[at(f, v)];
                    out.d_gate[gate_at(t, f)] += x * kept(t, f, v);
                    x = begins(t) ? 0 : x * decay(t, f);
                }
        }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.d_initial[state_at(f, v)] = r[at(f, v)];
    }
};

static doubles units_of(const problem &p, const array<sr_bf16> &rows) {
    doubles units(rows.host.size() / (size_t)p.F);
    for (size_t n = 0; n < units.size(); n++)
        units[n] = unit_of(p, rows, n);
    return units;
}

/* Gradients of features to those of their rows. */
static void backward_units(const problem &p, doubles &d, const array<sr_bf16> &rows) {
    const size_t F = (size_t)p.F;
    for (size_t n = 0; n < d.size() / F && feature_of(p) != SRNN_FEATURE_IDENTITY; n++) {
        const double unit = unit_of(p, rows, n);
        double along = 0;
        for (size_t f = n * F; f < (n + 1) * F; f++)
            along += unit < 1e12 ? unit * unit * rows[f] * d[f] : 0;
        for (size_t f = n * F; f < (n + 1) * F; f++)
            d[f] = unit * (d[f] - along * rows[f]);
    }
}

static void refer(const problem &p, const sr_chunk_call &c, const operands &in, expectations &out) {
    const size_t BT = (size_t)p.B * (size_t)p.T, q = BT * (size_t)p.H, k = BT * (size_t)p.Hkv;
    const size_t F = (size_t)p.F, V = (size_t)p.V, states = (size_t)(p.B * p.Hkv) * F * V;
    out.numerator.assign(q * V, 0);
    out.row_sum.assign(q, 0);
    out.d_q.assign(q * F, 0);
    out.d_k.assign(k * F, 0);
    out.d_v.assign(k * V, 0);
    out.d_gate.assign(in.gate.host.size(), 0);
    out.d_beta.assign(k, 0);
    out.value_dot.assign(k, 0);
    out.final.assign(states, 0);
    out.d_initial.assign(states, 0);
    for (int b = 0; b < p.B; b++)
        for (int kv = 0; kv < p.Hkv; kv++) {
            reference r = {p, c, in, out, units_of(p, in.q), units_of(p, in.k), {}, {}, b, kv};
            r.forward();
            r.backward();
        }
    backward_units(p, out.d_q, in.q);
    backward_units(p, out.d_k, in.k);
}

/* ---- comparison ---- */

/* The relative error of tokens that are not hidden; rows of `columns` per token, or no rows: 0. */
template <class Numbers>
static void compare_numbers(const problem &p, const char *name, const Numbers &found,
                            const doubles &expected, int columns, double limit) {
    limit *= has(p, SAME) ? 2.5 : has(p, ALIKE) ? 2 : 1;
    double error = 0, size = 0;
    for (size_t n = 0; n < expected.size(); n++) {
        if (columns > 0 && is_hidden(p, (int)(n / (size_t)columns % (size_t)p.T)))
            continue;
        error += (found[n] - expected[n]) * (found[n] - expected[n]);
        size += expected[n] * expected[n];
    }
    const double relative = sqrt(error) / (sqrt(size) + 1e-20);
    if (!(relative <= limit || (size == 0 && error == 0)))
        fail_msg("B %d H %d/%d T %d F %d V %d: %s is off by %.2e", p.B, p.H, p.Hkv, p.T, p.F, p.V,
                 name, relative);
}

template <class N>
static void compare(const problem &p, const char *name, array<N> &found, const doubles &expected,
                    int columns, double limit) {
    found.fetch();
    compare_numbers(p, name, found, expected, columns, limit);
}

/* Rows (B, heads, T, F) added up: head h to that which shared(h) says. */
template <class Numbers, class Shared>
static doubles sums_of(const problem &p, const Numbers &rows, int heads, int shared_heads,
                       const Shared &shared) {
    const size_t each = (size_t)p.T * (size_t)p.F;
    doubles sums((size_t)(p.B * shared_heads) * each, 0);
    for (int b = 0; b < p.B; b++)
        for (int h = 0; h < heads; h++)
            for (size_t n = 0; n < each; n++)
                sums[(size_t)(b * shared_heads + shared(h)) * each + n] +=
                    rows[(size_t)(b * heads + h) * each + n];
    return sums;
}

/* Gradients of q or k: of each head, or the parts of their sums, which are sums of numbers that
 * were rounded. */
static void compare_shared(const problem &p, const sr_chunk_call &c, const char *name,
                           array<sr_bf16> &found, const doubles &expected) {
    if (c.parts == 0) {
        compare(p, name, found, expected, p.F, GRADIENT_LIMIT);
        return;
    }
    found.fetch();
    compare_numbers(p, name,
                    sums_of(p, found, c.q_heads * c.parts, c.q_heads,
                            [&](int h) { return h / c.parts; }),
                    sums_of(p, expected, p.H, c.q_heads, [&](int h) { return c.query_head(h); }),
                    p.F, GRADIENT_LIMIT);
}

static sr_chunk_shape shape_of(const problem &p) {
    sr_chunk_shape s = {};
    s.B = p.B;
    s.H = p.H;
    s.Hkv = p.Hkv;
    s.T = p.T;
    s.group = p.H / p.Hkv;
    s.F = p.F;
    s.V = p.V;
    s.decays = decays_of(p);
    s.delta = has(p, DELTA);
    s.sums_rows = has(p, SUMS);
    s.capability = 80;
    s.multiprocessors = p.multiprocessors;
    s.shared_bytes = 227 * 1024;
    s.shared = has(p, SHARED_ROWS) ? 2 : 0;
    return s;
}

static void run(const sr_chunk_core &core, const problem &p, const sr_chunk_call &call,
                int capability) {
    sr_chunk_shape shape = shape_of(p);
    cudaStream_t stream;
    char *workspace;
    shape.capability = capability;
    if (capability == 86)
        shape.shared_bytes = 99 * 1024;
    assert_true(core.fits(shape));
    RIGHT(cudaStreamCreate(&stream));
    for (int backward = 0; backward < 2; backward++) {
        const size_t bytes = core.workspace(shape, backward == 1);
        RIGHT(cudaMalloc(&workspace, bytes + 1));
        assert_int_equal((backward ? core.backward : core.forward)(call, shape, workspace, stream),
                         SRNN_OK);
        RIGHT(cudaStreamSynchronize(stream));
        RIGHT(cudaFree(workspace));
    }
    RIGHT(cudaStreamDestroy(stream));
}

/* Whether a second run leaves the same bits in an array that has been fetched. */
template <class N> static void compare_again(array<N> &found) {
    const std::vector<N> once = found.host;
    found.fetch();
    assert_memory_equal(once.data(), found.host.data(), once.size() * sizeof(N));
}

static void test_problem(const sr_chunk_core &core, const problem &p, bool again, int capability) {
    const size_t BT = (size_t)p.B * (size_t)p.T, q = BT * (size_t)p.H, k = BT * (size_t)p.Hkv;
    const size_t F = (size_t)p.F, V = (size_t)p.V, states = (size_t)(p.B * p.Hkv) * F * V;
    const size_t gates = k * (p.decays == CHANNEL ? F : 1);
    const float size = has(p, DELTA) ? 0.3f : 2;
    operands in;
    results out;
    expectations expected;
    const sr_chunk_call heads = call_of(p, in, out);
    number_state = (uint64_t)(p.T * 1000 + p.F);
    in.q.random(BT * (size_t)heads.q_heads * F, 1);
    in.k.random(BT * (size_t)heads.k_heads * F, 1);
    in.v.random(k * V, 1);
    in.d_numerator.random(q * V, 1);
    in.gate.random(gates, 1);
    in.beta.random(k, 1);
    in.initial.random(states, size);
    in.d_final.random(states, size);
    in.d_row_sum.random(q, 1);
    in.factor.random(k, 1);
    in.skip.random((size_t)p.H, 1);
    out.numerator.create(q * V);
    out.row_sum.create(q);
    out.final.create(states);
    out.d_q.create(q * F);
    out.d_k.create(k * F);
    out.d_v.create(k * V);
    out.d_gate.create(gates);
    out.d_beta.create(k);
    out.value_dot.create(k);
    out.d_initial.create(states);
    fill(p, in);
    in.q.send();
    in.k.send();
    in.v.send();
    in.d_numerator.send();
    in.gate.send();
    in.beta.send();
    in.d_row_sum.send();
    in.factor.send();
    in.skip.send();
    in.initial.send();
    in.d_final.send();
    in.first.send();
    sr_chunk_call call = call_of(p, in, out);
    call.parts = core.parts ? core.parts(shape_of(p)) : 0;
    assert_true(call.parts > 0 || !has(p, FACTORS));
    run(core, p, call, capability);
    refer(p, call, in, expected);
    compare(p, "numerator", out.numerator, expected.numerator, p.V, OUTPUT_LIMIT);
    compare_shared(p, call, "d_q", out.d_q, expected.d_q);
    compare_shared(p, call, "d_k", out.d_k, expected.d_k);
    compare(p, "d_v", out.d_v, expected.d_v, p.V, GRADIENT_LIMIT);
    if (has(p, SUMS))
        compare(p, "row_sum", out.row_sum, expected.row_sum, 1, OUTPUT_LIMIT);
    if (has(p, DELTA))
        compare(p, "d_beta", out.d_beta, expected.d_beta, 1, GRADIENT_LIMIT);
    if (has(p, FACTORS))
        compare(p, "value_dot", out.value_dot, expected.value_dot, 1, GRADIENT_LIMIT);
    if (p.decays != NONE)
        compare(p, "d_gate", out.d_gate, expected.d_gate, decays_of(p), GRADIENT_LIMIT);
    if (has(p, STATES)) {
        compare(p, "final", out.final, expected.final, 0, OUTPUT_LIMIT);
        compare(p, "d_initial", out.d_initial, expected.d_initial, 0, GRADIENT_LIMIT);
    }
    if (!again)
        return;
    run(core, p, call, capability);
    compare_again(out.numerator);
    compare_again(out.d_q);
    compare_again(out.d_k);
    compare_again(out.d_v);
    compare_again(out.d_gate);
}

/* The first problem twice. */
template <size_t COUNT>
static void test_problems(const sr_chunk_core &core, const problem (&problems)[COUNT],
                          int capability = 80) {
    for (size_t n = 0; n < COUNT; n++)
        test_problem(core, problems[n], n == 0, capability);
}

static void test_head(void **state) {
    (void)state;
    test_problems(sr_chunk_core_head, of_head);
}

static void test_channel(void **state) {
    (void)state;
    test_problems(sr_chunk_core_channel, of_channel);
}

static void test_delta(void **state) {
    (void)state;
    test_problems(sr_chunk_core_delta, of_delta);
}

/* A slot or two a block, and so fewer workers. */
static void test_delta_in_little_memory(void **state) {
    (void)state;
    for (const problem &p : of_delta)
        if (p.F <= 64 && p.V <= 64)
            test_problem(sr_chunk_core_delta, p, false, 86);
}

static void test_delta_by_wgmma(void **state) {
    (void)state;
    test_problems(sr_chunk_core_delta, of_delta, 90);
}

static void test_channel_delta(void **state) {
    (void)state;
    test_problems(sr_chunk_core_channel, of_channel_delta);
}

/* Each kind of recurrence has one core, up to its widest heads. */
static void test_what_fits(void **state) {
    (void)state;
    static const sr_chunk_core *const cores[] = {&sr_chunk_core_head, &sr_chunk_core_channel,
                                                 &sr_chunk_core_delta};
    static const struct {
        int decays, F, V;
        bool delta, sums_rows;
        int fits; /* in cores; -1: none */
    } shapes[] = {
        {0, 64, 64, false, false, 0},    {1, 256, 256, false, true, 0},
        {1, 64, 264, false, false, -1},  {64, 64, 64, false, false, 1},
        {128, 128, 512, true, false, 1}, {64, 64, 64, false, true, -1},
        {136, 136, 64, true, false, -1}, {0, 64, 64, true, false, 2},
        {1, 128, 128, true, false, 2},   {1, 64, 136, true, false, -1},
        {1, 64, 64, true, true, -1},
    };
    for (const auto &s : shapes) {
        sr_chunk_shape shape = shape_of(of_head[0]);
        shape.decays = s.decays;
        shape.F = s.F;
        shape.V = s.V;
        shape.delta = s.delta;
        shape.sums_rows = s.sums_rows;
        for (int n = 0; n < 3; n++)
            assert_int_equal(cores[n]->fits(shape), n == s.fits);
    }
}

/* Heads that share q and k have rows of their own where a call is not direct, as with more heads
 * than the threads of a block: a plan has memory for both kinds. The first shape is Mamba-2's. */
static void test_workspace_of_steps(void **state) {
    (void)state;
    static const struct {
        int H, shared, F, V;
    } shapes[] = {{48, 1, 128, 64}, {8, 8, 128, 64}, {8, 2, 64, 128}};
    for (const auto &s : shapes) {
        sr_axes_call facts = {};
        facts.a.share = s.shared < s.H ? SRNN_SHARE_QK : SRNN_SHARE_KV;
        facts.B = facts.group = facts.decays = 1;
        facts.T = 1 << 16;
        facts.H = facts.Hkv = s.H;
        facts.shared = s.shared;
        facts.shares_queries = s.shared < s.H;
        facts.D = facts.F = s.F;
        facts.Dv = s.V;
        for (const bool backward : {false, true}) {
            sr_layout layout = {};
            const sr_chunk_steps steps = sr_chunk_steps_of(facts, 0, false, backward, &layout);
            assert_false(steps.direct);
            assert_true(layout.used <= sr_chunk_steps_bytes(facts));
        }
    }
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head),
        cmocka_unit_test(test_channel),
        cmocka_unit_test(test_channel_delta),
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_delta_in_little_memory),
        cmocka_unit_test(test_delta_by_wgmma),
        cmocka_unit_test(test_what_fits),
        cmocka_unit_test(test_workspace_of_steps),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
