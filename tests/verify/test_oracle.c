/* test_oracle.c: the oracle's derivatives match differences of its values, and every kernel agrees
 * with it over random combinations of all axes. */
#include "base/random.h"
#include "equation/axes.h"
#include "test.h"
#include "verify/oracle/oracle.h"
#include "verify/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COMBINATIONS = 200, DIRECTIONS = 3 };

static const int64_t offsets[] = {0, 3, 7, 14};

static srnn_problem small_problem(srnn_attention attention) {
    return (srnn_problem){.attention = attention,
                          .dtype = SRNN_F64,
                          .B = 2,
                          .H = 4,
                          .Hkv = 2,
                          .T = 7,
                          .D = 3,
                          .Dv = 5,
                          .offsets = offsets,
                          .documents = 3};
}

static const char *text_of(const srnn_attention *a) {
    static char text[1024];
    srnn_attention_print(text, sizeof text, a);
    return text;
}

/* ---- derivatives of the oracle */

static double loss(attention_call *call) {
    const srnn_operands in = call_operands(call);
    assert_int_equal(sr_oracle_run(call->host.o, NULL, NULL, &call->problem, &in), SRNN_OK);
    const sr_shape shape = sr_output_shape(&call->problem);
    double sum = 0;
    for (int64_t n = 0; n < sr_shape_numbers(&shape); n++)
        sum += ((double *)call->host.o)[n] * ((double *)call->host.d_o)[n];
    return sum;
}

static double sign_of(uint64_t direction, int64_t n) {
    return sr_random_uniform(23, direction, (uint64_t)n) < 0.5 ? -1 : 1;
}

/* The loss with all elements of the operand moved by `step` in a direction of signs. */
static double loss_along(attention_call *call, sr_operand which, const double *from,
                         uint64_t direction, double step) {
    const sr_shape shape = sr_operand_shape(which, &call->problem);
    for (int64_t n = 0; n < sr_shape_numbers(&shape); n++)
        ((double *)call->host.operand[which])[n] = from[n] + step * sign_of(direction, n);
    return loss(call);
}

/* The derivative along some directions of random signs: a wrong element of the gradient shows in
 * each of them. */
static void check_derivative(attention_call *call, sr_operand which) {
    const sr_shape shape = sr_operand_shape(which, &call->problem);
    const int64_t numbers = sr_shape_numbers(&shape);
    const double step = 1e-4,
                 *gradient = call->host.gradient[which]; /* of a difference of the fourth order */
    double *from = malloc((size_t)numbers * sizeof *from), norm = 0;
    assert_non_null(from);
    memcpy(from, call->host.operand[which], (size_t)numbers * sizeof *from);
    for (int64_t n = 0; n < numbers; n++)
        norm += gradient[n] * gradient[n];
    for (uint64_t direction = 0; direction < DIRECTIONS; direction++) {
        double at[4], along = 0;
        for (int i = 0; i < 4; i++)
            at[i] = loss_along(call, which, from, direction, step * (i < 2 ? i - 2 : i - 1));
        for (int64_t n = 0; n < numbers; n++)
            along += gradient[n] * sign_of(direction, n);
        const double central = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * step);
        if (!(fabs(along - central) <= 1e-6 * sqrt(norm) + 1e-9 * fabs(at[2])))
            fail_msg("%s: derivative by %s is off by %g of %g", text_of(&call->problem.attention),
                     sr_operand_at(which)->name, fabs(along - central), sqrt(norm));
    }
    memcpy(call->host.operand[which], from, (size_t)numbers * sizeof *from);
    free(from);
}

/* Probes of clamped scores are on a grid, and therefore on the kink of relu. */
static void leave_grid(attention_call *call, sr_operand which) {
    const sr_shape shape = sr_operand_shape(which, &call->problem);
    for (int64_t n = 0; n < sr_shape_numbers(&shape); n++)
        ((double *)call->host.operand[which])[n] += 0.03 * sr_random_normal(7, which, (uint64_t)n);
}

/* Numbers far enough from the edges of the equation that the steps below do not cross one. */
static void draw_clear(attention_call *call, const srnn_problem *problem, uint64_t seed) {
    static const double CLEAR = 3e-3;
    enum { ATTEMPTS = 64 };
    double clearance = 0;
    for (uint64_t attempt = 0;; attempt++) {
        assert_int_equal(probe_create(call, problem, seed + (attempt << 32)), SRNN_OK);
        leave_grid(call, SR_OPERAND_Q);
        leave_grid(call, SR_OPERAND_K);
        const srnn_operands in = call_operands(call), gradients = call_gradients(call);
        assert_int_equal(sr_oracle_run_clear(call->host.o, &gradients, call->host.d_o,
                                             &call->problem, &in, &clearance),
                         SRNN_OK);
        if (clearance >= CLEAR || attempt == ATTEMPTS)
            return;
        call_free(call);
    }
}

/* A detached normaliser cannot be compared with differences. */
static void check_derivatives(srnn_attention a, uint64_t seed) {
    a.detach = false;
    const srnn_problem problem = small_problem(a);
    attention_call call;
    draw_clear(&call, &problem, seed);
    for (int which = 0; which < SR_OPERANDS; which++)
        if (call.host.gradient[which])
            check_derivative(&call, (sr_operand)which);
    call_free(&call);
}

static void derivatives_are_those_of_the_values(void **state) {
    (void)state;
    for (size_t n = 0; srnn_variant_at(n); n++)
        check_derivatives(srnn_variant_at(n)->attention, 11 + n);
    for (uint64_t seed = 0; seed < COMBINATIONS / 4; seed++)
        check_derivatives(probe_attention(seed), seed);
}

/* ---- kernels */

static void check_kernel(srnn_problem problem, const attention_call *oracle) {
    attention_call run;
    assert_int_equal(probe_copy(&run, &problem, oracle), SRNN_OK);
    const srnn_status status = call_forward_backward(&run);
    if (status == SRNN_ERR_UNSUPPORTED) {
        call_free(&run);
        return;
    }
    assert_int_equal(status, SRNN_OK);
    const double error = fmax(probe_output_error(&run, oracle), probe_gradient_error(&run, oracle));
    if (!(error <= 1e-11))
        fail_msg("%s, kernel %s: off by %g", text_of(&problem.attention), run.kernel, error);
    call_free(&run);
}

static void kernels_agree_on_random_combinations(void **state) {
    (void)state;
    static const char *const kernels[] = {"generic", "flash", "pooled", "chunked", "linear"};
    for (uint64_t seed = 0; seed < COMBINATIONS; seed++) {
        srnn_problem problem = small_problem(probe_attention(seed));
        attention_call oracle;
        if (probe_oracle(&oracle, &problem, seed) != SRNN_OK)
            fail_msg("%s: %s", text_of(&problem.attention), srnn_error_detail());
        for (size_t n = 0; n < sizeof kernels / sizeof *kernels; n++) {
            problem.kernel = kernels[n];
            problem.chunk = 3;
            check_kernel(problem, &oracle);
        }
        call_free(&oracle);
    }
}

/* Gates near one leave little of each token, which must have the precision of the gates. */
static void pool_gates_near_one(void **state) {
    (void)state;
    srnn_problem problem = {.B = 1, .H = 2, .Hkv = 2, .T = 37, .D = 16, .Dv = 16};
    attention_call oracle, run;
    assert_int_equal(srnn_attention_parse(&problem.attention, "softmax,pool=4"), SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &problem, 1), SRNN_OK);
    const sr_shape shape = sr_operand_shape(SR_OPERAND_POOL_GATE, &oracle.problem);
    for (int64_t n = 0; n < sr_shape_numbers(&shape); n++)
        ((double *)oracle.host.operand[SR_OPERAND_POOL_GATE])[n] =
            (double)(float)(10 + 0.3 * sr_random_normal(3, 0, (uint64_t)n));
    assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
    static const char *const kernels[] = {"generic", "pooled"};
    for (size_t n = 0; n < sizeof kernels / sizeof *kernels; n++) {
        problem.kernel = kernels[n];
        assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
        assert_int_equal(call_forward_backward(&run), SRNN_OK);
        const double output = probe_output_error(&run, &oracle),
                     gradient = probe_gradient_error(&run, &oracle);
        if (!(output <= 1e-6 && gradient <= 1e-5))
            fail_msg("kernel %s: output off by %g, gradients by %g", run.kernel, output, gradient);
        call_free(&run);
    }
    call_free(&oracle);
}

/* A decay of 11 at every token, and one of hundreds at one: the weight of a key for earlier queries
 * would overflow float, and must be zero. */
static void check_steep_decay(const char *name, float a_log, float once) {
    srnn_problem problem = {.B = 1, .H = 1, .Hkv = 1, .T = 70, .D = 16, .Dv = 16};
    attention_call oracle, run;
    assert_int_equal(srnn_attention_parse(&problem.attention, name), SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &problem, 1), SRNN_OK);
    const sr_shape shape = sr_operand_shape(SR_OPERAND_DECAY, &oracle.problem);
    double *decay = oracle.host.operand[SR_OPERAND_DECAY];
    *(double *)oracle.host.operand[SR_OPERAND_A_LOG] = (double)a_log;
    for (int64_t n = 0; n < sr_shape_numbers(&shape); n++)
        decay[n] = n == 20 ? (double)once : 0;
    assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
    problem.kernel = "linear";
    assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    const double output = probe_output_error(&run, &oracle),
                 gradient = probe_gradient_error(&run, &oracle);
    /* with levels it exceeds the limit, as hardly anything is left of a key */
    probe_errors plain;
    assert_int_equal(probe_plain_errors(&plain, &problem, &oracle), SRNN_OK);
    const double limit = fmax(probe_limit(&problem, SRNN_FORM_CHUNKED), 2 * probe_worst(&plain));
    if (!(output <= limit && gradient <= limit))
        fail_msg("%s: output off by %g, gradients by %g", name, output, gradient);
    call_free(&run);
    call_free(&oracle);
}

static void check_wide_values(const char *name, srnn_form form) {
    srnn_problem problem = {.B = 1, .H = 2, .Hkv = 2, .T = 21, .D = 12, .Dv = 512, .form = form};
    attention_call oracle, run;
    assert_int_equal(srnn_attention_parse(&problem.attention, name), SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &problem, 1), SRNN_OK);
    assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    const probe_errors errors = probe_errors_of(&run, &oracle, true);
    if (!(probe_worst(&errors) <= probe_limit(&problem, form)))
        fail_msg("%s, %s: off by %g", name, run.kernel, probe_worst(&errors));
    assert_int_equal(probe_feed(&run, 1), SRNN_OK);
    const double fed = probe_output_error(&run, &oracle);
    if (!(fed <= probe_limit(&problem, SRNN_FORM_RECURRENT)))
        fail_msg("%s, fed: off by %g", name, fed);
    call_free(&run);
    call_free(&oracle);
}

/* As in published models of gla and gated_delta_net. */
static void wide_values(void **state) {
    (void)state;
    static const char *const parallel[] = {"softmax",         "norm",      "mamba2", "gla",
                                           "gated_delta_net", "rat,pool=4"};
    static const char *const chunked[] = {"linear_elu",        "power", "mamba2",
                                          "log_linear_mamba2", "gla",   "gated_delta_net"};
    for (size_t n = 0; n < sizeof parallel / sizeof *parallel; n++)
        check_wide_values(parallel[n], SRNN_FORM_PARALLEL);
    for (size_t n = 0; n < sizeof chunked / sizeof *chunked; n++)
        check_wide_values(chunked[n], SRNN_FORM_CHUNKED);
}

/* A combination, its operands, and a way to compute it. */
typedef struct cancelling_case {
    const char *attention, *kernel;
    uint64_t seed;
    int chunk;
    bool ungrouped; /* each head has its own keys */
    double limit;
} cancelling_case;

/* Gradients whose terms cancel, leaving only rounding errors: of a skip's weight if the skip is a
 * norm's only input, of the gates of heads that are normalised separately, and of pairs behind the
 * same gate, especially each token's with itself. */
static void cancelling_terms(void **state) {
    (void)state;
    static const cancelling_case cases[] = {
        {"score=linear,feature=norm_cosine,decay=softplus,decay_place=logit,pool=1,"
         "normaliser=row_length,skip=head,norm=layer",
         "generic", 60157, 0, false, 1e-6},
        {"score=exp,share=qk,feature=unit_heads,normaliser=row_length,output_gate=inverse_exp,"
         "norm=l2_scaled,norm_width=row",
         "flash", 60266, 0, true, 1e-6},
        {"score=taylor:4,scale=one,feature=unit,decay=log_sigmoid,decay_divisor=1.75,value_gate,"
         "epsilon=1.75",
         "chunked", 30339, 1, false, 2e-5},
        {"score=exp,feature=elu1,decay=log_sigmoid,value_gate,normaliser=none,"
         "output_gate=inverse_cumulative",
         "flash", 106653, 0, false, 5e-6},
        {"score=exp,share=qk_tiled,feature=elu1,decay=softplus,decay_place=logit,"
         "value_gate=time_step,normaliser=row_sum_min1,detach,epsilon=2.75,skip=channel",
         "flash", 1222117, 0, true, 2e-6},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const bool heads = cases[n].ungrouped;
        srnn_problem problem = {.B = heads ? 1 : 2,
                                .H = heads ? 2 : 4,
                                .Hkv = 2,
                                .T = heads ? 97 : 67,
                                .D = heads ? 16 : 20,
                                .Dv = heads ? 16 : 12,
                                .kernel = cases[n].kernel,
                                .chunk = cases[n].chunk};
        attention_call oracle, run;
        assert_int_equal(srnn_attention_parse(&problem.attention, cases[n].attention), SRNN_OK);
        assert_int_equal(probe_oracle(&oracle, &problem, cases[n].seed), SRNN_OK);
        assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
        assert_int_equal(call_forward_backward(&run), SRNN_OK);
        const double error = probe_gradient_error(&run, &oracle);
        if (!(error <= cases[n].limit))
            fail_msg("%s: gradients off by %g", cases[n].attention, error);
        call_free(&run);
        call_free(&oracle);
    }
}

static void steep_decays(void **state) {
    (void)state;
    static const char *const names[] = {"mamba2", "gated_delta_net", "log_linear_mamba2"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        check_steep_decay(names[n], 2.77F, 0);
        check_steep_decay(names[n], 0, 200);
    }
}

/* The combinations above contain every word of every axis of the equation at least once. */
static void combinations_cover_every_axis(void **state) {
    (void)state;
    const sr_axis *axis;
    for (size_t i = 0; (axis = sr_axis_at(i)); i++) {
        unsigned seen = 0; /* of numbers: whether there is one */
        const bool words = axis->kind == SR_AXIS_WORD || axis->kind == SR_AXIS_SWITCH;
        for (uint64_t seed = 0; seed < COMBINATIONS; seed++) {
            const srnn_attention a = probe_attention(seed);
            const double value = sr_axis_value(axis, &a);
            seen |= 1U << (words ? (unsigned)value : value != 0);
        }
        const unsigned wanted = words ? (1U << sr_axis_words(axis)) - 1 : 3U;
        const bool outside = axis->of == SR_AXIS_OF_LAYER;
        if (!outside && (seen & wanted) != wanted)
            fail_msg("%s: the combinations have values %x of %x", axis->name, seen, wanted);
    }
}

/* ---- the oracle as a plain computation in bf16 */

static double plain_error(const srnn_problem *p) {
    attention_call oracle;
    probe_errors errors;
    assert_int_equal(probe_oracle(&oracle, p, 1), SRNN_OK);
    assert_int_equal(probe_plain_errors(&errors, p, &oracle), SRNN_OK);
    call_free(&oracle);
    return probe_worst(&errors);
}

/* With one key hardly anything is rounded; with many the weights are, and the error is that of
 * bf16: larger than float's, smaller than a mistake's. */
static void plain_bf16(void **state) {
    (void)state;
    srnn_problem p = {.dtype = SRNN_BF16, .B = 1, .H = 2, .Hkv = 2, .T = 1, .D = 8, .Dv = 8};
    assert_true(plain_error(&p) < 0x1p-8);
    p.T = 40;
    const double error = plain_error(&p);
    assert_true(error > 1e-3 && error < 2e-2);
}

/* What the delta rule writes is an operand of products: 1.5 (1 + 2^-7) is between two numbers of
 * bf16, and so are outputs, 1.5 times that; rounded once, they are the lower one. */
static void plain_delta_rule(void **state) {
    (void)state;
    srnn_problem p = {.dtype = SRNN_F64, .B = 1, .H = 1, .Hkv = 1, .T = 1, .D = 2, .Dv = 1};
    attention_call call;
    assert_int_equal(srnn_attention_parse(&p.attention,
                                          "score=linear,position=none,scale=one,write=delta,"
                                          "write_gate=given,normaliser=none"),
                     SRNN_OK);
    assert_int_equal(probe_create(&call, &p, 1), SRNN_OK);
    double *q = call.host.operand[SR_OPERAND_Q], *k = call.host.operand[SR_OPERAND_K];
    q[0] = 1.5;
    k[0] = 1;
    q[1] = k[1] = 0;
    *(double *)call.host.operand[SR_OPERAND_V] = 1.5;
    *(double *)call.host.operand[SR_OPERAND_WRITE_GATE] = 1 + 0x1p-7;
    const srnn_operands in = call_operands(&call);
    p = call.problem;
    p.dtype = SRNN_BF16;
    assert_int_equal(sr_oracle_run(call.host.o, NULL, NULL, &p, &in), SRNN_OK);
    assert_true(*(double *)call.host.o == 146 * 0x1p-6);
    p.attention.write = SRNN_WRITE_ADD;
    assert_int_equal(sr_oracle_run(call.host.o, NULL, NULL, &p, &in), SRNN_OK);
    assert_true(*(double *)call.host.o == 2.25);
    call_free(&call);
}

/* The output of the last of `tokens` rows, whose query (1, 1) is orthogonal to the first key,
 * (1, -1), where all other keys are 0: the largest over some seeds of the error of a state. */
static double read_from_state(int tokens, srnn_dtype dtype) {
    srnn_problem p = {.dtype = SRNN_F64, .B = 1, .H = 1, .Hkv = 1, .T = tokens, .D = 2, .Dv = 1};
    attention_call call;
    double largest = 0;
    assert_int_equal(srnn_attention_parse(&p.attention, "score=linear,position=none,scale=one,"
                                                        "normaliser=none"),
                     SRNN_OK);
    assert_int_equal(probe_create(&call, &p, 1), SRNN_OK);
    double *k = call.host.operand[SR_OPERAND_K], *v = call.host.operand[SR_OPERAND_V];
    for (int t = 0; t < tokens; t++) {
        double *q = (double *)call.host.operand[SR_OPERAND_Q] + (ptrdiff_t)2 * t;
        k[2 * t] = t == 0;
        k[2 * t + 1] = -(t == 0);
        v[t] = 1;
        q[0] = q[1] = 1;
    }
    const srnn_operands in = call_operands(&call);
    p = call.problem;
    p.dtype = dtype;
    for (uint64_t seed = 1; seed < 8; seed++) {
        assert_int_equal(sr_oracle_run_rounded(call.host.o, NULL, NULL, &p, &in, 1, seed), SRNN_OK);
        largest = fmax(largest, fabs(((double *)call.host.o)[tokens - 1]));
    }
    call_free(&call);
    return largest;
}

/* In bf16 tokens of a chunk of 64 read each other by pairs. */
static void states_are_rounded(void **state) {
    (void)state;
    assert_true(read_from_state(65, SRNN_BF16) == 0x1p-8);
    assert_true(read_from_state(64, SRNN_BF16) == 0);
    assert_true(read_from_state(64, SRNN_F64) == 0x1p-23);
}

/* Gradients of a value power, a number per head, as plain computations at other scales find them:
 * all have errors of the size of bf16's, no two the same. Errors up to twice the largest of them
 * pass, larger ones do not, whatever other tensors lose, and numbers that are not finite never. */
static void plain_at_other_scales(void **state) {
    (void)state;
    srnn_problem p = {.dtype = SRNN_BF16, .B = 1, .H = 2, .Hkv = 2, .T = 40, .D = 8, .Dv = 8};
    attention_call oracle;
    probe_errors first;
    probe_plain plain = {.count = 0};
    bool is;
    assert_int_equal(srnn_attention_parse(&p.attention, "linear_cosine_intended"), SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &p, 1), SRNN_OK);
    assert_int_equal(probe_plain_errors(&first, &p, &oracle), SRNN_OK);
    assert_int_equal(probe_is_plain(&is, &plain, &first, 0, &p, &oracle), SRNN_OK);
    assert_true(is && plain.count >= 1);
    probe_errors wrong = {.of[SR_OPERAND_VALUE_POWER] = 1};
    assert_int_equal(probe_is_plain(&is, &plain, &wrong, 0, &p, &oracle), SRNN_OK);
    assert_true(!is && plain.count == 32);
    const double power = plain.worst.of[SR_OPERAND_VALUE_POWER];
    assert_true(power > 1e-3 && power < 0.1 && power > first.of[SR_OPERAND_VALUE_POWER]);
    assert_true(plain.worst.of[SR_OPERAND_V] < 1.5 * first.of[SR_OPERAND_V]);
    wrong.of[SR_OPERAND_VALUE_POWER] = probe_plain_limit(power);
    assert_int_equal(probe_is_plain(&is, &plain, &wrong, 0, &p, &oracle), SRNN_OK);
    assert_true(is);
    wrong.of[SR_OPERAND_V] = probe_plain_limit(power);
    assert_int_equal(probe_is_plain(&is, &plain, &wrong, 0, &p, &oracle), SRNN_OK);
    assert_false(is);
    wrong.of[SR_OPERAND_V] = (double)NAN;
    assert_int_equal(probe_is_plain(&is, &plain, &wrong, 1, &p, &oracle), SRNN_OK);
    assert_false(is);
    plain.worst.of[SR_OPERAND_V] = (double)INFINITY;
    wrong.of[SR_OPERAND_V] = (double)INFINITY;
    assert_int_equal(probe_is_plain(&is, &plain, &wrong, 1, &p, &oracle), SRNN_OK);
    assert_false(is);
    call_free(&oracle);
}

/* ---- errors that any computation has */

/* If the right result is zero, any other is infinitely wrong, also a plain computation's. */
static void nothing_infinite_is_excused(void **state) {
    (void)state;
    enum { T = 5, D = 4 };
    const srnn_problem p = {.dtype = SRNN_F32, .B = 1, .H = 1, .Hkv = 1, .T = T, .D = D, .Dv = D};
    attention_call oracle;
    probe_errors losses, errors;
    assert_int_equal(probe_oracle(&oracle, &p, 1), SRNN_OK);
    assert_int_equal(probe_find_losses(&losses, &p, &oracle), SRNN_OK);
    errors = losses;
    assert_true(probe_worst(&errors) > 0 && probe_is_excused(&errors, &losses, 0));
    errors.of[PROBE_OUTPUT] *= 16.1;
    assert_false(probe_is_excused(&errors, &losses, 0));
    memset(oracle.host.o, 0, T * D * sizeof(double));
    assert_int_equal(probe_find_losses(&losses, &p, &oracle), SRNN_OK);
    assert_true(isinf(losses.of[PROBE_OUTPUT]));
    assert_false(probe_is_excused(&losses, &losses, 1e-5));
    losses.of[PROBE_OUTPUT] = (double)NAN;
    assert_false(probe_is_excused(&losses, &losses, 1e-5));
    call_free(&oracle);
}

/* exp(s_ij) of softmax without positions, for the one head of a call. */
static double softmax_weight(const attention_call *call, int i, int j) {
    const int D = call->problem.D;
    const double *q = call->host.operand[SR_OPERAND_Q], *k = call->host.operand[SR_OPERAND_K];
    double s = 0;
    for (int d = 0; d < D; d++)
        s += q[i * D + d] * k[j * D + d];
    return exp(s / sqrt((double)D));
}

/* A kernel that multiplies the weight of one key in `every` by `factor`, in rows from `first`
 * on. */
typedef struct fault {
    int first, every;
    double factor;
} fault;

static void run_with_fault(attention_call *call, fault wrong) {
    const int T = call->problem.T, Dv = call->problem.Dv;
    const double *v = call->host.operand[SR_OPERAND_V];
    double *o = call->host.o;
    for (int i = wrong.first; i < T; i++) {
        double sum = 0;
        memset(o + (size_t)i * (size_t)Dv, 0, (size_t)Dv * sizeof *o);
        for (int j = 0; j <= i; j++) {
            const bool hit = j % wrong.every == wrong.every - 1;
            const double w = softmax_weight(call, i, j) * (hit ? wrong.factor : 1);
            sum += w;
            for (int d = 0; d < Dv; d++)
                o[i * Dv + d] += w * v[j * Dv + d];
        }
        for (int d = 0; d < Dv; d++)
            o[i * Dv + d] /= sum;
    }
}

/* Whether a kernel with this fault in softmax over T tokens would pass. */
static bool passes(int T, fault wrong) {
    srnn_problem p = {.dtype = SRNN_F32, .B = 1, .H = 1, .Hkv = 1, .T = T, .D = 16, .Dv = 16};
    attention_call oracle, run;
    probe_errors losses;
    assert_int_equal(srnn_attention_parse(&p.attention, "softmax,position=none"), SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &p, 3), SRNN_OK);
    assert_int_equal(probe_find_losses(&losses, &p, &oracle), SRNN_OK);
    assert_int_equal(probe_copy(&run, &oracle.problem, &oracle), SRNN_OK);
    assert_int_equal(probe_oracle_run(&run), SRNN_OK);
    run_with_fault(&run, wrong);
    const probe_errors errors = probe_errors_of(&run, &oracle, true);
    const double limit = probe_limit(&p, SRNN_FORM_PARALLEL);
    call_free(&run);
    call_free(&oracle);
    return probe_worst(&errors) <= limit || probe_is_excused(&errors, &losses, limit);
}

/* One weight with an error of 1e-4 in one row, and one key in a hundred that is ignored. */
static void little_that_is_wrong_is_refused(void **state) {
    (void)state;
    assert_true(passes(2, (fault){1, 2, 1}));
    assert_false(passes(2, (fault){1, 2, 1 + 1e-4}));
    assert_true(passes(129, (fault){99, 100, 1}));
    assert_false(passes(129, (fault){99, 100, 0}));
}

/* Pairs exactly at the clamp, where the slope jumps: that excuses no error. */
static void clamps_excuse_nothing(void **state) {
    (void)state;
    static const char *const clamped[] = {"gate", "softmax_divs", "softmax_clamp_denom"};
    for (size_t n = 0; n < sizeof clamped / sizeof *clamped; n++) {
        srnn_problem p = {.dtype = SRNN_F32, .B = 1, .H = 2, .Hkv = 2, .T = 129, .D = 64, .Dv = 64};
        attention_call oracle;
        probe_errors losses, errors;
        assert_int_equal(srnn_attention_parse(&p.attention, clamped[n]), SRNN_OK);
        assert_true(p.attention.clamp > 0);
        assert_int_equal(probe_oracle(&oracle, &p, 1), SRNN_OK);
        assert_int_equal(probe_find_losses(&losses, &p, &oracle), SRNN_OK);
        for (int tensor = 0; tensor < PROBE_TENSORS; tensor++) {
            errors = (probe_errors){{0}};
            errors.of[tensor] = 2e-5;
            assert_false(probe_is_excused(&errors, &losses, 1e-5));
        }
        call_free(&oracle);
    }
}

/* The weight of a power or a series of that order, with one product of the state, that of the first
 * channels, multiplied by `factor`. */
static double expanded_weight(const attention_call *call, int i, int j, double factor) {
    const int D = call->problem.D, order = call->problem.attention.order;
    const bool power = call->problem.attention.score == SRNN_SCORE_POWER;
    const double *q = call->host.operand[SR_OPERAND_Q], *k = call->host.operand[SR_OPERAND_K];
    double s = 0, product = factor - 1, term = 1, sum = 1;
    for (int d = 0; d < D; d++)
        s += q[i * D + d] * k[j * D + d] / sqrt((double)D);
    for (int n = 1; n <= order; n++) {
        product *= q[i * D + n - 1] * k[j * D + n - 1] / sqrt((double)D) * (power ? n : 1);
        term *= power ? s : s / n;
        sum += term;
    }
    return (power ? term : sum) + product;
}

/* Whether a kernel whose state has one product too large by `factor`, before an l2 norm, would be
 * excused at any limit. */
static bool is_excused_through_state(const char *name, uint64_t seed, double factor) {
    enum { T = 41, D = 6 };
    srnn_problem p = {.dtype = SRNN_F32,
                      .form = SRNN_FORM_CHUNKED,
                      .B = 1,
                      .H = 1,
                      .Hkv = 1,
                      .T = T,
                      .D = D,
                      .Dv = D};
    attention_call oracle, run;
    probe_errors losses;
    assert_int_equal(srnn_attention_parse(&p.attention, name), SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &p, seed), SRNN_OK);
    for (int n = 0; n < T * D; n++) /* long enough that the highest order of a series matters */
        ((double *)oracle.host.operand[SR_OPERAND_Q])[n] *= 4;
    assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
    assert_int_equal(probe_find_losses(&losses, &p, &oracle), SRNN_OK);
    assert_int_equal(probe_copy(&run, &oracle.problem, &oracle), SRNN_OK);
    assert_int_equal(probe_oracle_run(&run), SRNN_OK);
    const double *v = run.host.operand[SR_OPERAND_V];
    for (int i = 0; i < T; i++) {
        double row[D] = {0}, square = 0;
        for (int j = 0; j <= i; j++)
            for (int d = 0; d < D; d++)
                row[d] += expanded_weight(&run, i, j, factor) * v[j * D + d];
        for (int d = 0; d < D; d++)
            square += row[d] * row[d];
        for (int d = 0; d < D; d++)
            ((double *)run.host.o)[i * D + d] = row[d] / sqrt(square);
    }
    const probe_errors errors = probe_errors_of(&run, &oracle, true);
    call_free(&run);
    call_free(&oracle);
    return probe_is_excused(&errors, &losses, 0);
}

/* The unavoidable error of float states excuses neither a coefficient with an error of 1e-3 nor a
 * missing product. */
static void states_excuse_no_fault(void **state) {
    (void)state;
    static const char *const names[] = {
        "score=power:3,position=none,normaliser=none,norm=l2",
        "score=power:4,position=none,normaliser=none,norm=l2",
        "score=taylor:4,position=none,normaliser=none,norm=l2",
    };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (uint64_t seed = 1; seed <= 20; seed++) {
            assert_true(is_excused_through_state(names[n], seed, 1));
            if (is_excused_through_state(names[n], seed, 1 + 1e-3) ||
                is_excused_through_state(names[n], seed, 0))
                fail_msg("%s, seed %d: excused", names[n], (int)seed);
        }
}

/* (q k)^p may be small although the products in a state are not. That precision is lost in any
 * float state, which computes no pair separately, and is excused only there. */
static void states_lose_what_pairs_do_not(void **state) {
    (void)state;
    static const int64_t documents[] = {0, 1, 18, 35, 97};
    srnn_problem p = {.B = 1,
                      .H = 2,
                      .Hkv = 2,
                      .T = 97,
                      .D = 16,
                      .Dv = 16,
                      .offsets = documents,
                      .documents = 4,
                      .chunk = 1,
                      .form = SRNN_FORM_CHUNKED};
    attention_call oracle, run;
    probe_errors by_state, by_pairs;
    assert_int_equal(srnn_attention_parse(
                         &p.attention, "score=power:3,normaliser=none,epsilon=2.75,norm=l2_scaled"),
                     SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &p, 1081475), SRNN_OK);
    assert_int_equal(probe_copy(&run, &p, &oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    const probe_errors errors = probe_errors_of(&run, &oracle, true);
    const double limit = probe_limit(&p, SRNN_FORM_CHUNKED);
    assert_int_equal(probe_find_losses(&by_state, &p, &oracle), SRNN_OK);
    p.form = SRNN_FORM_PARALLEL;
    assert_int_equal(probe_find_losses(&by_pairs, &p, &oracle), SRNN_OK);
    assert_true(probe_is_excused(&errors, &by_state, limit));
    assert_false(probe_is_excused(&errors, &by_pairs, limit));
    call_free(&run);
    call_free(&oracle);
}

/* The gradient of one value power is -0.0122, of terms whose sizes add up to 33.3, where rows are
 * divided by their lengths. 4.2e-6, half an ulp of these terms in float, is what a GPU was off.
 * Operands half an ulp off change it by less, since rows follow them. */
static void a_norm_loses_what_operands_do_not(void **state) {
    (void)state;
    srnn_problem p = {.B = 1, .H = 4, .Hkv = 1, .T = 127, .D = 8, .Dv = 64};
    attention_call oracle;
    probe_errors losses, errors = {{0}};
    assert_int_equal(srnn_attention_parse(&p.attention,
                                          "score=exp,feature=elu1,decay=softplus,"
                                          "value_gate=time_step,levels=fenwick,"
                                          "normaliser=value_power,norm=l2,norm_width=row"),
                     SRNN_OK);
    assert_int_equal(probe_oracle(&oracle, &p, 496), SRNN_OK);
    assert_int_equal(probe_find_losses(&losses, &p, &oracle), SRNN_OK);
    errors.of[SR_OPERAND_VALUE_POWER] = 3.4e-4;
    assert_true(probe_is_excused(&errors, &losses, 1e-4));
    errors.of[SR_OPERAND_VALUE_POWER] = 1.1e-3;
    assert_false(probe_is_excused(&errors, &losses, 1e-4));
    call_free(&oracle);
}

/* Combinations with exp whose sums, or the delta rule itself, once left the range of float; and,
 * the last, one in which a pair was once closer to the clamp than float resolves. */
static void draws_are_in_range(void **state) {
    (void)state;
    static const uint64_t seeds[] = {9094,  9104,  9148,    9218,    20277,
                                     20298, 20605, 1020717, 1041272, 1263304};
    for (size_t n = 0; n < sizeof seeds / sizeof *seeds; n++) {
        const srnn_problem p = {.attention = probe_attention(seeds[n]),
                                .dtype = SRNN_F32,
                                .B = 2,
                                .H = 4,
                                .Hkv = 2,
                                .T = 67,
                                .D = 20,
                                .Dv = 12};
        attention_call oracle, run;
        assert_int_equal(probe_oracle(&oracle, &p, seeds[n]), SRNN_OK);
        assert_int_equal(probe_copy(&run, &p, &oracle), SRNN_OK);
        if (call_forward_backward(&run) != SRNN_OK)
            fail_msg("%s: %s", text_of(&p.attention), srnn_error_detail());
        const probe_errors errors = probe_errors_of(&run, &oracle, true);
        if (!(probe_worst(&errors) <= probe_limit(&p, SRNN_FORM_PARALLEL)))
            fail_msg("%s: off by %g", text_of(&p.attention), probe_worst(&errors));
        call_free(&run);
        call_free(&oracle);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_bf16),
        cmocka_unit_test(plain_delta_rule),
        cmocka_unit_test(plain_at_other_scales),
        cmocka_unit_test(states_are_rounded),
        cmocka_unit_test(nothing_infinite_is_excused),
        cmocka_unit_test(little_that_is_wrong_is_refused),
        cmocka_unit_test(clamps_excuse_nothing),
        cmocka_unit_test(states_excuse_no_fault),
        cmocka_unit_test(states_lose_what_pairs_do_not),
        cmocka_unit_test(a_norm_loses_what_operands_do_not),
        cmocka_unit_test(draws_are_in_range),
        cmocka_unit_test(derivatives_are_those_of_the_values),
        cmocka_unit_test(kernels_agree_on_random_combinations),
        cmocka_unit_test(pool_gates_near_one),
        cmocka_unit_test(steep_decays),
        cmocka_unit_test(wide_values),
        cmocka_unit_test(cancelling_terms),
        cmocka_unit_test(combinations_cover_every_axis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
