/* test_chunk_levels.cu: the core of additive writes with levels (chunks/levels), on an emulated
 * GPU, against all pairs in double: outputs and all gradients; and the same bits twice. */
#include "chunk_arrays.h"

struct problem {
    int B, H, Hkv, T, F, V;
    int decays, levels;
    int q_heads, k_heads; /* heads of q and k that are shared cyclically; 0: each has its own */
    const int *documents; /* starts, after 0; ends with T */
    float gate;           /* the mean of gates; least: every third one is SR_CHUNK_GATE_LEAST */
    bool nans;            /* the second document holds nothing else */
};

static const int whole[] = {1 << 30}, several[] = {1, 18, 70, 71, 210, 1 << 30};
static const int long_first[] = {330, 331, 470, 1 << 30}, long_second[] = {40, 180, 1 << 30};
static const float least = SR_CHUNK_GATE_LEAST;

static const problem problems[] = {
    {1, 1, 1, 512, 64, 64, 1, 10, 0, 0, whole, -0.02f, false},
    {1, 2, 1, 330, 24, 40, 1, 15, 0, 0, several, -0.05f, false},
    {2, 1, 1, 230, 64, 64, 1, 9, 0, 0, several, -0.1f, true},
    {1, 1, 1, 330, 16, 64, 1, 15, 0, 0, long_second, -0.02f, true},
    {1, 1, 1, 600, 64, 16, 1, 15, 0, 0, long_first, -0.01f, true},
    {1, 4, 4, 131, 128, 64, 1, 20, 1, 2, whole, -0.2f, false}, /* as Mamba-2 */
    {1, 2, 1, 321, 128, 128, 0, 15, 0, 0, long_first, 0, false},
    {1, 1, 1, 257, 72, 128, 1, 15, 0, 0, whole, -0.001f, false},
    {1, 1, 1, 200, 64, 64, 1, 15, 0, 0, whole, least, false},
    {2, 1, 1, 1, 8, 8, 1, 7, 0, 0, whole, -1, false},
    {1, 1, 1, 64, 64, 64, 0, 7, 0, 0, whole, 0, false},
};

struct operands {
    array<sr_bf16> q, k, v, d_numerator;
    array<float> gate, level;
    array<int32_t> first;
};

struct results {
    array<sr_bf16> numerator, d_q, d_k, d_v;
    array<float> d_gate, d_level;
};

struct expectations {
    doubles numerator, d_q, d_k, d_v, d_gate, d_level;
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
    c.decays = p.decays;
    c.levels = p.levels;
    c.scale = 0.4f;
    c.first = in.first.there;
    c.q_heads = p.q_heads ? p.q_heads : p.H;
    c.k_heads = p.k_heads ? p.k_heads : p.Hkv;
    c.q_share = c.k_share = 1;
    c.q = rows_of(in.q, c.q_heads, p.T, p.F);
    c.k = rows_of(in.k, c.k_heads, p.T, p.F);
    c.v = rows_of(in.v, p.Hkv, p.T, p.V);
    c.gate = in.gate.there;
    c.level = in.level.there;
    c.numerator = rows_of(out.numerator, p.H, p.T, p.V);
    c.d_numerator = rows_of(in.d_numerator, p.H, p.T, p.V);
    c.d_q = rows_of(out.d_q, p.H, p.T, p.F);
    c.d_k = rows_of(out.d_k, p.Hkv, p.T, p.F);
    c.d_v = rows_of(out.d_v, p.Hkv, p.T, p.V);
    c.d_gate = out.d_gate.there;
    c.d_level = out.d_level.there;
    return c;
}

static bool is_hidden(const problem &p, int t) {
    return p.nans && t >= p.documents[0] && t < p.documents[1];
}

template <class N> static void hide(const problem &p, array<N> &x, int columns) {
    for (size_t n = 0; n < x.host.size(); n++)
        if (is_hidden(p, (int)(n / (size_t)columns % (size_t)p.T)))
            x.host[n] = from_float<N>(NAN);
}

static void fill(const problem &p, operands &in) {
    const size_t rows = (size_t)p.B * (size_t)p.T, q = rows * (size_t)p.H;
    in.q.random(rows * (size_t)(p.q_heads ? p.q_heads : p.H) * (size_t)p.F, 1);
    in.k.random(rows * (size_t)(p.k_heads ? p.k_heads : p.Hkv) * (size_t)p.F, 1);
    in.v.random(rows * (size_t)p.Hkv * (size_t)p.V, 1);
    in.d_numerator.random(q * (size_t)p.V, 1);
    in.gate.random(rows * (size_t)p.Hkv, 1);
    in.level.random(q * (size_t)p.levels, 1);
    in.first.create(rows);
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
        if (in.first.host[n / (size_t)p.T / (size_t)p.Hkv * (size_t)p.T + n % (size_t)p.T] ==
            (int)(n % (size_t)p.T))
            a = NAN; /* counts for nothing */
    }
    for (float &level : in.level.host)
        level = 0.2f + fabsf(level);
    hide(p, in.q, p.F);
    hide(p, in.k, p.F);
    hide(p, in.v, p.V);
    hide(p, in.d_numerator, p.V);
    hide(p, in.gate, 1);
    hide(p, in.level, p.levels);
    in.q.send();
    in.k.send();
    in.v.send();
    in.d_numerator.send();
    in.gate.send();
    in.level.send();
    in.first.send();
}

/* ---- the reference ---- */

struct reference {
    const problem &p;
    const sr_chunk_call &c;
    const operands &in;
    expectations &out;
    int b, h;

    size_t row(int heads, int head, int t) const {
        return ((size_t)b * (size_t)heads + (size_t)head) * (size_t)p.T + (size_t)t;
    }
    int kv() const {
        return h / c.group;
    }
    size_t query(int t) const {
        return row(c.q_heads, c.query_head(h), t) * (size_t)p.F;
    }
    size_t key(int t) const {
        return row(c.k_heads, c.key_head(kv()), t) * (size_t)p.F;
    }

    /* The pair i >= j, `decay` between its tokens. */
    void pair(int i, int j, double decay) {
        const int start = in.first.host[(size_t)(b * p.T + i)];
        const size_t F = (size_t)p.F, V = (size_t)p.V, value = row(p.Hkv, kv(), j) * V;
        const size_t result = row(p.H, h, i) * V;
        int level = 0;
        for (int x = (i - start) ^ (j - start); x > 0; x >>= 1)
            level++;
        const size_t of_level = row(p.H, h, i) * (size_t)p.levels + (size_t)level;
        const double factor = (double)c.scale * decay * in.level[of_level];
        double dot = 0, d_weight = 0;
        for (size_t f = 0; f < F; f++)
            dot += in.q[query(i) + f] * in.k[key(j) + f];
        for (size_t v = 0; v < V; v++) {
            out.numerator[result + v] += factor * dot * in.v[value + v];
            d_weight += in.d_numerator[result + v] * in.v[value + v];
            out.d_v[value + v] += factor * dot * in.d_numerator[result + v];
        }
        for (size_t f = 0; f < F; f++) {
            out.d_q[row(p.H, h, i) * F + f] += factor * d_weight * in.k[key(j) + f];
            out.d_k[row(p.Hkv, kv(), j) * F + f] += factor * d_weight * in.q[query(i) + f];
        }
        out.d_level[of_level] += (double)c.scale * decay * dot * d_weight;
        for (int t = j + 1; t <= i; t++)
            out.d_gate[row(p.Hkv, kv(), t)] += factor * dot * d_weight;
    }

    void head() {
        for (int i = 0; i < p.T; i++) {
            const int start = in.first.host[(size_t)(b * p.T + i)];
            double gates = 0;
            for (int j = i; j >= start && !is_hidden(p, i); j--) {
                pair(i, j, p.decays ? exp(gates) : 1);
                gates += j > start ? in.gate[row(p.Hkv, kv(), j)] : 0;
            }
        }
    }
};

static void refer(const problem &p, const sr_chunk_call &c, const operands &in, expectations &out) {
    const size_t rows = (size_t)p.B * (size_t)p.T, q = rows * (size_t)p.H;
    const size_t k = rows * (size_t)p.Hkv, F = (size_t)p.F, V = (size_t)p.V;
    out.numerator.assign(q * V, 0);
    out.d_q.assign(q * F, 0);
    out.d_k.assign(k * F, 0);
    out.d_v.assign(k * V, 0);
    out.d_gate.assign(k, 0);
    out.d_level.assign(q * (size_t)p.levels, 0);
    for (int b = 0; b < p.B; b++)
        for (int h = 0; h < p.H; h++)
            reference{p, c, in, out, b, h}.head();
}

/* ---- comparison ---- */

/* The relative error of tokens that are not hidden; rows of `columns` per token. */
template <class N>
static void compare(const problem &p, const char *name, array<N> &found, const doubles &expected,
                    int columns, double limit) {
    double error = 0, size = 0;
    found.fetch();
    for (size_t n = 0; n < expected.size(); n++) {
        if (is_hidden(p, (int)(n / (size_t)columns % (size_t)p.T)))
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
    s.levels = p.levels;
    s.capability = 80;
    s.multiprocessors = 1;
    s.shared_bytes = 227 * 1024;
    return s;
}

static void create(const problem &p, results &out) {
    const size_t rows = (size_t)p.B * (size_t)p.T, q = rows * (size_t)p.H;
    const size_t k = rows * (size_t)p.Hkv, F = (size_t)p.F, V = (size_t)p.V;
    out.numerator.create(q * V);
    out.d_q.create(q * F);
    out.d_k.create(k * F);
    out.d_v.create(k * V);
    out.d_gate.create(k);
    out.d_level.create(q * (size_t)p.levels);
}

static void compute(const problem &p, operands &in, results &out) {
    const sr_chunk_core &core = sr_chunk_core_levels;
    const sr_chunk_shape shape = shape_of(p);
    cudaStream_t stream;
    char *workspace;
    create(p, out);
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
}

static void test_problem(const problem &p) {
    operands in;
    results out;
    expectations expected;
    number_state = (uint64_t)(p.T * 1000 + p.F);
    fill(p, in);
    compute(p, in, out);
    refer(p, call_of(p, in, out), in, expected);
    compare(p, "numerator", out.numerator, expected.numerator, p.V, OUTPUT_LIMIT);
    compare(p, "d_q", out.d_q, expected.d_q, p.F, GRADIENT_LIMIT);
    compare(p, "d_k", out.d_k, expected.d_k, p.F, GRADIENT_LIMIT);
    compare(p, "d_v", out.d_v, expected.d_v, p.V, GRADIENT_LIMIT);
    compare(p, "d_level", out.d_level, expected.d_level, p.levels, GRADIENT_LIMIT);
    if (p.decays)
        compare(p, "d_gate", out.d_gate, expected.d_gate, 1, GRADIENT_LIMIT);
}

static void test_problems(void **state) {
    (void)state;
    for (const problem &p : problems)
        test_problem(p);
}

template <class N> static void same(array<N> &one, array<N> &other) {
    one.fetch();
    other.fetch();
    assert_memory_equal(one.host.data(), other.host.data(), one.host.size() * sizeof(N));
}

static void test_same_bits(void **state) {
    (void)state;
    const problem p = {1, 2, 1, 330, 64, 64, 1, 15, 0, 0, several, -0.05f, false};
    operands in;
    results one, other;
    number_state = 1;
    fill(p, in);
    compute(p, in, one);
    compute(p, in, other);
    same(one.numerator, other.numerator);
    same(one.d_q, other.d_q);
    same(one.d_k, other.d_k);
    same(one.d_v, other.d_v);
    same(one.d_gate, other.d_gate);
    same(one.d_level, other.d_level);
}

static void test_what_fits(void **state) {
    (void)state;
    sr_chunk_shape shape = shape_of(problems[0]);
    assert_true(sr_chunk_core_levels.fits(shape));
    shape.sums_rows = true;
    assert_false(sr_chunk_core_levels.fits(shape));
    shape.sums_rows = false;
    shape.decays = shape.F;
    assert_false(sr_chunk_core_levels.fits(shape));
    shape.decays = 0;
    shape.V = 136;
    assert_false(sr_chunk_core_levels.fits(shape));
    shape.V = 64;
    shape.levels = 21;
    assert_false(sr_chunk_core_levels.fits(shape));
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_problems),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_what_fits),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
