/* test_chunk_head.cu: the core of additive writes with a gate per head (chunks/head*.cu), on an
 * emulated GPU, against the recurrence in double, token by token: outputs, states and all
 * gradients. */
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

struct problem {
    int B, H, Hkv, T, F, V;
    int decays;
    bool sums_rows, states; /* initial and final state, with gradients */
    int q_heads, k_heads;   /* heads of q and k that are shared in turns; 0: each has its own */
    int multiprocessors;    /* few walks per multiprocessor are cut */
    const int *documents;   /* starts, after 0; ends with T */
    float gate;             /* the mean of gates; least: every third one is SR_CHUNK_GATE_LEAST */
    bool nans;              /* the second document holds nothing else */
};

static const int whole[] = {1 << 30}, several[] = {1, 18, 70, 71, 80, 140, 1 << 30};
static const float least = SR_CHUNK_GATE_LEAST;

static const problem problems[] = {
    {1, 2, 2, 130, 64, 64, 1, false, true, 0, 0, 1, whole, -0.05f, false},
    {1, 2, 1, 70, 24, 40, 1, true, true, 0, 0, 1, several, -0.3f, false},
    {2, 1, 1, 150, 64, 64, 1, true, true, 0, 0, 1, several, -0.1f, true},
    {1, 1, 1, 330, 64, 64, 1, true, true, 0, 0, 132, whole, -0.01f, false}, /* segments */
    {1, 2, 1, 330, 64, 64, 1, false, true, 0, 0, 132, several, -0.01f, true},
    {1, 4, 4, 131, 128, 64, 1, false, false, 1, 2, 1, whole, -0.2f, false}, /* as Mamba-2 */
    {1, 1, 1, 257, 128, 128, 0, true, true, 0, 0, 132, several, 0, false},
    {1, 1, 1, 97, 192, 136, 1, true, true, 0, 0, 1, several, -0.1f, false},
    {1, 1, 1, 67, 16, 256, 1, false, false, 0, 0, 1, whole, 0, false},
    {1, 1, 1, 200, 64, 64, 1, true, true, 0, 0, 1, whole, least, false},
    {2, 1, 1, 1, 8, 8, 1, true, true, 0, 0, 132, whole, -1, false},
    {1, 2, 2, 64, 256, 16, 0, false, false, 0, 0, 132, whole, 0, false},
};

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
    array<float> gate, d_row_sum, initial, d_final;
    array<int32_t> first;
};

struct results {
    array<sr_bf16> numerator, d_q, d_k, d_v;
    array<float> row_sum, final, d_gate, d_initial;
};

struct expectations {
    doubles numerator, d_q, d_k, d_v, row_sum, final, d_gate, d_initial;
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
    c.sums_rows = p.sums_rows;
    c.decays = p.decays;
    c.scale = 0.4f;
    c.first = in.first.there;
    c.q_heads = p.q_heads ? p.q_heads : p.H;
    c.k_heads = p.k_heads ? p.k_heads : p.Hkv;
    c.q_share = c.k_share = 1;
    c.q = rows_of(in.q, c.q_heads, p.T, p.F);
    c.k = rows_of(in.k, c.k_heads, p.T, p.F);
    c.v = rows_of(in.v, p.Hkv, p.T, p.V);
    c.gate = in.gate.there;
    c.numerator = rows_of(out.numerator, p.H, p.T, p.V);
    c.row_sum = out.row_sum.there;
    c.d_numerator = rows_of(in.d_numerator, p.H, p.T, p.V);
    c.d_row_sum = in.d_row_sum.there;
    c.d_q = rows_of(out.d_q, p.H, p.T, p.F);
    c.d_k = rows_of(out.d_k, p.Hkv, p.T, p.F);
    c.d_v = rows_of(out.d_v, p.Hkv, p.T, p.V);
    c.d_gate = p.decays ? out.d_gate.there : nullptr;
    if (p.states) {
        c.initial = in.initial.there;
        c.final = out.final.there;
        c.d_final = in.d_final.there;
        c.d_initial = out.d_initial.there;
    }
    return c;
}

static bool is_hidden(const problem &p, int t) {
    return p.nans && t >= p.documents[0] && t < p.documents[1];
}

static void fill(const problem &p, operands &in, const sr_chunk_call &c) {
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
    const auto hide = [&](auto &x, int heads, int columns) {
        for (size_t n = 0; n < x.host.size(); n++)
            if (is_hidden(p, (int)(n / (size_t)columns % (size_t)p.T)))
                x.host[n] =
                    from_float<typename std::remove_reference<decltype(x.host[0])>::type>(NAN);
        (void)heads;
    };
    hide(in.q, c.q_heads, p.F);
    hide(in.k, c.k_heads, p.F);
    hide(in.v, p.Hkv, p.V);
    hide(in.d_numerator, p.H, p.V);
    hide(in.gate, p.Hkv, 1);
    hide(in.d_row_sum, p.H, 1);
}

/* ---- the reference ---- */

struct reference {
    const problem &p;
    const sr_chunk_call &c;
    const operands &in;
    expectations &out;

    /* The state and its sums before and with each token, as (T + 1, F, V + 1). */
    doubles states;
    int b, kv;

    size_t wide() const {
        return (size_t)(p.F * (p.V + 1));
    }
    size_t row(int heads, int h, int t) const {
        return ((size_t)b * (size_t)heads + (size_t)h) * (size_t)p.T + (size_t)t;
    }
    double key(int t, int f) const {
        return in.k[row(c.k_heads, c.key_head(kv), t) * (size_t)p.F + (size_t)f];
    }
    double query(int h, int t, int f) const {
        return in.q[row(c.q_heads, c.query_head(h), t) * (size_t)p.F + (size_t)f];
    }
    double value(int t, int v) const { /* and 1 behind */
        return v == p.V ? 1 : in.v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v];
    }
    double d_numerator(int h, int t, int v) const {
        if (v == p.V)
            return p.sums_rows ? in.d_row_sum[row(p.H, h, t)] : 0;
        return in.d_numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v];
    }
    bool begins(int t) const {
        return in.first.host[(size_t)(b * p.T + t)] == t && (t > 0 || !p.states);
    }
    double decay(int t) const {
        return begins(t) ? 0 : p.decays ? exp(in.gate[row(p.Hkv, kv, t)]) : 1;
    }
    size_t state_at(int f, int v) const {
        return (((size_t)b * (size_t)p.Hkv + (size_t)kv) * (size_t)p.F + (size_t)f) * (size_t)p.V +
               (size_t)v;
    }

    void forward() {
        states.assign((size_t)(p.T + 1) * wide(), 0);
        for (int f = 0; f < p.F && p.states; f++)
            for (int v = 0; v < p.V; v++)
                states[(size_t)(f * (p.V + 1) + v)] = in.initial[state_at(f, v)];
        for (int t = 0; t < p.T; t++) {
            const double *const before = &states[(size_t)t * wide()];
            double *const after = &states[(size_t)(t + 1) * wide()];
            for (int f = 0; f < p.F; f++)
                for (int v = 0; v <= p.V; v++) {
                    const int n = f * (p.V + 1) + v;
                    after[n] = (begins(t) ? 0 : decay(t) * before[n]) + key(t, f) * value(t, v);
                }
            for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
                for (int v = 0; v <= p.V; v++) {
                    double sum = 0;
                    for (int f = 0; f < p.F; f++)
                        sum += query(h, t, f) * after[f * (p.V + 1) + v];
                    if (v < p.V)
                        out.numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v] =
                            (double)c.scale * sum;
                    else
                        out.row_sum[row(p.H, h, t)] = (double)c.scale * sum;
                }
        }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.final[state_at(f, v)] =
                    states[(size_t)p.T * wide() + (size_t)(f * (p.V + 1) + v)];
    }

    void backward() {
        doubles r(wide(), 0); /* the gradient of the state with token t */
        for (int f = 0; f < p.F && p.states; f++)
            for (int v = 0; v < p.V; v++)
                r[(size_t)(f * (p.V + 1) + v)] = in.d_final[state_at(f, v)];
        for (int t = p.T - 1; t >= 0; t--) {
            const double *const before = &states[(size_t)t * wide()];
            const double *const after = &states[(size_t)(t + 1) * wide()];
            double d_gate = 0;
            for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
                for (int f = 0; f < p.F; f++) {
                    double sum = 0;
                    for (int v = 0; v <= p.V; v++) {
                        const double d = (double)c.scale * d_numerator(h, t, v);
                        sum += d * after[f * (p.V + 1) + v];
                        r[(size_t)(f * (p.V + 1) + v)] += d * query(h, t, f);
                    }
                    out.d_q[row(p.H, h, t) * (size_t)p.F + (size_t)f] = sum;
                }
            for (int f = 0; f < p.F; f++)
                for (int v = 0; v <= p.V; v++) {
                    double &x = r[(size_t)(f * (p.V + 1) + v)];
                    out.d_k[row(p.Hkv, kv, t) * (size_t)p.F + (size_t)f] += x * value(t, v);
                    if (v < p.V)
                        out.d_v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v] += x * key(t, f);
                    x = begins(t) ? 0 : x * decay(t);
                    d_gate += begins(t) ? 0 : x * before[f * (p.V + 1) + v];
                }
            out.d_gate[row(p.Hkv, kv, t)] = d_gate;
        }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.d_initial[state_at(f, v)] = r[(size_t)(f * (p.V + 1) + v)];
    }
};

static void refer(const problem &p, const sr_chunk_call &c, const operands &in, expectations &out) {
    const size_t BT = (size_t)p.B * (size_t)p.T, q = BT * (size_t)p.H, k = BT * (size_t)p.Hkv;
    const size_t F = (size_t)p.F, V = (size_t)p.V, states = (size_t)(p.B * p.Hkv) * F * V;
    out.numerator.assign(q * V, 0);
    out.row_sum.assign(q, 0);
    out.d_q.assign(q * F, 0);
    out.d_k.assign(k * F, 0);
    out.d_v.assign(k * V, 0);
    out.d_gate.assign(k, 0);
    out.final.assign(states, 0);
    out.d_initial.assign(states, 0);
    for (int b = 0; b < p.B; b++)
        for (int kv = 0; kv < p.Hkv; kv++) {
            reference r = {p, c, in, out, {}, b, kv};
            r.forward();
            r.backward();
        }
}

/* ---- comparison ---- */

/* The relative error of tokens that are not hidden; rows of `columns` per token, or no rows: 0. */
template <class N>
static void compare(const problem &p, const char *name, array<N> &found, const doubles &expected,
                    int columns, double limit) {
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
    s.sums_rows = p.sums_rows;
    s.capability = 80;
    s.multiprocessors = p.multiprocessors;
    s.shared_bytes = 227 * 1024;
    return s;
}

static void test_problem(const problem &p) {
    const sr_chunk_core &core = sr_chunk_core_head;
    const sr_chunk_shape shape = shape_of(p);
    const size_t BT = (size_t)p.B * (size_t)p.T, q = BT * (size_t)p.H, k = BT * (size_t)p.Hkv;
    const size_t F = (size_t)p.F, V = (size_t)p.V, states = (size_t)(p.B * p.Hkv) * F * V;
    operands in;
    results out;
    expectations expected;
    cudaStream_t stream;
    char *workspace;
    number_state = (uint64_t)(p.T * 1000 + p.F);
    in.q.random(BT * F * (size_t)(p.q_heads ? p.q_heads : p.H), 1);
    in.k.random(BT * F * (size_t)(p.k_heads ? p.k_heads : p.Hkv), 1);
    in.v.random(k * V, 1);
    in.d_numerator.random(q * V, 1);
    in.gate.random(k, 1);
    in.d_row_sum.random(q, 1);
    in.initial.random(states, 2);
    in.d_final.random(states, 2);
    out.numerator.create(q * V);
    out.row_sum.create(q);
    out.final.create(states);
    out.d_q.create(q * F);
    out.d_k.create(k * F);
    out.d_v.create(k * V);
    out.d_gate.create(k);
    out.d_initial.create(states);
    fill(p, in, call_of(p, in, out));
    in.q.send();
    in.k.send();
    in.v.send();
    in.d_numerator.send();
    in.gate.send();
    in.d_row_sum.send();
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
    if (p.sums_rows)
        compare(p, "row_sum", out.row_sum, expected.row_sum, 1, OUTPUT_LIMIT);
    compare(p, "d_q", out.d_q, expected.d_q, p.F, GRADIENT_LIMIT);
    compare(p, "d_k", out.d_k, expected.d_k, p.F, GRADIENT_LIMIT);
    compare(p, "d_v", out.d_v, expected.d_v, p.V, GRADIENT_LIMIT);
    if (p.decays)
        compare(p, "d_gate", out.d_gate, expected.d_gate, 1, GRADIENT_LIMIT);
    if (p.states) {
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
    shape.decays = shape.F;
    assert_false(sr_chunk_core_head.fits(shape));
    shape.decays = 0;
    assert_true(sr_chunk_core_head.fits(shape));
    shape.V = 264;
    assert_false(sr_chunk_core_head.fits(shape));
    shape.V = 64;
    shape.delta = true;
    assert_false(sr_chunk_core_head.fits(shape));
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_what_fits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
