/* test_chunk_channel.cu: the core of additive writes with a gate per channel
 * (chunks/channel*.cu), on an emulated GPU, against the recurrence in double, token by token:
 * outputs, states and all gradients. */
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

/* Gates: a mean; or that, and every n-th channel has every n-th gate at SR_CHUNK_GATE_LEAST; or all
 * are. */
enum gates { EVEN, SOME_STRONG, ALL_STRONG };

struct problem {
    int B, H, Hkv, T, F, V;
    bool states;          /* initial and final state, with gradients */
    int q_heads, k_heads; /* heads of q and k that are shared in turns; 0: each has its own */
    int multiprocessors;  /* two blocks share the values of a head where heads are fewer */
    const int *documents; /* starts, after 0; ends with T */
    gates kind;
    float gate; /* the mean */
    bool nans;  /* the second document holds nothing else */
};

static const int whole[] = {1 << 30}, several[] = {1, 18, 70, 71, 80, 140, 1 << 30};

static const problem problems[] = {
    {1, 2, 2, 130, 64, 64, true, 0, 0, 1, whole, EVEN, -0.05f, false},
    {1, 2, 1, 70, 24, 40, true, 0, 0, 1, several, EVEN, -0.3f, false},
    {2, 1, 1, 150, 64, 64, true, 0, 0, 1, several, EVEN, -0.1f, true},
    {1, 2, 1, 131, 64, 64, true, 0, 0, 1, whole, EVEN, -2.3f,
     false}, /* blocks of 32 tokens, 16, 8 */
    {1, 1, 1, 131, 64, 64, true, 0, 0, 1, whole, EVEN, -4.5f, false},
    {1, 2, 1, 131, 64, 64, true, 0, 0, 1, several, EVEN, -12, true},
    {1, 1, 1, 131, 64, 64, true, 0, 0, 1, whole, SOME_STRONG, -0.05f, false},
    {1, 1, 1, 67, 64, 64, true, 0, 0, 1, whole, ALL_STRONG, 0, false},
    {1, 1, 1, 65, 64, 64, true, 0, 0, 1, whole, EVEN, 0, false},
    {1, 4, 2, 67, 64, 128, false, 3, 1, 132, whole, EVEN, -0.2f, false},
    {1, 1, 1, 97, 128, 64, true, 0, 0, 1, several, SOME_STRONG, -0.1f, false},
    {1, 2, 1, 67, 128, 128, true, 0, 0, 1, whole, EVEN, -0.1f, false},
    {1, 2, 1, 67, 72, 104, true, 0, 0, 132, whole, SOME_STRONG, -0.1f, false},
    {2, 1, 1, 1, 16, 16, true, 0, 0, 132, whole, EVEN, -1, false},
    {1, 1, 1, 1, 16, 16, false, 0, 0, 132, whole, EVEN, -1, false},
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
    array<float> gate, initial, d_final;
    array<int32_t> first;
};

struct results {
    array<sr_bf16> numerator, d_q, d_k, d_v;
    array<float> final, d_gate, d_initial;
};

struct expectations {
    doubles numerator, d_q, d_k, d_v, final, d_gate, d_initial;
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
    c.decays = p.F;
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
    c.d_numerator = rows_of(in.d_numerator, p.H, p.T, p.V);
    c.d_q = rows_of(out.d_q, p.H, p.T, p.F);
    c.d_k = rows_of(out.d_k, p.Hkv, p.T, p.F);
    c.d_v = rows_of(out.d_v, p.Hkv, p.T, p.V);
    c.d_gate = out.d_gate.there;
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
        const int channel = (int)(n % (size_t)p.F);
        const bool strong =
            p.kind == ALL_STRONG || (p.kind == SOME_STRONG && channel % 5 == 2 && n % 3 == 0);
        a = strong ? SR_CHUNK_GATE_LEAST : p.gate * (1 + 0.5f * a);
        a = fmaxf(fminf(a, 0), SR_CHUNK_GATE_LEAST);
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
    hide(in.gate, p.F);
}

/* ---- the reference ---- */

/* What other documents hold is not seen, even if it is NaN. */
static double counted(double factor, double x) {
    return factor == 0 ? 0 : factor * x;
}

struct reference {
    const problem &p;
    const sr_chunk_call &c;
    const operands &in;
    expectations &out;

    doubles states; /* before and with each token: (T + 1, F, V) */
    int b, kv;

    size_t row(int heads, int h, int t) const {
        return ((size_t)b * (size_t)heads + (size_t)h) * (size_t)p.T + (size_t)t;
    }
    double key(int t, int f) const {
        return in.k[row(c.k_heads, c.key_head(kv), t) * (size_t)p.F + (size_t)f];
    }
    double query(int h, int t, int f) const {
        return in.q[row(c.q_heads, c.query_head(h), t) * (size_t)p.F + (size_t)f];
    }
    double value(int t, int v) const {
        return in.v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v];
    }
    double d_numerator(int h, int t, int v) const {
        return (double)c.scale * in.d_numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v];
    }
    double decay(int t, int f) const { /* 0: a document begins with nothing */
        const bool begins = in.first.host[(size_t)(b * p.T + t)] == t && (t > 0 || !p.states);
        return begins ? 0 : exp(in.gate[row(p.Hkv, kv, t) * (size_t)p.F + (size_t)f]);
    }
    size_t state_at(int f, int v) const {
        return (((size_t)b * (size_t)p.Hkv + (size_t)kv) * (size_t)p.F + (size_t)f) * (size_t)p.V +
               (size_t)v;
    }
    double *state(int t, int f) {
        return &states[(size_t)(t * p.F + f) * (size_t)p.V];
    }

    void forward() {
        states.assign((size_t)((p.T + 1) * p.F * p.V), 0);
        for (int f = 0; f < p.F && p.states; f++)
            for (int v = 0; v < p.V; v++)
                state(0, f)[v] = in.initial[state_at(f, v)];
        for (int t = 0; t < p.T; t++)
            for (int f = 0; f < p.F; f++) {
                const double factor = decay(t, f), k = key(t, f);
                for (int v = 0; v < p.V; v++)
                    state(t + 1, f)[v] = counted(factor, state(t, f)[v]) + k * value(t, v);
                for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
                    for (int v = 0; v < p.V; v++)
                        out.numerator[row(p.H, h, t) * (size_t)p.V + (size_t)v] +=
                            (double)c.scale * query(h, t, f) * state(t + 1, f)[v];
            }
        for (int f = 0; f < p.F; f++)
            for (int v = 0; v < p.V; v++)
                out.final[state_at(f, v)] = state(p.T, f)[v];
    }

    void backward() {
        doubles r((size_t)(p.F * p.V), 0); /* the gradient of the state with token t */
        for (int f = 0; f < p.F && p.states; f++)
            for (int v = 0; v < p.V; v++)
                r[(size_t)(f * p.V + v)] = in.d_final[state_at(f, v)];
        for (int t = p.T - 1; t >= 0; t--)
            for (int f = 0; f < p.F; f++) {
                const double factor = decay(t, f);
                const size_t at = row(p.Hkv, kv, t) * (size_t)p.F + (size_t)f;
                for (int h = kv * c.group; h < (kv + 1) * c.group; h++)
                    for (int v = 0; v < p.V; v++) {
                        const double d = d_numerator(h, t, v);
                        out.d_q[row(p.H, h, t) * (size_t)p.F + (size_t)f] += d * state(t + 1, f)[v];
                        r[(size_t)(f * p.V + v)] += d * query(h, t, f);
                    }
                for (int v = 0; v < p.V; v++) {
                    double &x = r[(size_t)(f * p.V + v)];
                    out.d_k[at] += x * value(t, v);
                    out.d_v[row(p.Hkv, kv, t) * (size_t)p.V + (size_t)v] += x * key(t, f);
                    x = counted(factor, x);
                    out.d_gate[at] += counted(x, state(t, f)[v]);
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
    out.d_gate.assign(k * F, 0);
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
    s.decays = p.F;
    s.capability = 80;
    s.multiprocessors = p.multiprocessors;
    s.shared_bytes = 227 * 1024;
    return s;
}

static void test_problem(const problem &p) {
    const sr_chunk_core &core = sr_chunk_core_channel;
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
    in.gate.random(k * F, 1);
    in.initial.random(states, 2);
    in.d_final.random(states, 2);
    out.numerator.create(q * V);
    out.final.create(states);
    out.d_q.create(q * F);
    out.d_k.create(k * F);
    out.d_v.create(k * V);
    out.d_gate.create(k * F);
    out.d_initial.create(states);
    fill(p, in);
    in.q.send();
    in.k.send();
    in.v.send();
    in.d_numerator.send();
    in.gate.send();
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
    compare(p, "d_gate", out.d_gate, expected.d_gate, p.F, GRADIENT_LIMIT);
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
    assert_true(sr_chunk_core_channel.fits(shape));
    shape.decays = 1;
    assert_false(sr_chunk_core_channel.fits(shape));
    shape.decays = shape.F;
    shape.sums_rows = true;
    assert_false(sr_chunk_core_channel.fits(shape));
    shape.sums_rows = false;
    shape.V = 136;
    assert_false(sr_chunk_core_channel.fits(shape));
    shape.V = 64;
    shape.delta = true;
    assert_false(sr_chunk_core_channel.fits(shape));
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_what_fits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
