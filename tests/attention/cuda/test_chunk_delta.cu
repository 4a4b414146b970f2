/* test_chunk_delta.cu: the core of the delta rule (chunks/delta*.cu), on an emulated GPU,
 * against the recurrence in double, token by token: outputs, states and all gradients. */
#include "attention/cuda/chunks/core.h"

extern "C" {
#include "test.h"
}

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

#define RIGHT(call) assert_int_equal(call, cudaSuccess)

/* Twice the error of the plain computation in bf16: see test_attention_mma.c. */
static const double OUTPUT_LIMIT = 6e-3, GRADIENT_LIMIT = 1e-2;

/* What a problem has besides sizes. */
enum {
    STATES = 1,    /* initial and final state, with gradients */
    NANS = 2,      /* the second document holds nothing else */
    ALIKE = 4,     /* keys are nearly collinear: twice the limits */
    REFLECTS = 8,  /* betas up to 2, else 1 */
    NO_BETAS = 16, /* every fifth is 0 */
    NO_KEYS = 32,  /* every seventh is 0 */
};

struct problem {
    int B, H, Hkv, T, F, V;
    int decays;
    int has;
    int multiprocessors;
    const int *documents; /* starts, after 0; ends with T */
    float gate;           /* the mean of gates; least: every third one is SR_CHUNK_GATE_LEAST */
};

static const int whole[] = {1 << 30}, several[] = {1, 18, 70, 71, 80, 140, 1 << 30};
static const float least = SR_CHUNK_GATE_LEAST;

static const problem problems[] = {
    {1, 2, 2, 130, 64, 64, 1, STATES, 1, whole, -0.05f},
    {1, 2, 1, 70, 24, 40, 1, STATES | NO_BETAS | NO_KEYS, 1, several, -0.3f},
    {2, 1, 1, 150, 64, 64, 1, STATES | NANS, 1, several, -0.1f},
    {1, 1, 1, 200, 64, 64, 0, REFLECTS, 132, whole, 0},
    {1, 1, 1, 131, 64, 64, 0, ALIKE, 1, whole, 0},
    {1, 1, 1, 200, 64, 64, 1, STATES, 1, whole, least},
    {1, 4, 2, 67, 128, 64, 1, STATES, 132, several, -0.2f},
    {1, 1, 1, 97, 64, 128, 1, 0, 132, whole, -0.1f},
    {1, 1, 1, 129, 128, 128, 1, STATES, 132, whole, -0.1f},
    {2, 1, 1, 1, 8, 8, 1, STATES, 132, whole, -1},
};

static bool has(const problem &p, int what) {
    return (p.has & what) != 0;
}

/* ---- numbers ---- */

static uint64_t number_state;

/* About normal: the sum of four uniform numbers. */
static float random_number() {
    float sum = 0;
    for (int n = 0; n < 4; n++) {
        number_state = number_state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(number_state >> 40) / (float)(1 << 24) - 0.5f;
    }
    return 1.7320508f * sum;
}

/* Numbers on both sides. */
template <class N> struct array {
    std::vector<N> host;
    N *there = nullptr;

    void create(size_t count) {
        host.resize(count);
        RIGHT(cudaMalloc(&there, count * sizeof(N)));
    }
    void random(size_t count, float size) {
        create(count);
        for (N &x : host)
            x = from_float<N>(size * random_number());
    }
    void send() {
        RIGHT(cudaMemcpy(there, host.data(), host.size() * sizeof(N), cudaMemcpyHostToDevice));
    }
    void fetch() {
        RIGHT(cudaMemcpy(host.data(), there, host.size() * sizeof(N), cudaMemcpyDeviceToHost));
    }
    double operator[](size_t n) const {
        return to_float(host[n]);
    }
    ~array() {
        cudaFree(there);
    }
};

typedef std::vector<double> doubles;

struct operands {
    array<sr_bf16> q, k, v, d_numerator;
    array<float> gate, beta, initial, d_final;
    array<int32_t> first;
};

struct results {
    array<sr_bf16> numerator, d_q, d_k, d_v;
    array<float> final, d_gate, d_beta, d_initial;
};

struct expectations {
    doubles numerator, d_q, d_k, d_v, final, d_gate, d_beta, d_initial;
};

template <class N> static sr_chunk_rows rows_of(array<N> &x, int heads, int T, int columns) {
    return {x.there, (int64_t)heads * T * columns, (int64_t)T * columns, columns};
}

static sr_chunk_call call_of(const problem &p, operands &in, results &out) {
    sr_chunk_call c = {};
    c.B = p.B;
    c.H = p.H;
    c.Hkv = p.Hkv;
    c.T = p.T;
    c.group = p.H / p.Hkv;
    c.F = p.F;
    c.V = p.V;
    c.delta = true;
    c.decays = p.decays;
    c.scale = 0.4f;
    c.first = in.first.there;
    c.q_heads = p.H;
    c.k_heads = p.Hkv;
    c.q_share = c.k_share = 1;
    c.q = rows_of(in.q, c.q_heads, p.T, p.F);
    c.k = rows_of(in.k, c.k_heads, p.T, p.F);
    c.v = rows_of(in.v, p.Hkv, p.T, p.V);
    c.gate = in.gate.there;
    c.beta = in.beta.there;
    c.numerator = rows_of(out.numerator, p.H, p.T, p.V);
    c.d_numerator = rows_of(in.d_numerator, p.H, p.T, p.V);
    c.d_q = rows_of(out.d_q, p.H, p.T, p.F);
    c.d_k = rows_of(out.d_k, p.Hkv, p.T, p.F);
    c.d_v = rows_of(out.d_v, p.Hkv, p.T, p.V);
    c.d_gate = p.decays ? out.d_gate.there : nullptr;
    c.d_beta = out.d_beta.there;
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

static void fill(const problem &p, operands &in) {
    in.first.create((size_t)p.B * (size_t)p.T);
    for (int b = 0; b < p.B; b++)
        for (int t = 0, begin = 0, d = 0; t < p.T; t++) {
            if (t == p.documents[d])
                begin = p.documents[d++];
            in.first.host[(size_t)(b * p.T + t)] = begin;
        }
    for (size_t n = 0; n < in.gate.host.size(); n++) {
        float &a = in.gate.host[n];
        a = p.gate == least ? (n % 3 == 0 ? least : 0.1f * a) : p.gate * (1 + a);
        a = fmaxf(fminf(a, 0), SR_CHUNK_GATE_LEAST);
    }
    for (size_t n = 0; n < in.beta.host.size(); n++) {
        float &beta = in.beta.host[n];
        beta = (has(p, REFLECTS) ? 2 : 1) / (1 + expf(-beta));
        if (has(p, NO_BETAS) && n % 5 == 0)
            beta = 0;
    }
    for (size_t n = 0; n < in.k.host.size() / (size_t)p.F; n++) { /* of unit length */
        sr_bf16 *const key = &in.k.host[n * (size_t)p.F];
        double sum = 0;
        std::vector<float> x((size_t)p.F);
        for (size_t f = 0; f < x.size(); f++) {
            x[f] = has(p, ALIKE) ? 1 + 0.3f * to_float(key[f]) : to_float(key[f]);
            sum += (double)x[f] * (double)x[f];
        }
        const float factor = has(p, NO_KEYS) && n % 7 == 0 ? 0 : (float)(1 / sqrt(sum));
        for (size_t f = 0; f < x.size(); f++)
            key[f] = to_bf16(factor * x[f]);
    }
    const auto hide = [&](auto &x, int columns) {
        for (size_t n = 0; n < x.host.size(); n++)
            if (is_hidden(p, (int)(n / (size_t)columns % (size_t)p.T)))
                x.host[n] =
                    from_float<typename std::remove_reference<decltype(x.host[0])>::type>(NAN);
    };
    hide(in.q, p.F);
    hide(in.k, p.F);
    hide(in.v, p.V);
    hide(in.d_numerator, p.V);
    hide(in.gate, p.decays > 1 ? p.decays : 1);
    hide(in.beta, 1);
}

/* ---- the reference ---- */

struct reference {
    const problem &p;
    const sr_chunk_call &c;
    const operands &in;
    expectations &out;

    doubles states, used; /* with tokens 0 .. t-1: (T + 1, F, V); U: (T, V) */
    int b, kv;

    size_t wide() const {
        return (size_t)(p.F * p.V);
    }
    size_t row(int heads, int h, int t) const {
        return ((size_t)b * (size_t)heads + (size_t)h) * (size_t)p.T + (size_t)t;
    }
    double key(int t, int f) const {
        return in.k[row(p.Hkv, kv, t) * (size_t)p.F + (size_t)f];
    }
    double query(int h, int t, int f) const {
        return in.q[row(p.H, h, t) * (size_t)p.F + (size_t)f];
    }
    double value(int t, int v) const {
        return in.v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v];
    }
    double beta(int t) const {
        return in.beta[row(p.Hkv, kv, t)];
    }
    bool begins(int t) const {
        return in.first.host[(size_t)(b * p.T + t)] == t && (t > 0 || !has(p, STATES));
    }
    size_t gate_at(int t, int f) const {
        return row(p.Hkv, kv, t) * (size_t)(p.decays > 1 ? p.decays : 1) +
               (size_t)(p.decays > 1 ? f : 0);
    }
    double decay(int t, int f) const {
        return begins(t) ? 0 : p.decays ? exp(in.gate[gate_at(t, f)]) : 1;
    }
    size_t state_at(int f, int v) const {
        return (((size_t)b * (size_t)p.Hkv + (size_t)kv) * (size_t)p.F + (size_t)f) * (size_t)p.V +
               (size_t)v;
    }
    /* The state before token t and its gate. */
    double kept(int t, int f, int v) const {
        return begins(t) ? 0 : decay(t, f) * states[(size_t)t * wide() + (size_t)(f * p.V + v)];
    }

    void forward() {
        states.assign((size_t)(p.T + 1) * wide(), 0);
        used.assign((size_t)(p.T * p.V), 0);
        for (int f = 0; f < p.F && has(p, STATES); f++)
            for (int v = 0; v < p.V; v++)
                states[(size_t)(f * p.V + v)] = in.initial[state_at(f, v)];
        for (int t = 0; t < p.T; t++) {
            double *const after = &states[(size_t)(t + 1) * wide()];
            for (int v = 0; v < p.V; v++) {
                double known = 0;
                for (int f = 0; f < p.F; f++)
                    known += key(t, f) * kept(t, f, v);
                const double u = used[(size_t)(t * p.V + v)] = beta(t) * (value(t, v) - known);
                for (int f = 0; f < p.F; f++)
                    after[f * p.V + v] = kept(t, f, v) + key(t, f) * u;
            }
            for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
                for (int v = 0; v < p.V; v++) {
                    double sum = 0;
                    for (int f = 0; f < p.F; f++)
                        sum += query(h, t, f) * after[f * p.V + v];
                    out.numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v] = (double)c.scale * sum;
                }
        }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.final[state_at(f, v)] = states[(size_t)p.T * wide() + (size_t)(f * p.V + v)];
    }

    /* The numerators of token t: to queries, and to r. */
    void backward_numerators(doubles &r, int t) {
        const double *const after = &states[(size_t)(t + 1) * wide()];
        for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
            for (int f = 0; f < p.F; f++) {
                double sum = 0;
                for (int v = 0; v < p.V; v++) {
                    const double d =
                        (double)c.scale * in.d_numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v];
                    sum += d * after[f * p.V + v];
                    r[(size_t)(f * p.V + v)] += d * query(h, t, f);
                }
                out.d_q[row(p.H, h, t) * (size_t)p.F + (size_t)f] = sum;
            }
    }

    void backward() {
        doubles r(wide(), 0); /* the gradient of the state with token t */
        for (int f = 0; f < p.F && has(p, STATES); f++)
            for (int v = 0; v < p.V; v++)
                r[(size_t)(f * p.V + v)] = in.d_final[state_at(f, v)];
        for (int t = p.T - 1; t >= 0; t--) {
            double *const d_k = &out.d_k[row(p.Hkv, kv, t) * (size_t)p.F];
            backward_numerators(r, t);
            for (int v = 0; v < p.V; v++) {
                double d_u = 0, known = 0;
                for (int f = 0; f < p.F; f++) {
                    d_u += r[(size_t)(f * p.V + v)] * key(t, f);
                    known += key(t, f) * kept(t, f, v);
                    d_k[f] += r[(size_t)(f * p.V + v)] * used[(size_t)(t * p.V + v)];
                }
                out.d_beta[row(p.Hkv, kv, t)] += d_u * (value(t, v) - known);
                out.d_v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v] = beta(t) * d_u;
                for (int f = 0; f < p.F; f++) {
                    double &x = r[(size_t)(f * p.V + v)];
                    d_k[f] -= beta(t) * d_u * kept(t, f, v);
                    x -= beta(t) * d_u * key(t, f);
                    out.d_gate[gate_at(t, f)] += x * kept(t, f, v);
                    x = begins(t) ? 0 : x * decay(t, f);
                }
            }
        }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.d_initial[state_at(f, v)] = r[(size_t)(f * p.V + v)];
    }
};

static void refer(const problem &p, const sr_chunk_call &c, const operands &in, expectations &out) {
    const size_t BT = (size_t)p.B * (size_t)p.T, q = BT * (size_t)p.H, k = BT * (size_t)p.Hkv;
    const size_t F = (size_t)p.F, V = (size_t)p.V, states = (size_t)(p.B * p.Hkv) * F * V;
    out.numerator.assign(q * V, 0);
    out.d_q.assign(q * F, 0);
    out.d_k.assign(k * F, 0);
    out.d_v.assign(k * V, 0);
    out.d_gate.assign(k * (size_t)(p.decays > 1 ? p.decays : 1), 0);
    out.d_beta.assign(k, 0);
    out.final.assign(states, 0);
    out.d_initial.assign(states, 0);
    for (int b = 0; b < p.B; b++)
        for (int kv = 0; kv < p.Hkv; kv++) {
            reference r = {p, c, in, out, {}, {}, b, kv};
            r.forward();
            r.backward();
        }
}

/* ---- comparison ---- */

/* The relative error of tokens that are not hidden; rows of `columns` per token, or no rows: 0. */
template <class N>
static void compare(const problem &p, const char *name, array<N> &found, const doubles &expected,
                    int columns, double limit) {
    limit *= has(p, ALIKE) ? 2 : 1;
    double error = 0, size = 0;
    found.fetch();
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

static sr_chunk_shape shape_of(const problem &p) {
    sr_chunk_shape s = {};
    s.B = p.B;
    s.H = p.H;
    s.Hkv = p.Hkv;
    s.T = p.T;
    s.group = p.H / p.Hkv;
    s.F = p.F;
    s.V = p.V;
    s.decays = p.decays;
    s.delta = true;
    s.capability = 80;
    s.multiprocessors = p.multiprocessors;
    s.shared_bytes = 227 * 1024;
    return s;
}

static void test_problem(const problem &p) {
    const sr_chunk_core &core = sr_chunk_core_delta;
    const sr_chunk_shape shape = shape_of(p);
    const size_t BT = (size_t)p.B * (size_t)p.T, q = BT * (size_t)p.H, k = BT * (size_t)p.Hkv;
    const size_t F = (size_t)p.F, V = (size_t)p.V, states = (size_t)(p.B * p.Hkv) * F * V;
    const size_t gates = k * (size_t)(p.decays > 1 ? p.decays : 1);
    operands in;
    results out;
    expectations expected;
    cudaStream_t stream;
    char *workspace;
    number_state = (uint64_t)(p.T * 1000 + p.F);
    in.q.random(q * F, 1);
    in.k.random(k * F, 1);
    in.v.random(k * V, 1);
    in.d_numerator.random(q * V, 1);
    in.gate.random(gates, 1);
    in.beta.random(k, 1);
    in.initial.random(states, 0.3f);
    in.d_final.random(states, 0.3f);
    out.numerator.create(q * V);
    out.final.create(states);
    out.d_q.create(q * F);
    out.d_k.create(k * F);
    out.d_v.create(k * V);
    out.d_gate.create(gates);
    out.d_beta.create(k);
    out.d_initial.create(states);
    fill(p, in);
    in.q.send();
    in.k.send();
    in.v.send();
    in.d_numerator.send();
    in.gate.send();
    in.beta.send();
    in.initial.send();
    in.d_final.send();
    in.first.send();
    const sr_chunk_call call = call_of(p, in, out);
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
    refer(p, call, in, expected);
    compare(p, "numerator", out.numerator, expected.numerator, p.V, OUTPUT_LIMIT);
    compare(p, "d_q", out.d_q, expected.d_q, p.F, GRADIENT_LIMIT);
    compare(p, "d_k", out.d_k, expected.d_k, p.F, GRADIENT_LIMIT);
    compare(p, "d_v", out.d_v, expected.d_v, p.V, GRADIENT_LIMIT);
    compare(p, "d_beta", out.d_beta, expected.d_beta, 1, GRADIENT_LIMIT);
    if (p.decays)
        compare(p, "d_gate", out.d_gate, expected.d_gate, p.decays, GRADIENT_LIMIT);
    if (has(p, STATES)) {
        compare(p, "final", out.final, expected.final, 0, OUTPUT_LIMIT);
        compare(p, "d_initial", out.d_initial, expected.d_initial, 0, GRADIENT_LIMIT);
    }
}

static void test_problems(void **state) {
    (void)state;
    for (const problem &p : problems)
        test_problem(p);
}

static void test_what_fits(void **state) {
    (void)state;
    sr_chunk_shape shape = shape_of(problems[0]);
    assert_true(sr_chunk_core_delta.fits(shape));
    shape.V = 136;
    assert_false(sr_chunk_core_delta.fits(shape));
    shape.V = 64;
    shape.sums_rows = true;
    assert_false(sr_chunk_core_delta.fits(shape));
    shape.sums_rows = shape.delta = false;
    assert_false(sr_chunk_core_delta.fits(shape));
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_what_fits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
