/* test_window.c: edge cases of windows, sinks and caps: ring buffers of keys, NaN outside of the
 * window, sinks far above and below all logits, gradients of a saturated cap. */
#include "test.h"
#include "verify/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static srnn_problem problem_of(const char *spec, int T) {
    srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = T, .D = 6, .Dv = 10};
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    return problem;
}

/* ---- the ring */

/* Feeds the next `tokens` tokens of a call to a state. */
static void feed(srnn_state *state, const attention_call *call, int tokens) {
    const srnn_problem *p = &call->problem;
    const int64_t t = srnn_state_position(state);
    srnn_operands in = call_operands(call);
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_shape shape = sr_operand_shape(which, p);
        const int64_t width = shape.rank == 4 ? shape.sizes[3] : 1;
        float *data = sr_operand_data(which, &in);
        if (data && sr_operand_is_tensor(which))
            sr_operand_set_tensor(which, &in,
                                  (srnn_tensor){data + t * width, shape.sizes[1] * p->T * width,
                                                p->T * width, width});
    }
    const srnn_tensor o = {(float *)call->host.o + t * p->Dv, (int64_t)p->H * p->T * p->Dv,
                           (int64_t)p->T * p->Dv, p->Dv};
    assert_int_equal(srnn_state_feed(state, o, &in, tokens), SRNN_OK);
}

/* A state for pieces of another length, with a copy of this one's content. */
static srnn_state *moved_state(srnn_state *state, srnn_problem problem, int longest) {
    srnn_state *other;
    const size_t bytes = srnn_state_saved_bytes(state);
    void *copy = malloc(bytes);
    assert_non_null(copy);
    problem.T = longest;
    assert_int_equal(srnn_state_create(&other, &problem), SRNN_OK);
    assert_int_equal(srnn_state_save(state, copy, bytes), SRNN_OK);
    assert_int_equal(srnn_state_load(other, copy, bytes), SRNN_OK);
    free(copy);
    srnn_state_free(state);
    return other;
}

static void check_ring(const char *spec, int window) {
    enum { T = 700, LONGEST = 130 };
    static const int pieces[] = {1, 130, 7, 1, 95, 96, 97, 1, 2, 40, 1, 1, 100, 128};
    srnn_problem problem = problem_of(spec, T);
    attention_call whole, fed;
    srnn_state *state;
    assert_int_equal(probe_create(&whole, &problem, 5), SRNN_OK);
    assert_int_equal(probe_copy(&fed, &problem, &whole), SRNN_OK);
    assert_int_equal(call_forward(&whole), SRNN_OK);
    problem.T = LONGEST;
    assert_int_equal(srnn_state_create(&state, &problem), SRNN_OK);
    size_t full = 0;
    for (size_t n = 0; n < sizeof pieces / sizeof *pieces; n++) {
        feed(state, &fed, pieces[n]);
        if (srnn_state_position(state) < window)
            continue;
        full = full ? full : srnn_state_saved_bytes(state);
        assert_int_equal(srnn_state_saved_bytes(state), full); /* it no longer grows */
        if (n % 3 == 2)
            state = moved_state(state, problem, n % 2 ? LONGEST : 128);
    }
    assert_int_equal(srnn_state_position(state), T);
    assert_true(srnn_state_is_recurrent(state));
    assert_int_equal(srnn_state_bytes(&problem, T), srnn_state_bytes(&problem, 100 * T));
    const float *got = fed.host.o, *want = whole.host.o;
    for (int64_t n = 0; n < (int64_t)problem.B * problem.H * T * problem.Dv; n++)
        if (!(fabsf(got[n] - want[n]) <= 2e-5f * fmaxf(1, fabsf(want[n]))))
            fail_msg("%s: number %lld is %g, not %g", spec, (long long)n, (double)got[n],
                     (double)want[n]);
    srnn_state_free(state);
    call_free(&whole);
    call_free(&fed);
}

static void a_ring_holds_the_window(void **unused) {
    (void)unused;
    check_ring("window=1", 1);
    check_ring("window=5,sink=learned", 5);
    check_ring("window=100,decay=log_sigmoid", 100);
    check_ring("window=200,decay=given,cap=4", 200);
    check_ring("sigmoid,window=97,normaliser=row_length", 97);
    check_ring("score=linear,window=20,decay=log_sigmoid,decay_width=channel", 20); /* generic */
    check_ring("score=linear,window=20,position=rope_features,feature=elu1", 20);
}

/* ---- tokens outside of the window */

enum { HIDDEN_T = 250, WINDOW = 60 };

static void hidden_numbers_stay_hidden(void **unused) {
    (void)unused;
    static const char *const kernels[] = {"flash", "generic"};
    for (size_t n = 0; n < 2; n++) {
        srnn_problem problem = problem_of("window=60,sink=learned,cap=5", HIDDEN_T);
        attention_call call;
        problem.kernel = kernels[n];
        assert_int_equal(probe_create(&call, &problem, 5), SRNN_OK);
        float *k = call.host.operand[SR_OPERAND_K], *v = call.host.operand[SR_OPERAND_V];
        for (int h = 0; h < problem.B * problem.Hkv; h++) {
            k[(int64_t)h * HIDDEN_T * problem.D] = NAN;
            v[(int64_t)h * HIDDEN_T * problem.Dv] = INFINITY;
        }
        assert_int_equal(call_forward_backward(&call), SRNN_OK);
        const float *o = call.host.o, *d_q = call.host.gradient[SR_OPERAND_Q];
        for (int64_t row = 0; row < (int64_t)problem.B * problem.H * HIDDEN_T; row++) {
            const bool sees = row % HIDDEN_T < WINDOW;
            assert_int_equal(!isfinite(o[row * problem.Dv]), sees);
            assert_int_equal(!isfinite(d_q[row * problem.D]), sees);
        }
        call_free(&call);
    }
}

static void keys_learn_from_their_window(void **unused) {
    (void)unused;
    static const char *const kernels[] = {"flash", "generic"};
    enum { ROW = 199 };
    for (size_t n = 0; n < 2; n++) {
        srnn_problem problem = problem_of("window=60", HIDDEN_T);
        attention_call call;
        problem.kernel = kernels[n];
        assert_int_equal(probe_create(&call, &problem, 5), SRNN_OK);
        float *d_o = call.host.d_o;
        for (int64_t i = 0; i < (int64_t)problem.B * problem.H * HIDDEN_T * problem.Dv; i++)
            if (i / problem.Dv % HIDDEN_T != ROW)
                d_o[i] = 0;
        assert_int_equal(call_forward_backward(&call), SRNN_OK);
        const float *d_v = call.host.gradient[SR_OPERAND_V];
        for (int64_t row = 0; row < (int64_t)problem.B * problem.Hkv * HIDDEN_T; row++) {
            const int64_t j = row % HIDDEN_T;
            assert_int_equal(d_v[row * problem.Dv] != 0, j > ROW - WINDOW && j <= ROW);
        }
        call_free(&call);
    }
}

/* ---- one key, with a closed form */

/* One head, one token, q, k and v of one number; d_o is 1. */
static attention_call one_pair(const char *spec, const char *kernel, float q) {
    srnn_problem problem = {.B = 1, .H = 1, .T = 1, .D = 1, .kernel = kernel};
    attention_call call;
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    assert_int_equal(call_create(&call, &problem), SRNN_OK);
    *(float *)call.host.operand[SR_OPERAND_Q] = q;
    *(float *)call.host.operand[SR_OPERAND_K] = 1;
    *(float *)call.host.operand[SR_OPERAND_V] = 1;
    *(float *)call.host.d_o = 1;
    return call;
}

static void check_near(const char *what, const char *kernel, double at, float got, double want) {
    if (!(fabs((double)got - want) <= 4e-6 * fabs(want) + 1e-37))
        fail_msg("%s, %s at %g: %g, not %g", kernel, what, at, (double)got, want);
}

static void saturated_caps_have_slopes(void **unused) {
    (void)unused;
    static const char *const kernels[] = {"flash", "generic"};
    static const double ratios[] = {0, 1e-4, 0.2, 0.312, 0.313, 0.6, 1, 4, 9, 20, 40, 1e4};
    const double c = 50;
    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++) {
            const float q = (float)(ratios[i] * c);
            const double x = (double)q / c;
            attention_call call = one_pair("score=linear,normaliser=none,cap=50", kernels[n], q);
            assert_int_equal(call_forward_backward(&call), SRNN_OK);
            check_near("cap", kernels[n], x, *(float *)call.host.o, c * tanh(x));
            check_near("slope", kernels[n], x, *(float *)call.host.gradient[SR_OPERAND_Q],
                       pow(cosh(x), -2));
            call_free(&call);
        }
}

/* Rows of small logits have the same bits where a row of the same tile is far beyond the cap, which
 * is small enough that no row has its maximum subtracted. */
static void rows_are_capped_alone(void **unused) {
    (void)unused;
    enum { T = 200, LARGE = 150 };
    srnn_problem problem = problem_of("cap=30", T);
    attention_call small, large;
    problem.kernel = "flash";
    problem.B = problem.H = problem.Hkv = 1;
    assert_int_equal(probe_create(&small, &problem, 5), SRNN_OK);
    assert_int_equal(probe_copy(&large, &problem, &small), SRNN_OK);
    for (int c = 0; c < problem.D; c++)
        ((float *)large.host.operand[SR_OPERAND_Q])[LARGE * problem.D + c] *= 1e4f;
    memset((float *)large.host.d_o + LARGE * problem.Dv, 0, (size_t)problem.Dv * sizeof(float));
    memset((float *)small.host.d_o + LARGE * problem.Dv, 0, (size_t)problem.Dv * sizeof(float));
    assert_int_equal(call_forward_backward(&small), SRNN_OK);
    assert_int_equal(call_forward_backward(&large), SRNN_OK);
    for (int row = 0; row < T; row++) {
        const size_t at = (size_t)(row * problem.Dv), own = (size_t)(row * problem.D);
        if (row != LARGE) {
            assert_memory_equal((float *)small.host.o + at, (float *)large.host.o + at,
                                (size_t)problem.Dv * sizeof(float));
            assert_memory_equal((float *)small.host.gradient[SR_OPERAND_Q] + own,
                                (float *)large.host.gradient[SR_OPERAND_Q] + own,
                                (size_t)problem.D * sizeof(float));
        }
    }
    call_free(&small);
    call_free(&large);
}

static void sinks_of_any_size(void **unused) {
    (void)unused;
    static const char *const kernels[] = {"flash", "generic"};
    static const double logits[] = {-1000, -100, -50, -3, 0, 3, 50, 100, 1000};
    enum { LOGITS = sizeof logits / sizeof *logits };
    for (size_t n = 0; n < 2; n++)
        for (int i = 0; i < LOGITS * LOGITS; i++) {
            const double s = logits[i / LOGITS], b = logits[i % LOGITS];
            attention_call call = one_pair("sink=learned", kernels[n], (float)s);
            *(float *)call.host.operand[SR_OPERAND_SINKS] = (float)b;
            assert_int_equal(call_forward_backward(&call), SRNN_OK);
            const double e = exp(-fabs(s - b)), share = s > b ? 1 / (1 + e) : e / (1 + e);
            const double slope = e / (1 + e) / (1 + e);
            check_near("sink", kernels[n], s - b, *(float *)call.host.o, share);
            /* ds = y (1 - y): 1 - y is the difference of two gradients, relative to the larger */
            const double d_s = (double)*(float *)call.host.gradient[SR_OPERAND_Q];
            assert_true(fabs(d_s - slope) <= 1e-6 * share + 1e-37);
            check_near("gradient", kernels[n], s - b,
                       *(float *)call.host.gradient[SR_OPERAND_SINKS], -slope);
            call_free(&call);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_holds_the_window),
        cmocka_unit_test(hidden_numbers_stay_hidden),
        cmocka_unit_test(keys_learn_from_their_window),
        cmocka_unit_test(saturated_caps_have_slopes),
        cmocka_unit_test(rows_are_capped_alone),
        cmocka_unit_test(sinks_of_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
