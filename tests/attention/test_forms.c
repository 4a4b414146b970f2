/* test_forms.c: all forms compute the same function, up to rounding in double, bit for bit over
 * threads. */
#include "equation/facts.h"
#include "test.h"
#include "verify/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Besides the table: families and combinations that have a state. */
static const char *const with_states[] = {
    "order:1",
    "order:2",
    "order:4",
    "elu:2",
    "relu:2",
    "cosine:3",
    "power:2",
    "power:3,normaliser=row_length",
    "linear_elu,decay,value_gate,output_gate,norm=rms",
    "order:2,decay,value_gate,output_gate,post_gate,norm=l2",
    "order:2,value_gate,normaliser=cumulative_gate,norm=layer",
};

enum { COMBINATIONS = sizeof with_states / sizeof *with_states };

/* The text of case n: the named variants, then the combinations; NULL past the end. */
static const char *spec_at(size_t n) {
    size_t named = 0;
    while (srnn_variant_at(named))
        named++;
    if (n < named)
        return srnn_variant_at(n)->name;
    return n - named < COMBINATIONS ? with_states[n - named] : NULL;
}

static srnn_problem problem_of(const char *spec) {
    srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = 101, .D = 6, .Dv = 10};
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    return problem;
}

/* ---- double forms agree to 1e-12 ---- */

static void check_double(const char *spec, srnn_problem problem, const attention_call *oracle) {
    attention_call run;
    problem.dtype = SRNN_F64;
    assert_int_equal(probe_copy(&run, &problem, oracle), SRNN_OK);
    bool fed = problem.kernel && strcmp(problem.kernel, "fed") == 0;
    bool backward = problem.form != SRNN_FORM_RECURRENT && !fed;
    if (fed)
        run.problem.kernel = NULL;
    srnn_status status = fed        ? probe_feed(&run, 4)
                         : backward ? call_forward_backward(&run)
                                    : call_forward(&run);
    if (status == SRNN_ERR_UNSUPPORTED && !sr_pairs_are_plain(&problem.attention)) {
        call_free(&run);
        return; /* the generic kernel has them in the parallel form */
    }
    assert_int_equal(status, SRNN_OK);
    double error = probe_output_error(&run, oracle);
    if (backward)
        error = fmax(error, probe_gradient_error(&run, oracle));
    call_free(&run);
    if (!(error <= 1e-12))
        fail_msg("%s, form %d, kernel %s, chunk %d: double forms differ by %g", spec,
                 (int)problem.form, problem.kernel ? problem.kernel : "any", problem.chunk, error);
}

static void double_forms_agree(void **state) {
    (void)state;
    static const int chunks[] = {1, 5, 32, 96};
    for (size_t n = 0; spec_at(n); n++) {
        srnn_problem problem = problem_of(spec_at(n));
        attention_call oracle;
        assert_int_equal(probe_oracle(&oracle, &problem, 3), SRNN_OK);
        problem.form = SRNN_FORM_PARALLEL;
        check_double(spec_at(n), problem, &oracle);
        problem.kernel = "fed";
        check_double(spec_at(n), problem, &oracle);
        for (size_t i = 0;
             srnn_attention_has_state(&problem.attention) && problem.attention.order < 9 && i < 4;
             i++) {
            problem.form = SRNN_FORM_CHUNKED;
            problem.chunk = chunks[i];
            problem.kernel = NULL;
            check_double(spec_at(n), problem, &oracle);
            problem.kernel = "fed";
            check_double(spec_at(n), problem, &oracle);
            problem.form = SRNN_FORM_RECURRENT;
            problem.kernel = NULL;
            check_double(spec_at(n), problem, &oracle);
        }
        call_free(&oracle);
    }
}

/* ---- sums over the thousands of features of a state ---- */

/* Positive terms of very different sizes: one running sum would lose the small ones. */
static void many_features_are_summed_in_blocks(void **state) {
    (void)state;
    srnn_problem problem = problem_of("score=power:3,feature=norm_cosine,position=none");
    attention_call oracle, run;
    problem.D = 20;
    problem.T = 67;
    problem.form = SRNN_FORM_CHUNKED;
    problem.chunk = 7;
    assert_int_equal(probe_oracle(&oracle, &problem, 1), SRNN_OK);
    assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    assert_true(probe_output_error(&run, &oracle) <= 2e-6);
    assert_true(probe_gradient_error(&run, &oracle) <= 4e-6);
    call_free(&run);
    call_free(&oracle);
}

/* ---- the same bits for any number of threads ---- */

static void check_same(const char *spec, const attention_call *a, const attention_call *b) {
    sr_shape shape = sr_output_shape(&a->problem);
    if (memcmp(a->host.o, b->host.o, (size_t)sr_shape_numbers(&shape) * sizeof(float)) != 0)
        fail_msg("%s: the output changes with the threads", spec);
    for (int which = 0; which < SR_OPERANDS; which++) {
        shape = sr_operand_shape((sr_operand)which, &a->problem);
        if (a->host.gradient[which] &&
            memcmp(a->host.gradient[which], b->host.gradient[which],
                   (size_t)sr_shape_numbers(&shape) * sizeof(float)) != 0)
            fail_msg("%s: gradient %d changes with the threads", spec, which);
    }
}

static void check_threads(const char *spec, srnn_form form) {
    srnn_problem problem = problem_of(spec);
    problem.T = 301;
    problem.form = form;
    problem.threads = 1;
    attention_call one;
    assert_int_equal(probe_create(&one, &problem, 5), SRNN_OK);
    const srnn_status status = call_forward_backward(&one);
    if (status == SRNN_ERR_UNSUPPORTED && !sr_pairs_are_plain(&problem.attention)) {
        call_free(&one);
        return;
    }
    assert_int_equal(status, SRNN_OK);
    for (int threads = 1; threads <= 3; threads++) {
        attention_call other;
        problem.threads = threads;
        assert_int_equal(probe_create(&other, &problem, 5), SRNN_OK);
        assert_int_equal(call_forward_backward(&other), SRNN_OK);
        check_same(spec, &one, &other);
        call_free(&other);
    }
    call_free(&one);
}

static void threads_do_not_change_bits(void **state) {
    (void)state;
    for (size_t n = 0; spec_at(n); n++) {
        srnn_attention a = problem_of(spec_at(n)).attention;
        check_threads(spec_at(n), SRNN_FORM_PARALLEL);
        if (srnn_attention_has_state(&a) && a.order < 9)
            check_threads(spec_at(n), SRNN_FORM_CHUNKED);
    }
}

/* ---- the ends of the range ---- */

/* Maps the random value of an operand's element to another. */
typedef double changed(sr_operand which, double drawn);

/* Float against the float64 oracle with unusual q, k and v. */
static void check_changed(const char *spec, changed *change, double limit) {
    srnn_problem problem = problem_of(spec);
    problem.T = 200;
    srnn_problem wide = problem;
    wide.dtype = SRNN_F64;
    attention_call run, oracle;
    assert_int_equal(probe_create(&run, &problem, 6), SRNN_OK);
    assert_int_equal(probe_create(&oracle, &wide, 6), SRNN_OK);
    for (int which = SR_OPERAND_Q; which <= SR_OPERAND_V; which++) {
        sr_shape shape = sr_operand_shape((sr_operand)which, &problem);
        float *narrow = run.host.operand[which];
        double *exact = oracle.host.operand[which];
        for (int64_t i = 0; i < sr_shape_numbers(&shape); i++) {
            narrow[i] = (float)change((sr_operand)which, exact[i]);
            exact[i] = (double)narrow[i];
        }
    }
    assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    const double output = probe_output_error(&run, &oracle);
    const double gradient = probe_gradient_error(&run, &oracle);
    if (!(output <= limit) || !(gradient <= 1e-5))
        fail_msg("%s: off by %g, gradients by %g", spec, output, gradient);
    call_free(&run);
    call_free(&oracle);
}

/* Integers whose products are exact in float, so that only the score is tested; |s| up to about
 * 10^4. */
static double large(sr_operand which, double drawn) {
    switch (which) {
    case SR_OPERAND_Q:
        return 40 * rint(2 * drawn);
    case SR_OPERAND_K:
        return 16 * rint(2 * drawn);
    default:
        return drawn;
    }
}

static void large_logits_stay_exact(void **state) {
    (void)state;
    static const char *const specs[] = {
        "softmax,scale=one",
        "norm,scale=one",
        "score=exp,scale=one,norm=l2_scaled",
        "score=exp,scale=one,normaliser=row_length,output_gate,norm=l2",
        "score=exp,scale=one,value_gate",
        "order:12,scale=one",
        "order:4,scale=one,norm=l2,output_gate",
        "score=taylor:79,scale=one,norm=l2",
        "power:64,scale=one",
        "power:7,scale=one,norm=l2"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        check_changed(specs[n], large, 1e-6);
}

/* All logits at -28 to -35, values small: without the row maximum the norm's input would be far
 * below its floor. */
static double small(sr_operand which, double drawn) {
    switch (which) {
    case SR_OPERAND_Q:
        return 2;
    case SR_OPERAND_K:
        return -2.75 + 0.03125 * rint(3 * drawn);
    default:
        return 0.0078125 * drawn;
    }
}

static void small_rows_stay_exact(void **state) {
    (void)state;
    static const char *const specs[] = {"norm,scale=one", "norm,scale=one,clamp=5",
                                        "score=exp,scale=one,output_gate,norm=l2_scaled",
                                        "power:64,scale=one,norm=l2"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        check_changed(specs[n], small, 2e-6);
}

/* ---- documents ---- */

/* A plan given other documents computes the same as a plan created for them. */
static void documents_can_change(void **state) {
    (void)state;
    static const int64_t before[] = {0, 50, 101, 202}, after[] = {0, 1, 97, 101, 140, 202};
    static const char *const specs[] = {"gated_softmax_decay", "linear_elu,decay,norm=layer"};
    for (size_t n = 0; n < 2; n++) {
        srnn_problem problem = problem_of(specs[n]);
        attention_call made, moved;
        problem.offsets = after;
        problem.documents = 5;
        assert_int_equal(probe_create(&made, &problem, 8), SRNN_OK);
        assert_int_equal(probe_create(&moved, &problem, 8), SRNN_OK);
        assert_int_equal(call_forward(&made), SRNN_OK);
        problem.offsets = before;
        problem.documents = 3;
        srnn_plan *plan;
        assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
        assert_int_equal(srnn_plan_documents(plan, after, 5), SRNN_OK);
        srnn_operands in = call_operands(&moved);
        assert_int_equal(srnn_attention_forward(plan, (srnn_tensor){.data = moved.device.o}, &in,
                                                NULL),
                         SRNN_OK);
        check_same(specs[n], &made, &moved);
        assert_int_equal(srnn_plan_documents(plan, before + 1, 2), SRNN_ERR_ARGUMENT);
        srnn_plan_free(plan);
        call_free(&made);
        call_free(&moved);
    }
}

/* ---- problems that are refused ---- */

static void wrong_problems_are_refused(void **state) {
    (void)state;
    const srnn_problem good = {.B = 1, .H = 4, .Hkv = 2, .T = 5, .D = 6};
    srnn_problem wrong[11];
    for (size_t i = 0; i < 11; i++)
        wrong[i] = good;
    wrong[0].form = (srnn_form)9;
    wrong[1].form = (srnn_form)100000;
    wrong[2].form = (srnn_form)-1;
    wrong[3].dtype = (srnn_dtype)7;
    wrong[4].Hkv = 3;
    wrong[5].T = 0;
    wrong[6].D = 257;
    wrong[7].chunk = -1;
    wrong[8].threads = -1;
    wrong[9].kernel = "nonesuch";
    wrong[10].Dv = 513;
    for (size_t i = 0; i < 11; i++) {
        srnn_plan *plan;
        if (srnn_plan_create(&plan, &wrong[i]) != SRNN_ERR_ARGUMENT || plan)
            fail_msg("wrong problem %zu is not refused", i);
    }
}

/* A missing operand is reported by name. */
static void incomplete_calls_are_refused(void **state) {
    (void)state;
    srnn_problem problem = {.B = 2, .H = 2, .T = 3, .D = 4};
    attention_call call;
    srnn_plan *plan;
    assert_int_equal(probe_create(&call, &problem, 1), SRNN_OK);
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    srnn_operands in = call_operands(&call), out = call_gradients(&call), partial = in;
    const srnn_tensor o = {.data = call.host.o}, none = {0};
    char *saved = aligned_alloc(64, srnn_plan_saved_bytes(plan) + 64);
    partial.q.time = 4;
    const struct {
        srnn_status status;
        const char *word;
    } cases[] = {
        {srnn_attention_forward(NULL, o, &in, NULL), "plan"},
        {srnn_attention_forward(plan, o, NULL, NULL), "operands"},
        {srnn_attention_forward(plan, none, &in, NULL), "'o'"},
        {srnn_attention_forward(plan, o, &partial, NULL), "strides"},
        {srnn_attention_forward(plan, o, &in, saved + 8), "aligned"},
        {srnn_attention_backward(plan, NULL, o, &in, saved), "gradients"},
        {srnn_attention_backward(plan, &out, none, &in, saved), "d_o"},
        {srnn_attention_backward(plan, &out, o, &in, NULL), "saved"},
        {srnn_plan_create(NULL, &problem), "plan"},
        {srnn_plan_create(&(srnn_plan *){NULL}, NULL), "problem"},
        {srnn_attention_parse(&problem.attention, NULL), "text"},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        if (cases[n].status != SRNN_ERR_ARGUMENT)
            fail_msg("call %zu, which lacks its %s, is not refused", n, cases[n].word);
    assert_int_equal(srnn_attention_forward(plan, o, &partial, NULL), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "strides"));
    free(saved);
    srnn_plan_free(plan);
    call_free(&call);
}

/* ---- gates that erase the past, rows without weights ---- */

/* One way to compute a problem. */
typedef struct way {
    srnn_form form;
    const char *kernel;
    bool fed, backward;
} way;

static const way ways[] = {
    {SRNN_FORM_PARALLEL, "generic", false, true}, {SRNN_FORM_PARALLEL, NULL, false, true},
    {SRNN_FORM_PARALLEL, NULL, true, false},      {SRNN_FORM_CHUNKED, NULL, false, true},
    {SRNN_FORM_CHUNKED, NULL, true, false},       {SRNN_FORM_RECURRENT, NULL, false, false},
};

/* Compares every way of computing a problem with the result of the oracle, a double call. */
static void check_ways(const char *spec, srnn_problem problem, attention_call *oracle,
                       double limit) {
    assert_int_equal(probe_oracle_run(oracle), SRNN_OK);
    for (size_t n = 0; n < sizeof ways / sizeof *ways; n++) {
        const way *w = &ways[n];
        attention_call run;
        if (w->form != SRNN_FORM_PARALLEL && !srnn_attention_has_state(&problem.attention))
            continue;
        if (w->fed && problem.offsets)
            continue; /* a state holds one document */
        problem.form = w->form;
        problem.kernel = w->kernel;
        assert_int_equal(probe_copy(&run, &problem, oracle), SRNN_OK);
        const srnn_status status = w->fed        ? probe_feed(&run, 4)
                                   : w->backward ? call_forward_backward(&run)
                                                 : call_forward(&run);
        if (status == SRNN_ERR_UNSUPPORTED && !sr_pairs_are_plain(&problem.attention)) {
            call_free(&run);
            continue; /* the generic kernel has them in the parallel form */
        }
        assert_int_equal(status, SRNN_OK);
        const probe_errors errors = probe_errors_of(&run, oracle, w->backward);
        const double output = errors.of[PROBE_OUTPUT], worst = probe_worst(&errors);
        if (!(output <= limit) || !(worst <= 10 * limit))
            fail_msg("%s, way %zu: off by %g, gradients by %g", spec, n, output, worst);
        call_free(&run);
    }
}

/* The number z of a gate whose logarithm is about -strength. */
static double gate_number(const srnn_attention *a, double strength) {
    switch (a->decay) {
    case SRNN_DECAY_NONE:
    case SRNN_DECAY_LEARNED:
    case SRNN_DECAY_GIVEN:
        break;
    case SRNN_DECAY_LOG_SIGMOID:
        return -strength * fmax(1, a->decay_divisor);
    case SRNN_DECAY_SOFTPLUS:
    case SRNN_DECAY_BOUNDED:
    case SRNN_DECAY_NEG_SOFTPLUS:
        return strength;
    }
    return -strength;
}

/* -G at every 16th token, in float and double, in rows and packed documents: what comes after it
 * keeps full precision, also after masks of -1e30 and -inf. */
static void strong_gates_leave_every_digit(void **state) {
    (void)state;
    static const char *const specs[] = {"forget",
                                        "power",
                                        "order:2,decay=log_sigmoid",
                                        "gla",
                                        "softmax,decay=log_sigmoid,decay_place=logit",
                                        "score=exp,decay=log_sigmoid,normaliser=none,norm=l2",
                                        "gated_delta_net,decay=log_sigmoid",
                                        "softmax,decay=given",
                                        "forget,decay=bounded,decay_bound=2.75",
                                        "order:2,decay=learned",
                                        "gla,decay=given,decay_divisor=1",
                                        "2mamba",
                                        "gated_delta_net",
                                        "kda",
                                        "rwkv7"};
    static const double strengths[] = {300, 1e4, 1e5, 1e14, 1e30, INFINITY};
    static const int64_t offsets[] = {0, 33, 101, 202};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t i = 0; i < sizeof strengths / sizeof *strengths; i++) {
            srnn_problem problem = problem_of(specs[n]), wide = problem;
            attention_call oracle;
            problem.offsets = wide.offsets = i % 2 ? offsets : NULL;
            problem.documents = wide.documents = i % 2 ? 3 : 0;
            wide.dtype = SRNN_F64;
            assert_int_equal(probe_create(&oracle, &wide, 6), SRNN_OK);
            const sr_shape shape = sr_operand_shape(SR_OPERAND_DECAY, &problem);
            const int64_t width = shape.rank == 4 ? shape.sizes[3] : 1;
            double *gates = oracle.host.operand[SR_OPERAND_DECAY];
            for (int64_t at = 0; at < sr_shape_numbers(&shape); at++)
                if (at / width % problem.T % 16 == 15)
                    gates[at] = gate_number(&problem.attention, strengths[i]);
            check_ways(specs[n], problem, &oracle, 1e-6);
            check_ways(specs[n], wide, &oracle, 1e-12);
            call_free(&oracle);
        }
}

/* Queries of zeros, and keys of zeros at the start: no weight is left, and 0/0 is 0. */
static void rows_without_weights_are_zero(void **state) {
    (void)state;
    static const char *const specs[] = {
        "power:2",
        "power:3,norm=l2",
        "power:2,norm=rms,output_gate",
        "power:2,norm=layer,post_gate",
        "power:2,normaliser=row_sum_min1",
        "power:2,normaliser=row_length",
        "power:2,normaliser=none,norm=l2",
        "power:2,normaliser=value_power",
        "power:2,normaliser=cumulative_gate,output_gate=inverse_cumulative",
        "power:2,detach",
        "score=linear",
        "score=linear,feature=relu",
        "score=linear,skip=head",
        "score=linear,normaliser=none",
        "score=linear,write=delta,feature=unit",
        "score=linear,norm=rms,norm_width=row",
        "power",
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = problem_of(specs[n]), wide = problem;
        attention_call oracle;
        wide.dtype = SRNN_F64;
        assert_int_equal(probe_create(&oracle, &wide, 6), SRNN_OK);
        double *q = oracle.host.operand[SR_OPERAND_Q], *k = oracle.host.operand[SR_OPERAND_K];
        const int64_t T = problem.T, D = problem.D;
        for (int64_t i = 0; i < problem.B * problem.H * T * D; i++)
            q[i] *= i / D % T % 32 != 7;
        for (int64_t i = 0; i < problem.B * problem.Hkv * T * D; i++)
            k[i] *= i / D % T > 2;
        check_ways(specs[n], problem, &oracle, 2e-6);
        const double *o = oracle.host.o;
        const sr_shape shape = sr_output_shape(&problem);
        for (int64_t i = 0; i < sr_shape_numbers(&shape); i++)
            assert_true(isfinite(o[i]));
        call_free(&oracle);
    }
}

/* Weights below the range of float are not zero in double, and are averaged like others. */
static void small_weights_are_not_zero(void **state) {
    (void)state;
    static const char *const specs[] = {"power:8", "power:16"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = problem_of(specs[n]);
        attention_call oracle;
        problem.dtype = SRNN_F64;
        assert_int_equal(probe_create(&oracle, &problem, 6), SRNN_OK);
        double *q = oracle.host.operand[SR_OPERAND_Q];
        for (int64_t i = 0; i < (int64_t)problem.B * problem.H * problem.T * problem.D; i++)
            q[i] *= 0x1p-20; /* exact in float, which probes are copied through */
        check_ways(specs[n], problem, &oracle, 1e-9);
        const double *o = oracle.host.o;
        assert_true(fabs(o[0]) > 1e-3); /* the first row sees one key: it is its value */
        call_free(&oracle);
    }
}

/* A long series through a state loses precision: it is never chosen automatically, even if it is
 * cheap. */
static void automatic_forms_are_sound(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        srnn_form form;
    } cases[] = {{"order:2", SRNN_FORM_CHUNKED},
                 {"linear_elu", SRNN_FORM_CHUNKED},
                 {"order:30", SRNN_FORM_PARALLEL},
                 {"softmax", SRNN_FORM_PARALLEL}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        srnn_problem problem = {.B = 1, .H = 1, .T = 1500, .D = 1, .Dv = 4};
        srnn_plan *plan;
        assert_int_equal(srnn_attention_parse(&problem.attention, cases[n].spec), SRNN_OK);
        assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
        assert_int_equal(srnn_plan_form(plan), cases[n].form);
        srnn_plan_free(plan);
    }
}

/* ---- which kernel ---- */

/* The systems whose pairs differ from softmax's, and the kernel of each form; NULL: none. If only
 * the generic kernel computes the parallel form, the system has a state, and that form is never
 * chosen automatically. */
static const struct {
    const char *name, *parallel, *chunked, *chosen;
} system_kernels[] = {
    {"power", "flash", "chunked", NULL},
    {"forget", "flash", NULL, "flash"},
    {"2mamba", "flash", "chunked", NULL},
    {"2mamba_e", "flash", NULL, "flash"},
    {"mamba2", "flash", "linear", NULL},
    {"linear_mamba", "flash", "linear", NULL},
    {"gated_softmax_plusplus_mamba", "flash", NULL, "flash"},
    {"gated_softmax_plusplus_mamba2", "flash", "linear", NULL},
    {"gated_softmax_plusplus_mamba2_intended", "flash", NULL, "flash"},
    {"gla", "generic", "linear", "linear"},
    {"delta_net", "generic", "linear", "linear"},
    {"gated_delta_net", "generic", "linear", "linear"},
    {"kda", "generic", "linear", "linear"},
    {"gdn2", "generic", "linear", "linear"},
    {"rwkv7", "generic", "linear", "linear"},
    {"log_linear", "generic", "linear", "linear"},
    {"log_linear_mamba2", "generic", "linear", "linear"},
    {"log_linear_gated_delta_net", "generic", "linear", "linear"},
    {"rat", "pooled", NULL, "pooled"},
    {"grela", "generic", "linear", "linear"},
    {"nala", "generic", "linear", "linear"},
    {"nala_cosine", "generic", "linear", "linear"},
};

/* The kernel's name, or NULL if there is none. */
static const char *kernel_for(const srnn_attention *a, srnn_form form, int T) {
    srnn_problem problem = {.attention = *a, .B = 1, .H = 4, .T = T, .D = 8, .form = form};
    srnn_plan *plan = NULL;
    const srnn_status status = srnn_plan_create(&plan, &problem);
    const char *name = status == SRNN_OK ? srnn_plan_kernel(plan) : NULL;
    srnn_plan_free(plan);
    return name;
}

static void check_kernel_name(const char *spec, const char *form, const char *got,
                              const char *wanted) {
    if (wanted ? !got || strcmp(got, wanted) != 0 : got != NULL)
        fail_msg("%s, %s: kernel %s, not %s", spec, form, got ? got : "none",
                 wanted ? wanted : "none");
}

/* Every name of the table, so that a fall-back to a slower kernel is noticed. */
static void names_have_their_kernels(void **state) {
    (void)state;
    static const int lengths[] = {1, 2, 40, 4096};
    const srnn_variant *v;
    size_t systems = 0;
    for (size_t n = 0; (v = srnn_variant_at(n)); n++) {
        const char *parallel = "flash", *chosen = NULL;
        const bool small = sr_highest_order(&v->attention) <= 8; /* else its state is too large */
        const char *chunked = srnn_attention_has_state(&v->attention) && small ? "chunked" : NULL;
        for (size_t i = 0; i < sizeof system_kernels / sizeof *system_kernels; i++)
            if (strcmp(system_kernels[i].name, v->name) == 0) {
                parallel = system_kernels[i].parallel;
                chunked = system_kernels[i].chunked;
                chosen = system_kernels[i].chosen;
                systems++;
            }
        check_kernel_name(v->name, "parallel", kernel_for(&v->attention, SRNN_FORM_PARALLEL, 40),
                          parallel);
        check_kernel_name(v->name, "chunked", kernel_for(&v->attention, SRNN_FORM_CHUNKED, 40),
                          chunked);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            const char *got = kernel_for(&v->attention, SRNN_FORM_AUTO, lengths[i]);
            if (chosen)
                check_kernel_name(v->name, "chosen", got, chosen);
            assert_string_not_equal(got, "generic");
        }
    }
    assert_int_equal(systems, sizeof system_kernels / sizeof *system_kernels);
}

/* ---- memory ---- */

static void memory_is_linear_in_time(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        srnn_form form;
        int Hkv;
    } cases[] = {
        {"softmax", SRNN_FORM_PARALLEL, 16},   {"gated_softmax_decay", SRNN_FORM_PARALLEL, 16},
        {"linear_elu", SRNN_FORM_CHUNKED, 16}, {"order:2", SRNN_FORM_PARALLEL, 16},
        {"softmax", SRNN_FORM_PARALLEL, 1},    {"linear_elu", SRNN_FORM_CHUNKED, 1},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        srnn_problem problem = {.B = 1,
                                .H = 16,
                                .Hkv = cases[n].Hkv,
                                .T = 16384,
                                .D = 64,
                                .form = cases[n].form,
                                .threads = 2};
        assert_int_equal(srnn_attention_parse(&problem.attention, cases[n].spec), SRNN_OK);
        srnn_plan *plan;
        assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
        const size_t heads = (size_t)(32 + 2 * cases[n].Hkv);
        const size_t inputs = heads * 16384 * 64 * sizeof(float); /* q, k, v and d_o */
        size_t added = srnn_plan_scratch_bytes(plan) + srnn_plan_saved_bytes(plan);
        srnn_plan_free(plan);
        if (added > (cases[n].Hkv == 16 ? inputs * 3 / 2 : inputs * 4))
            fail_msg("%s adds %zu bytes to inputs of %zu", cases[n].spec, added, inputs);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(double_forms_agree),
        cmocka_unit_test(many_features_are_summed_in_blocks),
        cmocka_unit_test(threads_do_not_change_bits),
        cmocka_unit_test(large_logits_stay_exact),
        cmocka_unit_test(small_rows_stay_exact),
        cmocka_unit_test(strong_gates_leave_every_digit),
        cmocka_unit_test(rows_without_weights_are_zero),
        cmocka_unit_test(small_weights_are_not_zero),
        cmocka_unit_test(documents_can_change),
        cmocka_unit_test(wrong_problems_are_refused),
        cmocka_unit_test(incomplete_calls_are_refused),
        cmocka_unit_test(automatic_forms_are_sound),
        cmocka_unit_test(names_have_their_kernels),
        cmocka_unit_test(memory_is_linear_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
